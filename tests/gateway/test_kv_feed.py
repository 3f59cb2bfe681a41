"""KV events over real ZeroMQ: order, gaps, replays, new lives, wrong topics."""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest

from longproof.clock import Clock
from longproof.domain.kv_event import KvCleared, KvEvent, KvGap, KvRemoved, KvStored
from longproof.gateway.kv_feed import KvFeed
from longproof.gateway.kv_inbox import TURN_BLOCKS, KvInbox
from longproof.gateway.kv_stream import FeedState, KvSource
from longproof.policy.hashing import block_names
from longproof.testing.fake_clock import FakeClock
from longproof.testing.kv_publisher import KvEvents, KvPublisher

BLOCK = 4


def packed(*ids: int) -> bytes:
    return array("I", ids).tobytes()


class Heard:
    """A feed's output, and what a replica would be known to hold by it."""

    def __init__(self) -> None:
        self.events: list[KvEvent] = []
        self.held: set[int] = set()

    def __call__(self, replica: str, events: list[KvEvent]) -> None:
        assert replica == "a"
        for event in events:
            if isinstance(event, KvStored):
                self.held |= set(event.blocks)
            elif isinstance(event, KvRemoved):
                self.held -= set(event.blocks)
            else:
                self.held.clear()
        self.events += events

    def of(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


def until(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.005)


def subscribed(publisher: KvPublisher, feeds: int = 1) -> None:
    """Waits until so many subscriptions have come: ZeroMQ's publisher learns of one a moment after the connection."""
    until(lambda: publisher.subscriptions == feeds, "the subscription did not come")


@contextmanager
def feeding(
    events: KvEvents | None = None,
    *,
    topic: str = "",
    replay: bool = True,
    before: int = 0,
    clock: Clock | None = None,
) -> Iterator[tuple[KvPublisher, Heard, FeedState]]:
    """A publisher and a feed that is connected to it. `before`: sequences published while nobody listened."""
    publisher = KvPublisher(events or KvEvents(), block_tokens=BLOCK)
    publisher.open()
    for number in range(before):
        keep(publisher, *range(number + 1))
    heard = Heard()
    source = KvSource(
        replica="a",
        endpoint=publisher.endpoint,
        topic=topic,
        replay=publisher.replay if replay else None,
        block_tokens=BLOCK,
    )
    feed = KvFeed([source], heard, clock=clock)
    feed.start()
    try:
        until(lambda: feed.states[0].connected, "the feed did not connect")
        subscribed(publisher)
        yield publisher, heard, feed.states[0]
    finally:
        feed.close()
        publisher.close()


SEQUENCES = [("", packed(*[10 * number + i for i in range(3 * BLOCK + 1)])) for number in range(8)]


def keep(publisher: KvPublisher, *numbers: int) -> None:
    """The cache holds these sequences now."""
    publisher.changed([SEQUENCES[number] for number in numbers])


def names(*numbers: int) -> set[int]:
    ids = [array("I", SEQUENCES[number][1]).tolist() for number in numbers]
    return {name for one in ids for name in block_names(one, block_tokens=BLOCK)}


@pytest.mark.parametrize("wire", ["map", "list"])
def test_contents_follow_when_blocks_are_stored_and_removed(wire: Any) -> None:
    with feeding(KvEvents(wire=wire)) as (publisher, heard, state):
        keep(publisher, 0, 1)
        until(lambda: heard.held == names(0, 1), "the blocks did not come")
        keep(publisher, 1, 2)
        until(lambda: heard.held == names(1, 2), "the removal did not come")
        assert state.translator.figures.orphans == 0
        assert (state.joined_at, state.gaps) == (0, 0)


def test_contents_are_the_same_when_engines_seed_their_hashes_differently() -> None:
    with feeding(KvEvents(hash_seed=7)) as (publisher, heard, _):
        keep(publisher, 0)
        until(lambda: heard.held == names(0), "the blocks did not come")


def test_a_salted_prefix_is_another_when_the_ids_are_the_same() -> None:
    with feeding() as (publisher, heard, _):
        ids = packed(*range(8))
        publisher.changed([("tenant", ids), ("", ids)])
        wanted = {*block_names(range(8), block_tokens=4), *block_names(range(8), block_tokens=4, salt="tenant")}
        until(lambda: heard.held == wanted, "the blocks did not come")


def test_what_was_stored_before_is_learned_when_there_is_a_replay() -> None:
    with feeding(KvEvents(replay=True), before=4) as (publisher, heard, state):
        keep(publisher, 0, 1, 2, 3, 4)
        until(lambda: heard.held == names(0, 1, 2, 3, 4), "the replay did not come")
        assert (state.replays, state.joined_at, state.sequence.missed) == (1, 0, 0)


def test_what_was_stored_before_stays_unknown_when_there_is_no_replay() -> None:
    with feeding(before=4) as (publisher, heard, state):
        keep(publisher, 0, 1, 2, 3, 4)
        until(lambda: heard.held == names(4), "the blocks did not come")
        # four messages, numbers 0 to 3, were sent before anybody listened
        assert (state.joined_at, state.sequence.missed) == (4, 0)


@pytest.mark.parametrize("wire", ["map", "list"])
def test_lost_messages_are_had_again_when_there_is_a_replay(wire: Any) -> None:
    with feeding(KvEvents(replay=True, lose=(1, 2), wire=wire)) as (publisher, heard, state):
        for last in range(5):
            keep(publisher, *range(last + 1))
        until(lambda: heard.held == names(0, 1, 2, 3, 4), "the lost ones did not come")
        assert heard.of(KvGap) == []
        assert state.replays == 1


def test_a_gap_is_told_when_messages_are_lost_for_ever() -> None:
    with feeding(KvEvents(replay=True, lose_for_ever=(1, 2))) as (publisher, heard, state):
        for last in range(5):
            keep(publisher, *range(last + 1))
        until(lambda: heard.held == names(3, 4), "what came after the gap is not known")
        assert [gap.missed for gap in heard.of(KvGap)] == [2]
        assert (state.gaps, state.sequence.missed) == (1, 2)


def test_everything_is_learned_again_when_a_publisher_begins_anew_beside_its_cache() -> None:
    with feeding(KvEvents(replay=True)) as (publisher, heard, _):
        keep(publisher, 0)
        keep(publisher, 0, 1)
        keep(publisher, 0, 1, 3)
        until(lambda: heard.held == names(0, 1, 3), "the blocks did not come")
        publisher.anew()
        until(lambda: publisher.subscriptions == 1, "the feed did not come back")
        keep(publisher, 1, 2)
        until(lambda: heard.held == names(1, 2), "the blocks did not come again")
        assert len(heard.of(KvCleared)) == 1


def test_a_gap_is_told_when_the_replay_answers_nothing() -> None:
    clock = FakeClock()
    with feeding(KvEvents(replay=True, deaf=True, lose=(1,)), clock=clock) as (publisher, heard, state):
        keep(publisher, 0)
        keep(publisher, 0, 1)
        keep(publisher, 0, 1, 2)
        until(lambda: state.replays == 1, "it was not asked")
        assert heard.of(KvGap) == []  # what came since waits
        clock.advance_s(6)
        until(lambda: heard.held == names(2), "what waited did not come")
        assert len(heard.of(KvGap)) == 1


def test_a_gap_is_told_when_there_is_no_replay_to_ask() -> None:
    with feeding(KvEvents(lose=(1,))) as (publisher, heard, _):
        for last in range(3):
            keep(publisher, *range(last + 1))
        until(lambda: heard.held == names(2), "what came after the gap is not known")
        assert [gap.missed for gap in heard.of(KvGap)] == [1]


def test_contents_are_right_when_messages_come_in_another_order() -> None:
    with feeding(KvEvents(replay=True, swap=(1,))) as (publisher, heard, _):
        for last in range(4):
            keep(publisher, *range(last + 1))
        until(lambda: heard.held == names(0, 1, 2, 3), "the swapped ones did not come")
        assert heard.of(KvGap) == []


def test_everything_is_forgotten_when_the_engine_begins_anew() -> None:
    with feeding() as (publisher, heard, state):
        keep(publisher, 0, 1)
        until(lambda: heard.held == names(0, 1), "the blocks did not come")
        publisher.open()
        until(lambda: state.connected, "the feed did not connect again")
        subscribed(publisher)
        keep(publisher, 2)
        until(lambda: heard.held == names(2), "the new life was not seen")
        assert len(heard.of(KvCleared)) == 1
        assert state.lives == 2


def test_other_topics_are_counted_by_name_when_ours_never_comes() -> None:
    with feeding(KvEvents(topic="kv@other"), topic="kv@mine") as (publisher, heard, state):
        keep(publisher, 0)
        until(lambda: state.other_topics == {"kv@other": 1}, "the other topic was not seen")
        assert heard.events == []
        assert state.messages == 0


def test_rubbish_is_counted_and_does_no_harm_when_it_comes() -> None:
    with feeding() as (publisher, heard, state):
        publisher._live.send_multipart([b"", (0).to_bytes(8, "big"), b"\xc1 no msgpack"])
        publisher._live.send_multipart([b"too short"])
        publisher._live.send_multipart([b"", (1).to_bytes(8, "big"), msgspec.msgpack.encode([1.0, [None, ["x"]], 0])])
        publisher._number = 2
        keep(publisher, 0)
        until(lambda: heard.held == names(0), "the good message did not come")
        assert state.unreadable == 2
        assert state.translator.figures.unread == 2  # None, and an event of a kind that nobody knows


def test_two_gateways_know_the_same_when_they_hear_one_publisher() -> None:
    with feeding(KvEvents(replay=True)) as (publisher, first, _):
        for last in range(3):
            keep(publisher, *range(last + 1))
        late = Heard()
        source = KvSource(replica="a", endpoint=publisher.endpoint, replay=publisher.replay, block_tokens=BLOCK)
        feed = KvFeed([source], late)
        feed.start()
        try:
            until(lambda: feed.states[0].connected, "the second feed did not connect")
            subscribed(publisher, feeds=2)
            keep(publisher, 1, 2, 3)
            until(lambda: first.held == late.held == names(1, 2, 3), "the two differ")
        finally:
            feed.close()


def test_contents_are_right_when_blocks_are_told_twice() -> None:
    with feeding() as (publisher, heard, _):
        keep(publisher, 0, 1)
        publisher._held.clear()  # it tells all of it again
        keep(publisher, 0, 1)
        keep(publisher, 1)
        until(lambda: heard.held == names(1), "a second telling did harm")


def test_a_feed_waits_when_the_publisher_is_not_there_yet() -> None:
    publisher = KvPublisher(KvEvents(), block_tokens=BLOCK)
    publisher.open()
    endpoint = publisher.endpoint
    publisher.close()
    heard = Heard()
    feed = KvFeed([KvSource(replica="a", endpoint=endpoint, block_tokens=BLOCK)], heard)
    feed.start()
    try:
        assert not feed.states[0].connected
        publisher.open()
        until(lambda: feed.states[0].connected, "the feed did not connect")
        subscribed(publisher)
        keep(publisher, 0)
        until(lambda: heard.held == names(0), "the blocks did not come")
    finally:
        feed.close()
        feed.close()
        publisher.close()


async def test_the_inbox_applies_in_order_and_a_part_at_a_time_when_much_comes() -> None:
    applied: list[int] = []
    largest = 0

    def apply(replica: str, event: KvEvent) -> None:
        assert replica == "a"
        assert isinstance(event, KvStored)
        applied.extend(event.blocks)

    inbox = KvInbox(apply)
    events: list[KvEvent] = [KvStored(blocks=tuple(range(n, n + 500))) for n in range(0, 20_000, 500)]
    handing_over = asyncio.create_task(asyncio.to_thread(inbox.put, "a", events))
    while len(applied) < 20_000:
        before = len(applied)
        await asyncio.sleep(0)
        largest = max(largest, len(applied) - before)
    await handing_over
    assert applied == list(range(20_000))
    # a turn ends with the event of 501 that reaches 2,048: the fifth
    assert largest == 5 * 500
    assert largest < TURN_BLOCKS + 501
    inbox.close()
    await asyncio.to_thread(inbox.put, "a", events)
    await asyncio.sleep(0)
    assert len(applied) == 20_000


async def test_the_feed_waits_when_the_inbox_is_full() -> None:
    applied: list[KvEvent] = []
    inbox = KvInbox(lambda _, event: applied.append(event), most_waiting_blocks=10)
    event = KvStored(blocks=tuple(range(8)))
    # three of nine (eight blocks and the event itself) cannot wait together: they come through all the same, in turn
    await asyncio.gather(*(asyncio.to_thread(inbox.put, "a", [event]) for _ in range(3)))
    async with asyncio.timeout(60):
        while len(applied) < 3:  # noqa: ASYNC110 - applied in a later turn of this loop
            await asyncio.sleep(0)
    inbox.close()
