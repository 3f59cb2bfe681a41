"""What a replica holds: one suite for both kinds of contents, then what each does by itself."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longproof.domain.kv_event import Tier
from longproof.policy.contents import NO_MATCH, Contents, Match
from longproof.policy.guessed import GuessedContents
from longproof.policy.told import ToldContents

ROOM = 1_000_000
KINDS = [ToldContents, lambda: GuessedContents(10_000)]
kinds = pytest.mark.parametrize("kind", KINDS, ids=["told", "guessed"])


@kinds
def test_the_match_ends_at_the_first_hole_when_later_blocks_are_held(kind: Callable[[], Contents]) -> None:
    contents = kind()
    contents.store((1, 2, 4), Tier.DEVICE, ROOM)
    assert contents.match((1, 2, 3, 4)) == Match(device_blocks=2)
    assert contents.match((3, 1, 2)) == NO_MATCH
    assert contents.match(()) == NO_MATCH


@kinds
def test_a_long_match_is_counted_to_the_block_when_it_spans_several_runs(kind: Callable[[], Contents]) -> None:
    contents = kind()
    blocks = tuple(range(1, 5_001))
    contents.store(blocks[:3_333], Tier.DEVICE, ROOM)
    assert contents.match(blocks).blocks == 3_333
    contents.store(blocks, Tier.DEVICE, ROOM)
    assert contents.match(blocks).blocks == 5_000


@kinds
def test_nothing_changes_when_a_store_or_a_removal_is_told_twice(kind: Callable[[], Contents]) -> None:
    contents = kind()
    for _ in range(2):
        contents.store((1, 2), Tier.DEVICE, ROOM)
    assert len(contents) == 2
    for _ in range(2):
        contents.remove((2, 7), Tier.DEVICE)  # 7 was never stored
    assert len(contents) == 1
    assert contents.match((1, 2)).blocks == 1


@kinds
def test_a_block_stays_when_it_is_removed_while_a_request_uses_it(kind: Callable[[], Contents]) -> None:
    contents = kind()
    assert contents.use((1, 2), ROOM) == 2
    contents.remove((1, 2), Tier.DEVICE)
    assert contents.match((1, 2)).blocks == 2
    contents.clear()
    assert contents.match((1, 2)).blocks == 2
    contents.unuse((1, 2), kept=False)
    assert len(contents) == 0


@kinds
def test_a_shared_block_stays_until_the_last_request_has_ended_when_two_use_it(kind: Callable[[], Contents]) -> None:
    contents = kind()
    contents.use((1, 2), ROOM)
    contents.use((1, 3), ROOM)
    contents.unuse((1, 2), kept=False)
    assert contents.match((1, 3)).blocks == 2
    assert contents.match((1, 2)).blocks == 1
    contents.unuse((1, 3), kept=False)
    assert len(contents) == 0


@kinds
@given(data=st.data())
def test_contents_end_as_a_set_would_when_anything_happens_in_any_order(
    kind: Callable[[], Contents], data: st.DataObject
) -> None:
    contents, held = kind(), set[int]()
    uses: list[tuple[int, ...]] = []
    names = st.lists(st.integers(1, 12), min_size=1, max_size=6, unique=True).map(tuple)
    for action in data.draw(st.lists(st.sampled_from(["store", "remove", "clear", "use", "unuse"]), max_size=30)):
        if action == "store":
            contents.store(blocks := data.draw(names), Tier.DEVICE, ROOM)
            held |= set(blocks)
        elif action == "remove":
            contents.remove(blocks := data.draw(names), Tier.DEVICE)
            held -= set(blocks)
        elif action == "clear":
            contents.clear()
            held = set()
        elif action == "use":
            contents.use(blocks := data.draw(names), ROOM)
            uses.append(blocks)
        elif uses:
            contents.unuse(uses.pop(0), kept=False)
        present = held | {name for blocks in uses for name in blocks}
        assert len(contents) == len(present)
        assert {name for name in range(1, 13) if contents.match((name,)).blocks} == present


def test_blocks_beyond_the_room_are_left_out_when_a_replica_tells_of_more() -> None:
    contents = ToldContents()
    assert contents.store((1, 2, 3, 4), Tier.DEVICE, 3) == 1
    assert contents.match((1, 2, 3, 4)).blocks == 3
    assert contents.store((1, 2, 3), Tier.DEVICE, 0) == 0  # known already: no room is needed
    assert contents.use((1, 9), 0) == 1


def test_tiers_are_counted_apart_when_a_prefix_lies_on_several() -> None:
    contents = ToldContents()
    contents.store((1, 2, 3, 4), Tier.DISK, ROOM)
    contents.store((1, 2), Tier.HOST, ROOM)
    contents.store((1,), Tier.DEVICE, ROOM)
    assert contents.match((1, 2, 3, 4, 5)) == Match(device_blocks=1, host_blocks=1, disk_blocks=2)
    contents.remove((1, 2), Tier.HOST)
    assert contents.match((1, 2, 3, 4)) == Match(device_blocks=1, host_blocks=0, disk_blocks=3)
    contents.use((2,), ROOM)  # a running request brings it to the device
    assert contents.match((1, 2, 3, 4)).device_blocks == 2


def test_the_least_recently_used_goes_first_when_nothing_is_told() -> None:
    contents = GuessedContents(4)
    contents.use((1, 2), ROOM)
    contents.unuse((1, 2), kept=True)
    contents.use((3, 4), ROOM)
    contents.unuse((3, 4), kept=True)
    contents.store((1,), Tier.DEVICE, ROOM)  # used again
    contents.store((5,), Tier.DEVICE, ROOM)  # 2 is the oldest
    assert [contents.match((name,)).blocks for name in (1, 2, 3, 4, 5)] == [1, 0, 1, 1, 1]
    contents.store((6,), Tier.DEVICE, ROOM)  # of 3 and 4, brought by one prompt, the later block goes first
    assert [contents.match((name,)).blocks for name in (3, 4, 6)] == [1, 0, 1]


def test_blocks_in_use_are_passed_over_when_the_cache_is_full() -> None:
    contents = GuessedContents(2)
    contents.use((1, 2), ROOM)
    contents.store((3,), Tier.DEVICE, ROOM)
    assert contents.match((1, 2)).blocks == 2
    contents.use((4, 5), ROOM)  # more in use than there is: nothing can go
    assert contents.match((1, 2)).blocks == 2
    assert contents.match((4, 5)).blocks == 2
    contents.unuse((1, 2), kept=True)
    contents.unuse((4, 5), kept=True)
    assert len(contents) == 2


def test_contents_stay_within_their_room_when_it_is_less_than_the_cache() -> None:
    contents = GuessedContents(100)
    contents.store(tuple(range(1, 11)), Tier.DEVICE, 5)
    assert len(contents) == 5
    assert contents.match(tuple(range(1, 11))).blocks == 5


def test_only_the_first_blocks_are_noted_when_running_requests_take_all_the_room() -> None:
    contents = GuessedContents(100)
    assert contents.use((1, 2, 3), 3) == 3
    assert contents.use((1, 8, 9, 2), 1) == 2  # 1 is known, 8 fits, 9 does not
    assert contents.match((1, 8, 9)).blocks == 2
    contents.unuse((1, 8), kept=False)
    contents.unuse((1, 2, 3), kept=False)
    assert len(contents) == 0


def test_a_cache_without_blocks_is_refused_when_made() -> None:
    with pytest.raises(ValueError, match="0 blocks"):
        GuessedContents(0)
