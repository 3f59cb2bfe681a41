"""The KV pool's account: taken + leaked + free = capacity, in whole blocks."""

from __future__ import annotations


class KvBlocks:
    """How many blocks are in use, and how many are lost for ever."""

    def __init__(self, *, capacity_tokens: int, block_tokens: int = 1) -> None:
        self.block_tokens = block_tokens
        self.capacity = capacity_tokens // block_tokens
        self.taken = 0
        self.leaked = 0

    @property
    def free(self) -> int:
        return self.capacity - self.taken - self.leaked

    @property
    def used_tokens(self) -> int:
        """Tokens of the blocks that nobody else can have, leaked ones included."""
        return (self.taken + self.leaked) * self.block_tokens

    def of(self, tokens: int) -> int:
        """Blocks that so many tokens need."""
        return -(-tokens // self.block_tokens)

    def take(self, blocks: int) -> None:
        """ValueError when there are not so many."""
        if blocks > self.free:
            raise ValueError(f"{blocks} blocks asked for, {self.free} free")
        self.taken += blocks

    def give(self, blocks: int) -> None:
        """ValueError when there were not so many taken."""
        if blocks > self.taken:
            raise ValueError(f"{blocks} blocks given back, {self.taken} taken")
        self.taken -= blocks

    def leak(self, blocks: int) -> None:
        """Loses free blocks for ever, as far as there are any."""
        self.leaked += min(blocks, self.free)
