"""The prompt cache finds the longest common token prefix among several prompts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from longproof.testing.fake_cache import PromptCache

IDS = st.lists(st.integers(min_value=0, max_value=3), min_size=1, max_size=12)


def common(left: list[int], right: list[int]) -> int:
    length = 0
    while length < min(len(left), len(right)) and left[length] == right[length]:
        length += 1
    return length


@given(st.lists(IDS, max_size=5), IDS)
def test_cached_tokens_are_the_longest_common_prefix_but_never_all(kept: list[list[int]], wanted: list[int]) -> None:
    cache = PromptCache(entries=8, capacity_tokens=1000)
    for ids in kept:
        cache.keep(ids)
    expected = min(max((common(ids, wanted) for ids in kept), default=0), len(wanted) - 1)
    assert cache.cached_tokens(wanted) == expected


def test_whole_blocks_only_when_the_cache_has_blocks() -> None:
    cache = PromptCache(entries=8, capacity_tokens=1000, block_tokens=16)
    cache.keep(list(range(100)))
    assert cache.cached_tokens([*range(50), 7]) == 48  # 3 x 16 ≤ 50
    assert cache.cached_tokens(list(range(10))) == 0


def test_oldest_goes_first_when_entries_or_tokens_run_out() -> None:
    by_number = PromptCache(entries=2, capacity_tokens=1000)
    by_size = PromptCache(entries=8, capacity_tokens=20)
    for cache in (by_number, by_size):
        for first in (1, 2, 3):
            cache.keep([first] * 10)
        assert [cache.cached_tokens([first] * 11) for first in (1, 2, 3)] == [0, 10, 10]


def test_nothing_is_kept_when_the_cache_is_off_or_the_salt_differs() -> None:
    off = PromptCache(entries=0, capacity_tokens=1000)
    off.keep([1, 2, 3])
    assert off.cached_tokens([1, 2, 3]) == 0
    salted = PromptCache(entries=8, capacity_tokens=1000)
    salted.keep([1, 2, 3], salt="mine")
    assert (salted.cached_tokens([1, 2, 3]), salted.cached_tokens([1, 2, 3], salt="mine")) == (0, 2)
