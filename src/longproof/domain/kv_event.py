"""What a replica's prefix cache holds, as changes to it.

Blocks are named by our own content hashes (`policy.hashing`: chained over whole blocks of token ids), never by the
engine's: an engine may seed, truncate or salt its hashes as it likes, and two replicas that hold the same tokens still
hold the same block. `gateway.kv_translate` turns the one into the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias


class Tier(StrEnum):
    """Where a cached block lies: the nearer, the cheaper to use again."""

    DEVICE = "device"
    HOST = "host"
    DISK = "disk"


@dataclass(frozen=True, slots=True, kw_only=True)
class KvStored:
    """These blocks, in the order of their chain, can be used again from this tier. May repeat what is known."""

    blocks: tuple[int, ...]
    tier: Tier = Tier.DEVICE


@dataclass(frozen=True, slots=True, kw_only=True)
class KvRemoved:
    """These blocks are no longer in this tier. May name what was never stored."""

    blocks: tuple[int, ...]
    tier: Tier = Tier.DEVICE


@dataclass(frozen=True, slots=True, kw_only=True)
class KvCleared:
    """Nothing is cached any more, on any tier: a reset, or a new life of the engine."""

    reason: str = "the engine cleared its cache"


@dataclass(frozen=True, slots=True, kw_only=True)
class KvGap:
    """Messages were lost and could not be had again: what is known may be wrong in both directions.

    `missed`: how many, None where nobody can tell. Removals may be among them, so a holder of contents forgets them
    and learns anew; believing a block that is gone costs more than not knowing one that is there.
    """

    reason: str
    missed: int | None = None


KvEvent: TypeAlias = KvStored | KvRemoved | KvCleared | KvGap
"""One change to what a replica holds."""
