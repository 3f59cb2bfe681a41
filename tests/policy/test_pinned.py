"""Pinned prefixes: where they live, when they are warmed, what they are worth."""

from __future__ import annotations

from collections.abc import Sequence

from longproof.domain.kv_event import KvCleared, KvStored
from longproof.domain.units import NS_PER_S
from longproof.policy.contents import Match
from longproof.policy.pinned import PinnedPrefixes, PinRefused, PinRule
from longproof.policy.prefix import PrefixIndex

FLEET: dict[str, int | None] = {"a": 100, "b": 100, "c": 100}
BLOCKS = tuple(range(1, 11))


class Fleet:
    """An index over three replicas, to which a warm-up is a store."""

    def __init__(self) -> None:
        self.index = PrefixIndex()
        for name in FLEET:
            self.index.add(name)

    def match(self, replica: str, blocks: Sequence[int]) -> Match:
        return self.index.match(replica, blocks)

    def warm(self, pins: PinnedPrefixes, now_ns: int, fleet: dict[str, int | None] | None = None) -> list[str]:
        done: list[str] = []
        for warm in pins.due(now_ns, FLEET if fleet is None else fleet, self.match):
            self.index.apply(warm.replica, KvStored(blocks=BLOCKS))
            pins.warmed(warm.name, warm.replica, now_ns, done=True)
            done.append(warm.replica)
        return done


def _pinned(rule: PinRule | None = None, copies: int = 1) -> PinnedPrefixes:
    pins = PinnedPrefixes(rule or PinRule())
    assert pins.put("handbook", blocks=BLOCKS, input_tokens=160, copies=copies) is None
    return pins


def test_a_prefix_is_warmed_once_when_it_was_just_pinned() -> None:
    pins, fleet = _pinned(), Fleet()
    assert len(fleet.warm(pins, 0)) == 1
    assert fleet.warm(pins, NS_PER_S) == []
    (shown,) = pins.snapshot(fleet.match)
    assert (shown.name, shown.warmed, shown.held) == ("handbook", 1, {shown.homes[0]: 160})


def test_a_warm_up_is_not_repeated_before_its_time_when_it_failed_or_takes_long() -> None:
    pins, fleet = _pinned(PinRule(retry_ns=30 * NS_PER_S)), Fleet()
    (first,) = pins.due(0, FLEET, fleet.match)
    assert pins.due(29 * NS_PER_S, FLEET, fleet.match) == []
    pins.warmed("handbook", first.replica, 29 * NS_PER_S, done=False)
    assert pins.due(29 * NS_PER_S, FLEET, fleet.match) == []
    assert [warm.replica for warm in pins.due(30 * NS_PER_S, FLEET, fleet.match)] == [first.replica]


def test_a_prefix_is_warmed_again_when_its_home_has_lost_it() -> None:
    pins, fleet = _pinned(), Fleet()
    (home,) = fleet.warm(pins, 0)
    assert fleet.warm(pins, NS_PER_S) == []
    fleet.index.apply(home, KvCleared())
    (warm,) = pins.due(2 * NS_PER_S, FLEET, fleet.match)
    assert (warm.replica, warm.reason) == (home, "10 of its 10 blocks are no longer there")


def test_a_prefix_is_not_sent_every_second_when_the_index_never_sees_it() -> None:
    pins, fleet = _pinned(PinRule(retry_ns=30 * NS_PER_S)), Fleet()
    (warm,) = pins.due(0, FLEET, fleet.match)
    pins.warmed("handbook", warm.replica, 0, done=True)  # the engine has it, its events say nothing
    assert [second for second in range(1, 61) if pins.due(second * NS_PER_S, FLEET, fleet.match)] == [30, 60]


def test_both_names_count_when_one_content_is_pinned_twice() -> None:
    pins, fleet = _pinned(), Fleet()
    pins.put("the same", blocks=BLOCKS, input_tokens=160)
    pins.on_dispatch((*BLOCKS, 99), "a", 10, 0)
    assert [(shown.requests, shown.hits) for shown in pins.snapshot(fleet.match)] == [(1, 1), (1, 1)]
    pins.drop("the same")
    assert pins.on_dispatch((*BLOCKS, 99), "a", 10, 0) == "handbook"


def test_a_prefix_says_why_it_lies_nowhere() -> None:
    pins, fleet = _pinned(copies=3), Fleet()
    pins.put("second", blocks=tuple(range(100, 145)), input_tokens=720)  # 45 blocks beside 10, of 50 that pins may have

    def homeless(replicas: dict[str, int | None]) -> list[str | None]:
        pins.due(0, replicas, fleet.match)
        return [shown.homeless for shown in pins.snapshot(fleet.match)]

    assert homeless(FLEET) == [None, "no replica has room for it"]
    assert homeless({"a": 100, "b": 10, "c": 10}) == [
        "no further replica has room for it",
        "no replica has room for it",
    ]
    assert homeless({"a": 100}) == [None, "no replica has room for it"]  # as many copies as there are replicas
    assert homeless({}) == ["no replica that serves its model is up"] * 2


def test_a_prefix_is_used_now_and_then_when_nobody_asks_for_it() -> None:
    pins, fleet = _pinned(PinRule(refresh_ns=60 * NS_PER_S)), Fleet()
    (home,) = fleet.warm(pins, 0)
    pins.on_dispatch((*BLOCKS, 77), home, 10, 50 * NS_PER_S)  # somebody did
    assert fleet.warm(pins, 100 * NS_PER_S) == []
    assert fleet.warm(pins, 110 * NS_PER_S) == [home]


def test_a_prefix_moves_and_comes_back_when_its_replica_goes_and_returns() -> None:
    pins, fleet = _pinned(), Fleet()
    (home,) = fleet.warm(pins, 0)
    left: dict[str, int | None] = {name: size for name, size in FLEET.items() if name != home}
    (other,) = fleet.warm(pins, NS_PER_S, left)
    assert other != home
    assert fleet.warm(pins, 2 * NS_PER_S) == []  # its first home still has it
    (shown,) = pins.snapshot(fleet.match)
    assert (shown.homes, shown.moved) == ((home,), 2)


def test_only_the_prefixes_of_a_replica_move_when_it_goes() -> None:
    pins = PinnedPrefixes()
    for number in range(30):
        pins.put(str(number), blocks=(number + 1,), input_tokens=16)
    match = Fleet().match
    pins.due(0, FLEET, match)
    before = {shown.name: shown.homes for shown in pins.snapshot(match)}
    pins.due(0, {"a": 100, "b": 100}, match)
    after = {shown.name: shown.homes for shown in pins.snapshot(match)}
    assert set(before.values()) == {("a",), ("b",), ("c",)}  # each has some
    assert all(after[name] == homes for name, homes in before.items() if homes != ("c",))


def test_copies_lie_on_different_replicas_when_several_are_wanted() -> None:
    pins, fleet = _pinned(copies=2), Fleet()
    homes = fleet.warm(pins, 0)
    assert len(set(homes)) == 2


def test_the_longest_pinned_prefix_counts_when_a_request_begins_with_two() -> None:
    pins, fleet = _pinned(), Fleet()
    pins.put("chapter", blocks=(*BLOCKS, 11), input_tokens=176)
    assert pins.on_dispatch((*BLOCKS, 11, 12), "a", 11, 0) == "chapter"
    assert pins.on_dispatch((*BLOCKS, 99), "a", 9, 0) == "handbook"
    assert pins.on_dispatch((5, 6), "a", 0, 0) is None
    handbook, chapter = pins.snapshot(fleet.match)
    assert (handbook.requests, handbook.hits, handbook.hit_share) == (1, 0, 0.0)  # a block was missing
    assert (chapter.requests, chapter.hits, chapter.hit_share) == (1, 1, 1.0)


def test_pins_leave_room_in_a_cache_when_there_are_many() -> None:
    pins, fleet = PinnedPrefixes(PinRule(most_share=0.5)), Fleet()
    for number in range(7):
        pins.put(str(number), blocks=tuple(range(number * 100 + 1, number * 100 + 41)), input_tokens=640)
    pins.due(0, FLEET, fleet.match)  # 40 blocks each, 50 per replica: one per replica
    homes = [shown.homes for shown in pins.snapshot(fleet.match)]
    assert sorted(home for (home,) in homes[:3]) == ["a", "b", "c"]
    assert homes[3:] == [()] * 4


def test_a_prefix_is_refused_with_numbers_when_it_cannot_be_kept() -> None:
    pins = PinnedPrefixes(PinRule(most_prefixes=1, most_share=0.5))
    assert pins.put("x", blocks=(), input_tokens=3) == PinRefused(
        reason="the prefix is shorter than one block, which is the least that can be cached",
        limit=1,
        actual=0,
        unit="blocks",
    )
    refused = pins.put("x", blocks=BLOCKS, input_tokens=160, cache_blocks=18)
    assert refused is not None
    assert (refused.limit, refused.actual, refused.unit) == (9, 10, "blocks")
    assert pins.put("x", blocks=BLOCKS, input_tokens=160) is None
    assert pins.put("x", blocks=BLOCKS[:5], input_tokens=80) is None  # replaced
    refused = pins.put("y", blocks=BLOCKS, input_tokens=160)
    assert refused is not None
    assert (refused.limit, refused.actual, refused.unit) == (1, 2, "prefixes")


def test_nothing_is_left_of_a_prefix_when_it_is_dropped() -> None:
    pins, fleet = _pinned(), Fleet()
    (home,) = fleet.warm(pins, 0)
    assert pins.drop("handbook")
    assert not pins.drop("handbook")
    assert pins.due(0, FLEET, fleet.match) == []
    assert pins.on_dispatch(BLOCKS, home, 10, 0) is None
    pins.warmed("handbook", home, 0, done=True)  # a warm-up that was under way
    assert pins.snapshot(fleet.match) == ()
