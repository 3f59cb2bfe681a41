"""How much of a pool one request takes: blocks as a function of its length.

    blocks(L) = full_groups · ⌈L / B⌉                          layers that keep every token
              + Σ over windows (⌈min(w, L) / B⌉ + extra)       layers that keep the last w
              + fixed                                          states that do not grow

B is the pool's block, in tokens. A plain pool (llama.cpp cells, SGLang tokens, one vLLM group) is full_groups 1 and
nothing else. vLLM's hybrid groups draw on one pool and are the sum (`vllm/v1/core/single_type_kv_cache_manager.py`,
read in 0.32.0).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowNeed:
    """One group of layers that keeps `window_tokens`; `extra_blocks` for the block the window straddles."""

    window_tokens: int
    extra_blocks: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockNeed:
    """A request's claim on a pool with blocks of `block_tokens`. Grows with the length, never shrinks."""

    block_tokens: int = 1
    full_groups: int = 1
    windows: tuple[WindowNeed, ...] = ()
    fixed_blocks: int = 0

    def __post_init__(self) -> None:
        if self.block_tokens < 1 or self.full_groups < 0 or self.fixed_blocks < 0:
            raise ValueError(f"not a claim on a pool: {self}")

    @property
    def grows(self) -> bool:
        """Whether it depends on the length at all: a place in a batch (``full_groups=0, fixed_blocks=1``) does not."""
        return self.full_groups > 0 or bool(self.windows)

    def blocks(self, tokens: int) -> int:
        """Blocks a request of `tokens` holds; 0 for no tokens. Raises ValueError for a negative length."""
        if tokens < 0:
            raise ValueError(f"{tokens} tokens")
        if tokens == 0:
            return 0
        if not self.windows:  # the common case, asked thousands of times a second
            return self.full_groups * -(-tokens // self.block_tokens) + self.fixed_blocks
        windows = sum(_ceil(min(w.window_tokens, tokens), self.block_tokens) + w.extra_blocks for w in self.windows)
        return self.full_groups * _ceil(tokens, self.block_tokens) + windows + self.fixed_blocks

    def longest_tokens(self, blocks: int, *, at_most: int) -> int:
        """The longest request `blocks` hold, up to `at_most`: the inverse of `blocks`. 0 when not one token fits."""
        low, high = 0, at_most
        while low < high:
            middle = (low + high + 1) // 2
            if self.blocks(middle) <= blocks:
                low = middle
            else:
                high = middle - 1
        return low


def _ceil(numerator: int, denominator: int) -> int:
    return -(-numerator // denominator)
