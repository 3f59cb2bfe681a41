"""The prompt cache: which prompts were processed lately, and how much of a new one is already there."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence

_BYTES = array("I").itemsize


class PromptCache:
    """Remembers whole sequences and finds the longest common token prefix; the least recently used goes first.

    `entries` bounds how many sequences are kept, `capacity_tokens` their tokens together. At least one token of a
    prompt is always processed anew: its logits are needed for the first output token (llama.cpp and vLLM do the
    same). `changed` is told all that is kept, after every change.
    """

    def __init__(
        self,
        *,
        entries: int,
        capacity_tokens: int,
        block_tokens: int = 1,
        changed: Callable[[Sequence[tuple[str, bytes]]], None] | None = None,
    ) -> None:
        self._entries = entries
        self._capacity = capacity_tokens
        self._block = block_tokens
        self._changed = changed
        self._kept: list[tuple[str, bytes]] = []

    def cached_tokens(self, ids: Sequence[int], *, salt: str = "") -> int:
        """Tokens of `ids` that need not be processed, in whole blocks. Sequences under another salt do not count."""
        wanted = array("I", ids).tobytes()
        best = max((_common_bytes(wanted, kept) for other, kept in self._kept if other == salt), default=0)
        tokens = min(best // _BYTES, len(ids) - 1)
        return max(tokens - tokens % self._block, 0)

    def keep(self, ids: Sequence[int], *, salt: str = "") -> None:
        """Stores a processed sequence (prompt and output); sequences that it continues are replaced by it."""
        if self._entries == 0 or len(ids) > self._capacity:
            return
        fresh = array("I", ids).tobytes()
        others = [item for item in self._kept if item[0] != salt or not fresh.startswith(item[1])]
        self._kept = [*others, (salt, fresh)][-self._entries :]
        while sum(len(kept) for _, kept in self._kept) > self._capacity * _BYTES:
            self._kept.pop(0)
        if self._changed is not None:
            self._changed(self._kept)


def _common_bytes(left: bytes, right: bytes) -> int:
    """Length of the common prefix, by bisection: comparing slices is much faster than a loop over a million tokens."""
    low, high = 0, min(len(left), len(right))
    while low < high:
        middle = (low + high + 1) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
