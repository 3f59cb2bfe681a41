"""vLLM: the blocks one request takes, and the longest request a pool admits.

Read in 0.32: `max_memory_usage_bytes` of each spec, `_max_memory_usage_bytes_from_groups` and
`_estimate_max_model_len_from_groups`. The same rule decides the start-up check and the admission of a request.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from longproof.plan.capacity import GroupNeed
from longproof.plan.vllm_groups import CacheGroup
from longproof.plan.vllm_specs import CacheKind, CacheSpec


def blocks_for(spec: CacheSpec, tokens: int, in_flight_tokens: int) -> int:
    """Blocks one request of `tokens` holds at most in one group.

    Windows keep their tail and whatever is scheduled and not settled; one block more, because a window need not begin
    at a block's edge. A state does not grow. An encoder's cache has the encoder's length.
    """
    block = spec.block_tokens
    match spec.kind:
        case CacheKind.FULL | CacheKind.MLA:
            return _ceil(_ceil(tokens, spec.dcp), block)
        case CacheKind.SLIDING:
            return _ceil(min(spec.window_tokens - 1 + spec.extra_tokens + in_flight_tokens, tokens), block) + 1
        case CacheKind.CHUNKED:
            return _ceil(min(spec.chunk_tokens + in_flight_tokens, tokens), block)
        case CacheKind.STATE:
            return spec.state_blocks
        case CacheKind.CROSS:
            return _ceil(spec.encoder_tokens, block)


def group_needs(groups: Sequence[CacheGroup], tokens: int, in_flight_tokens: int) -> tuple[GroupNeed, ...]:
    """The blocks of one request in each group."""
    return tuple(
        GroupNeed(
            kind=group.spec.kind.value,
            layers=len(group.members),
            block_tokens=group.spec.block_tokens,
            blocks=blocks_for(group.spec, tokens, in_flight_tokens),
        )
        for group in groups
    )


def total_blocks(groups: Sequence[CacheGroup], tokens: int, in_flight_tokens: int) -> int:
    """Block ids one request takes from the shared pool."""
    return sum(blocks_for(group.spec, tokens, in_flight_tokens) for group in groups)


def longest_fitting(fits: Callable[[int], bool], upper_tokens: int) -> int:
    """The largest length ≤ `upper_tokens` that `fits`, by bisection; 0 when not even one token does. `fits` is
    monotone: what holds for a length holds for every shorter one."""
    if upper_tokens < 1 or not fits(1):
        return 0
    low, high = 1, upper_tokens
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


def _ceil(value: int, divisor: int) -> int:
    return -(-value // divisor)
