"""What one replica's prefix cache holds, as far as anybody can know.

`policy.told` believes the replica's events. `policy.guessed` has none and follows our own traffic: what a request has
brought is there, and the least recently used goes first once the cache is full. A block that a running request uses is
there in both, since an engine does not evict it (nor can it be forgotten here before the request ends).

Both take any order of events: a second store or removal changes nothing, a removal of what was never stored is ignored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from longproof.domain.kv_event import Tier


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """How much of a prompt a replica can use again: whole blocks from its start, each counted at its nearest tier."""

    device_blocks: int = 0
    host_blocks: int = 0
    disk_blocks: int = 0

    @property
    def blocks(self) -> int:
        """All of them."""
        return self.device_blocks + self.host_blocks + self.disk_blocks


NO_MATCH = Match()


class Contents(Protocol):
    """The blocks of one replica."""

    def __len__(self) -> int:
        """Blocks known."""
        ...

    @property
    def bytes(self) -> int:
        """What they cost in memory, as `benchmarks/prefix_index.py` measures it."""
        ...

    def room(self, free_bytes: int) -> int:
        """Blocks of one more prompt that so many bytes are enough for; negative where those that are there cost more
        than they may."""
        ...

    def match(self, blocks: Sequence[int]) -> Match:
        """The longest run of `blocks`, from the first, that is there."""
        ...

    def store(self, blocks: Sequence[int], tier: Tier, room: int) -> int:
        """Note blocks as held, which follow each other in one chain, at most `room` new ones; returns how many found no
        room."""
        ...

    def remove(self, blocks: Sequence[int], tier: Tier) -> None:
        """Note blocks as gone from a tier."""
        ...

    def clear(self) -> None:
        """Forget everything but what running requests use."""
        ...

    def use(self, blocks: Sequence[int], room: int) -> int:
        """A request brings these blocks and uses them; returns how many of the first ones were noted: `unuse` exactly
        those."""
        ...

    def unuse(self, blocks: Sequence[int], kept: bool) -> None:
        """The request has ended. `kept`: its prefill was done, so the blocks are cached now as far as can be told."""
        ...
