"""What a replica holds: one suite for both kinds of contents, then what each does by itself."""

from __future__ import annotations

from collections.abc import Callable

import pytest

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


def test_single_blocks_are_known_as_in_a_set_when_they_are_told_in_any_order() -> None:
    contents = ToldContents()
    contents.store((3, 1, 7), Tier.DEVICE, ROOM)
    contents.store((1, 2), Tier.DEVICE, ROOM)
    contents.remove((7, 3, 9), Tier.DEVICE)
    assert {name for name in range(10) if contents.match((name,)).blocks} == {1, 2}
    assert len(contents) == 2


def test_a_hole_is_never_credited_when_blocks_go_out_of_order() -> None:
    contents, blocks = ToldContents(), tuple(range(1, 101))
    contents.store(blocks, Tier.DEVICE, ROOM)
    contents.remove((100, 99, 98), Tier.DEVICE)  # as engines evict
    assert contents.match(blocks).blocks == 97
    contents.remove((41,), Tier.DEVICE)
    assert contents.match(blocks).blocks == 40
    contents.store((41,), Tier.DEVICE, ROOM)
    assert contents.match(blocks).blocks == 97
    contents.store(blocks[60:], Tier.HOST, ROOM)
    assert contents.match(blocks) == Match(device_blocks=97, host_blocks=3)


def test_blocks_are_counted_once_when_they_are_told_while_a_request_uses_them() -> None:
    contents, blocks = ToldContents(), tuple(range(1, 101))
    contents.store(blocks[:20], Tier.DEVICE, ROOM)
    contents.use(blocks, ROOM)
    assert len(contents) == 100  # 20 were told, 80 are on their way
    other = (*blocks[:50], 501, 502)
    contents.use(other, ROOM)
    for start in range(20, 60, 20):
        contents.store(blocks[start : start + 20], Tier.DEVICE, ROOM)
        assert len(contents) == 102
    contents.unuse(other, kept=False)  # 501 and 502 were never told
    assert len(contents) == 100
    contents.use(blocks[:70], ROOM)
    contents.unuse(blocks[:70], kept=False)
    for start in range(60, 100, 20):
        contents.store(blocks[start : start + 20], Tier.DEVICE, ROOM)
        assert len(contents) == 100
    contents.unuse(blocks, kept=True)
    assert len(contents) == 100


def test_blocks_beyond_a_hole_are_counted_once_when_the_hole_is_filled() -> None:
    contents, blocks = ToldContents(), tuple(range(1, 41))
    contents.store(blocks[10:], Tier.DEVICE, ROOM)
    contents.use(blocks, ROOM)
    contents.store(blocks[:10], Tier.DEVICE, ROOM)
    assert len(contents) == 40


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
    contents.use((1, 2), ROOM)  # a running request brings it to the device
    assert contents.match((1, 2, 3, 4)).device_blocks == 2


def test_the_least_recently_used_goes_first_when_nothing_is_told() -> None:
    contents = GuessedContents(4)
    contents.use((1, 2), ROOM)
    contents.unuse((1, 2), kept=True)
    contents.use((3, 4), ROOM)
    contents.unuse((3, 4), kept=True)
    contents.store((1,), Tier.DEVICE, ROOM)  # used again
    contents.store((5,), Tier.DEVICE, ROOM)  # 2 is the oldest
    assert [contents.match(chain).blocks for chain in ((1, 2), (3, 4), (5,))] == [1, 2, 1]
    contents.store((6,), Tier.DEVICE, ROOM)  # of 3 and 4, brought by one prompt, the later block goes first
    assert [contents.match(chain).blocks for chain in ((1, 2), (3, 4), (5,), (6,))] == [1, 1, 1, 1]


def test_what_follows_is_forgotten_too_when_a_guessed_block_is_removed() -> None:
    contents = GuessedContents(100)
    contents.store((1, 2, 3, 4), Tier.DEVICE, ROOM)
    contents.store((1, 2, 3, 5), Tier.DEVICE, ROOM)
    contents.use((1, 2, 6), ROOM)
    contents.remove((2,), Tier.DEVICE)
    assert len(contents) == 3  # 1, and what is in use
    assert contents.match((1, 2, 3, 4)).blocks == 2
    contents.unuse((1, 2, 6), kept=False)
    assert contents.match((1, 2, 3, 4)).blocks == len(contents) == 1
    contents.store((1, 2, 3, 4), Tier.DEVICE, ROOM)
    contents.store((1, 2, 3, 5), Tier.DEVICE, ROOM)
    contents.remove((3,), Tier.DEVICE)
    assert contents.match((1, 2, 3, 4)).blocks == len(contents) == 2


def test_blocks_that_were_never_prefilled_are_gone_when_the_last_of_their_requests_ends() -> None:
    contents = GuessedContents(100)
    contents.store((1, 2), Tier.DEVICE, ROOM)
    contents.use((1, 2, 3), ROOM)
    contents.use((1, 2, 3), ROOM)
    contents.unuse((1, 2, 3), kept=False)
    assert contents.match((1, 2, 3)).blocks == 3
    contents.unuse((1, 2, 3), kept=False)
    assert contents.match((1, 2, 3)).blocks == 2


def test_a_part_that_is_told_by_itself_continues_the_chains_that_end_where_it_begins() -> None:
    contents = GuessedContents(100)
    contents.store((4, 5, 6), Tier.DEVICE, ROOM)
    assert contents.match((1, 2, 3, 4, 5)).blocks == 0
    contents.store((1, 2, 3), Tier.DEVICE, ROOM)
    assert contents.match((1, 2, 3, 4, 5, 7)).blocks == 5
    contents.store((1, 2, 3, 4, 5, 6), Tier.DEVICE, ROOM)
    assert len(contents) == 9  # held twice, until the part by itself is the oldest
    assert contents.match((1, 2, 3, 4, 5, 6, 7)).blocks == 6


def test_all_but_what_is_in_use_is_forgotten_when_the_cache_is_cleared() -> None:
    contents = GuessedContents(100)
    contents.store((1, 2, 3, 4), Tier.DEVICE, ROOM)
    contents.use((1, 2, 5), ROOM)
    contents.clear()
    assert len(contents) == 3
    contents.unuse((1, 2, 5), kept=False)
    assert len(contents) == 0
    contents.use((1, 2, 5), ROOM)
    contents.clear()
    contents.unuse((1, 2, 5), kept=True)  # its prefill ended after all
    assert contents.match((1, 2, 5)).blocks == 3


def test_runs_are_joined_again_when_nothing_tells_their_parts_apart() -> None:
    contents = GuessedContents(1_000)
    chain = tuple(range(1, 101))
    contents.store(chain, Tier.DEVICE, ROOM)
    one_run = contents.bytes
    for end in range(1, 100):  # a run for each length, were they not joined
        contents.use(chain[:end], ROOM)
    for end in range(1, 100):
        contents.unuse(chain[:end], kept=True)
    assert contents.bytes > one_run  # what ended inside of it was used later than the rest
    contents.store(chain, Tier.DEVICE, ROOM)
    assert contents.bytes == one_run


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


def test_shorter_beginnings_leave_no_runs_behind_when_their_requests_have_ended() -> None:
    contents = ToldContents()
    chain = tuple(range(1, 101))
    contents.store(chain[:30], Tier.DEVICE, ROOM)
    for end in range(1, 101):
        contents.use(chain[:end], ROOM)
    for end in range(1, 100):
        contents.unuse(chain[:end], kept=True)
    assert contents.match(chain).blocks == len(contents) == 100
    contents.unuse(chain, kept=True)
    assert contents.match(chain).blocks == len(contents) == 30


def test_a_cache_without_blocks_is_refused_when_made() -> None:
    with pytest.raises(ValueError, match="0 blocks"):
        GuessedContents(0)
