"""The index over several replicas: what is known of each, bounded in bytes, right after restarts and gaps."""

from __future__ import annotations

import gc
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longproof.domain.kv_event import KvCleared, KvEvent, KvGap, KvRemoved, KvStored, Tier
from longproof.policy.hashing import block_names
from longproof.policy.prefix import PrefixIndex
from longproof.policy.told import ToldContents


def _index(**limits: int) -> PrefixIndex:
    index = PrefixIndex(**limits)
    index.add("a")
    index.add("b")
    return index


def test_each_replica_is_known_by_itself_when_two_hold_different_prefixes() -> None:
    index = _index()
    index.apply("a", KvStored(blocks=(1, 2, 3)))
    index.apply("b", KvStored(blocks=(1,)))
    assert index.match("a", (1, 2, 3, 4)).blocks == 3
    assert index.match("b", (1, 2, 3, 4)).blocks == 1


def test_nothing_is_held_when_the_replica_is_unknown() -> None:
    index = _index()
    index.apply("z", KvStored(blocks=(1,)))
    index.use("r", "z", (1,))
    index.unuse("r", kept=True)
    assert index.match("z", (1,)).blocks == 0
    assert index.known_blocks("z") == 0
    with pytest.raises(KeyError):
        index.figures("z")


@pytest.mark.parametrize("event", [KvCleared(), KvGap(reason="12 messages lost", missed=12)])
def test_contents_are_forgotten_when_the_replica_restarts_or_messages_are_lost(event: KvEvent) -> None:
    index = _index()
    index.apply("a", KvStored(blocks=(1, 2)))
    index.apply("b", KvStored(blocks=(1, 2)))
    index.apply("a", event)
    assert index.match("a", (1, 2)).blocks == 0
    assert index.match("b", (1, 2)).blocks == 2
    figures = index.figures("a")
    assert (figures.clears, figures.gaps) == ((1, 0) if isinstance(event, KvCleared) else (0, 1))
    index.apply("a", KvStored(blocks=(1,)))  # and learned anew
    assert index.match("a", (1, 2)).blocks == 1


def test_a_prefix_is_expected_at_once_when_a_request_with_it_was_sent() -> None:
    index = _index()
    index.use("r1", "a", (1, 2))
    assert index.match("a", (1, 2, 3)).blocks == 2
    index.unuse("r1", kept=True)
    index.unuse("r1", kept=True)
    assert index.match("a", (1, 2, 3)).blocks == 0  # its events say what stays, and there were none


def test_a_request_counts_at_one_replica_only_when_it_is_sent_again_elsewhere() -> None:
    index = _index()
    index.use("r1", "a", (1, 2))
    index.use("r1", "b", (1, 2))
    assert index.match("a", (1, 2)).blocks == 0
    assert index.match("b", (1, 2)).blocks == 2


def test_uses_of_an_earlier_life_change_nothing_when_a_replica_was_added_again() -> None:
    index = _index()
    index.use("old", "a", (1,))
    index.add("a")
    index.use("new", "a", (1,))
    index.unuse("old", kept=False)
    assert index.match("a", (1,)).blocks == 1


def test_what_the_reply_found_is_counted_against_the_prediction_when_a_request_ends() -> None:
    index = _index()
    index.apply("a", KvStored(blocks=(1, 2, 3)))
    index.use("r", "a", (1, 2, 3, 4))
    index.unuse("r", kept=True, found_blocks=1)
    index.use("s", "a", (1,))
    index.unuse("s", kept=True, found_blocks=5)  # more than was predicted is no error of the prediction
    figures = index.figures("a")
    assert (figures.predicted_blocks, figures.found_blocks) == (3 + 1, 1 + 1)


def test_the_beginning_of_a_prefix_stays_known_when_the_byte_limit_is_reached() -> None:
    index = _index(limit_bytes=10 * ToldContents.bytes_per_block)
    index.apply("a", KvStored(blocks=tuple(range(1, 9))))
    index.apply("b", KvStored(blocks=tuple(range(1, 9))))
    assert index.match("a", tuple(range(1, 9))).blocks == 8
    assert index.match("b", tuple(range(1, 9))).blocks == 2
    assert index.figures("b").refused_blocks == 6
    assert index.bytes == index.limit_bytes
    index.apply("a", KvRemoved(blocks=(8,)))
    index.apply("b", KvStored(blocks=(3,)))
    assert index.match("b", tuple(range(1, 9))).blocks == 3


@settings(max_examples=50)
@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 40), st.booleans()), max_size=60))
def test_the_byte_limit_holds_at_every_moment_when_long_unique_prompts_come(
    steps: list[tuple[str, int, bool]],
) -> None:
    index = PrefixIndex(limit_bytes=4_000)
    index.add("a")
    index.add("b", capacity_blocks=30)
    for number, (replica, blocks, by_event) in enumerate(steps):
        names = tuple(range(number * 100 + 1, number * 100 + 1 + blocks))
        if by_event:
            index.apply(replica, KvStored(blocks=names, tier=Tier.HOST if number % 2 else Tier.DEVICE))
        else:
            index.use(str(number), replica, names)
            assert index.bytes <= index.limit_bytes
            index.unuse(str(number), kept=True)
        assert index.bytes <= index.limit_bytes


def test_one_tenants_salted_prefix_is_never_credited_to_another_when_the_text_is_the_same() -> None:
    index = _index()
    text = range(64)
    index.apply("a", KvStored(blocks=block_names(text, block_tokens=16, salt="tenant one")))
    assert index.match("a", block_names(text, block_tokens=16, salt="tenant one")).blocks == 4
    assert index.match("a", block_names(text, block_tokens=16, salt="tenant two")).blocks == 0
    assert index.match("a", block_names(text, block_tokens=16)).blocks == 0


def test_two_indexes_agree_when_they_saw_the_same_events() -> None:
    first, second = _index(), _index()
    events: list[tuple[str, KvEvent]] = [
        ("a", KvStored(blocks=(1, 2, 3))),
        ("b", KvStored(blocks=(1,))),
        ("a", KvRemoved(blocks=(3,))),
        ("b", KvStored(blocks=(1, 2), tier=Tier.HOST)),
    ]
    for index in (first, second):
        for replica, event in events:
            index.apply(replica, event)
    for replica in "ab":
        assert first.match(replica, (1, 2, 3)) == second.match(replica, (1, 2, 3))


def test_memory_does_not_grow_when_blocks_are_stored_and_removed_for_ever() -> None:
    index = _index()
    known: set[int] = set()
    for turn in range(400):
        names = tuple(range(turn * 50, turn * 50 + 50))
        index.apply("a", KvStored(blocks=names))
        index.use(str(turn), "a", names)
        index.unuse(str(turn), kept=True)
        if turn >= 4:
            index.apply("a", KvRemoved(blocks=tuple(range((turn - 4) * 50, (turn - 4) * 50 + 50))))
            known.add(index.bytes)
    assert known == {4 * 50 * ToldContents.bytes_per_block}


def test_the_memory_that_is_really_taken_does_not_grow_and_is_what_the_index_says() -> None:
    """dynamo#10774, sglang#16734, by the allocator's word and not by the index's own."""
    index, kept, each = _index(), 60, 40
    taken: list[int] = []
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for turn in range(360):
            names = tuple(range(turn * each, turn * each + each))
            index.apply("a", KvStored(blocks=names))
            index.use(str(turn), "a", names)
            index.unuse(str(turn), kept=True)
            if turn >= kept:
                index.apply("a", KvRemoved(blocks=tuple(range((turn - kept) * each, (turn - kept) * each + each))))
            if turn % 60 == 59:
                del names
                gc.collect()
                taken.append(tracemalloc.get_traced_memory()[0] - before)
    finally:
        tracemalloc.stop()
    assert max(taken[1:]) <= 1.25 * min(taken[1:])  # five times all it holds came and went
    assert taken[-1] <= 1.25 * index.bytes
