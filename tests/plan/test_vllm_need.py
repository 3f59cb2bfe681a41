"""vLLM need: blocks of one request by kind of cache, and the longest request that fits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longproof.plan.vllm_need import blocks_for, longest_fitting
from longproof.plan.vllm_specs import CacheKind, CacheSpec


def spec(kind: CacheKind, **changes: int) -> CacheSpec:
    base = {"block_tokens": 16, "content_bytes": 1, "page_bytes": 1}
    return CacheSpec(kind=kind, shape=(), **{**base, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("cache", "tokens", "in_flight", "blocks"),
    [
        # ceil(100 / 16)
        (spec(CacheKind.FULL), 100, 2048, 7),
        # ceil(ceil(202,752 / 8) / 64) = ceil(25,344 / 64)
        (spec(CacheKind.MLA, block_tokens=64, dcp=8), 202_752, 8192, 396),
        # gpt-oss with batches of 1,024: ceil((127 + 1,024) / 16) + 1 = 72 + 1
        (spec(CacheKind.SLIDING, window_tokens=128), 131_072, 1024, 73),
        # shorter than the window: ceil(100 / 16) + 1
        (spec(CacheKind.SLIDING, window_tokens=1024), 100, 2048, 8),
        # three draft modules keep two tokens more: ceil((127 + 2 + 1,024) / 16) + 1 = 73 + 1
        (spec(CacheKind.SLIDING, window_tokens=128, extra_tokens=2), 131_072, 1024, 74),
        # ceil((8,192 + 8,192) / 16), no block more
        (spec(CacheKind.CHUNKED, chunk_tokens=8192), 1_048_576, 8192, 1024),
        (spec(CacheKind.STATE, state_blocks=5), 1_000_000, 8192, 5),
        # ceil(1,500 / 16), whatever the prompt
        (spec(CacheKind.CROSS, encoder_tokens=1500), 10, 8192, 94),
    ],
)
def test_blocks_follow_the_kind_of_cache(cache: CacheSpec, tokens: int, in_flight: int, blocks: int) -> None:
    assert blocks_for(cache, tokens, in_flight) == blocks


@given(
    st.sampled_from([CacheKind.FULL, CacheKind.SLIDING, CacheKind.CHUNKED, CacheKind.STATE]),
    st.integers(1, 10**6),
    st.integers(0, 10**4),
    st.integers(0, 10**5),
)
def test_a_longer_request_never_takes_fewer_blocks(kind: CacheKind, tokens: int, more: int, in_flight: int) -> None:
    cache = spec(kind, window_tokens=512, chunk_tokens=512, state_blocks=1)

    assert blocks_for(cache, tokens, in_flight) <= blocks_for(cache, tokens + more, in_flight)


@given(st.integers(0, 500), st.integers(1, 400))
def test_the_longest_is_the_last_that_fits_whatever_the_limit(limit: int, upper: int) -> None:
    assert longest_fitting(lambda tokens: tokens <= limit, upper) == min(limit, upper)
