"""Who holds how much of which pool.

        replica ── stage ── Pool: capacity_blocks = Σ held + free          (law 1: at every moment, for every pool)
                              └─ request → blocks

A request holds blocks at every stage it passes, or at none: `reserve` and `grow` are all or nothing, so that a refusal
leaves no crumbs. The ledger counts; it never decides (that is `policy.admission`) and never evicts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from longproof.policy.need import BlockNeed

_PLAIN = BlockNeed()


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """One stage of one replica. `watermark_blocks` are kept free for running requests to grow into: admission does not
    touch them, growth may."""

    stage: str
    capacity_blocks: int
    need: BlockNeed = _PLAIN
    watermark_blocks: int = 0
    replica: str = ""

    def __post_init__(self) -> None:
        if self.capacity_blocks < 0 or not 0 <= self.watermark_blocks <= self.capacity_blocks:
            raise ValueError(f"not a pool: {self}")

    @property
    def name(self) -> str:
        """``replica/stage``, or the stage alone where there is one replica."""
        return f"{self.replica}/{self.stage}" if self.replica else self.stage


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolState:
    """A pool at one moment."""

    pool: Pool
    held_blocks: int
    requests: int

    @property
    def free_blocks(self) -> int:
        """Blocks nobody holds, the watermark included."""
        return self.pool.capacity_blocks - self.held_blocks

    @property
    def admissible_blocks(self) -> int:
        """Blocks a new request may take: free ones above the watermark."""
        return max(0, self.free_blocks - self.pool.watermark_blocks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortage:
    """Why nothing was reserved: this pool had less free than was wanted."""

    pool: str
    wanted_blocks: int
    free_blocks: int


@dataclass(slots=True)
class Ledger:
    """The books of a set of pools, by pool name. Mutable; everything handed out is a value.

    Misuse is our bug and raises: ValueError for a second reservation of one request or a growth that shrinks, KeyError
    for an unknown pool or request.
    """

    pools: dict[str, Pool]
    _holds: dict[str, dict[str, int]] = field(default_factory=dict[str, dict[str, int]])
    _held: dict[str, int] = field(default_factory=dict[str, int])
    _requests: dict[str, int] = field(default_factory=dict[str, int])

    @classmethod
    def of(cls, pools: Iterable[Pool]) -> Ledger:
        """An empty ledger. Raises ValueError when two pools have one name."""
        named: dict[str, Pool] = {}
        for pool in pools:
            if pool.name in named:
                raise ValueError(f"two pools are called {pool.name}")
            named[pool.name] = pool
        zero = dict.fromkeys(named, 0)
        return cls(named, {}, zero, dict(zero))

    def state(self, pool: str) -> PoolState:
        """One pool now."""
        return PoolState(pool=self.pools[pool], held_blocks=self._held[pool], requests=self._requests[pool])

    def states(self) -> tuple[PoolState, ...]:
        """All pools now, in the order given."""
        return tuple(self.state(name) for name in self.pools)

    def holds(self, request: str) -> Mapping[str, int]:
        """Blocks of a request by pool; empty for one that holds nothing."""
        return dict(self._holds.get(request, {}))

    def reserve(self, request: str, tokens: Mapping[str, int]) -> Shortage | None:
        """Take what `tokens` (by pool name) need at every pool, or nothing. None means it was taken."""
        if request in self._holds:
            raise ValueError(f"{request} holds blocks already")
        wanted = {name: self.pools[name].need.blocks(count) for name, count in tokens.items()}
        short = self._first_shortage(wanted)
        if short is None:
            self._take(request, wanted)
        return short

    def grow(self, request: str, tokens: Mapping[str, int]) -> Shortage | None:
        """Extend a reservation to `tokens` in all at the named pools, or not at all. The watermark may be used."""
        held = self._holds[request]
        wanted = {name: self.pools[name].need.blocks(count) - held[name] for name, count in tokens.items()}
        if any(more < 0 for more in wanted.values()):
            raise ValueError(f"{request} cannot grow to less than it holds")
        short = self._first_shortage(wanted)
        if short is None:
            for name, more in wanted.items():
                held[name] += more
                self._held[name] += more
        return short

    def release(self, request: str, pool: str | None = None) -> Mapping[str, int]:
        """Give back what a request holds: everywhere, or at one pool (prefill ends, decode goes on). Returns the blocks
        by pool; a second release gives back nothing."""
        held = self._holds.get(request, {})
        given = {name: held.pop(name) for name in list(held) if pool in (None, name)}
        for name, blocks in given.items():
            self._held[name] -= blocks
            self._requests[name] -= 1
        if not held:
            self._holds.pop(request, None)
        return given

    def _take(self, request: str, wanted: Mapping[str, int]) -> None:
        self._holds[request] = dict(wanted)
        for name, blocks in wanted.items():
            self._held[name] += blocks
            self._requests[name] += 1

    def _first_shortage(self, wanted: Mapping[str, int]) -> Shortage | None:
        for name, blocks in wanted.items():
            free = self.state(name).free_blocks
            if blocks > free:
                return Shortage(pool=name, wanted_blocks=blocks, free_blocks=free)
        return None
