"""Who holds how much of which pool.

        replica ── stage ── Pool: capacity_blocks = held + free            (law 1: at every moment, for every pool)
                              ├─ request → blocks of its own
                              ├─ prefix in use → blocks, once, however many requests refer to it
                              ├─ foreign → blocks the engine says are taken by somebody else
                              └─ peers → blocks that other gateways before the same engine have booked

A request holds blocks at every stage it passes, or at none: `reserve` and `grow` are all or nothing, so that a refusal
leaves no crumbs. The ledger counts; it never decides (that is `policy.admission`) and never evicts: blocks that are
cached but that nobody refers to are free.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from longproof.frozen import frozen
from longproof.policy.need import BlockNeed
from longproof.policy.peers import StageUse
from longproof.policy.shared_prefixes import Pin, SharedPrefixes

_PLAIN = BlockNeed()
NO_USE = StageUse()


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """One stage of one replica. `watermark_blocks` are kept free for running requests to grow into: admission does not
    touch them, growth may. `resume_blocks`: once growth has used the watermark, nothing new enters before no more than
    these are held; None = as soon as the watermark is free again."""

    stage: str
    capacity_blocks: int
    need: BlockNeed = _PLAIN
    watermark_blocks: int = 0
    replica: str = ""
    resume_blocks: int | None = None

    def __post_init__(self) -> None:
        if self.capacity_blocks < 0 or not 0 <= self.watermark_blocks <= self.capacity_blocks:
            raise ValueError(f"not a pool: {self}")
        if self.resume_blocks is not None and not 0 <= self.resume_blocks <= self.stop_blocks:
            raise ValueError(f"not a pool: {self}")

    @property
    def name(self) -> str:
        """``replica/stage``, or the stage alone where there is one replica."""
        return f"{self.replica}/{self.stage}" if self.replica else self.stage

    @property
    def stop_blocks(self) -> int:
        """Held blocks that admission never exceeds."""
        return self.capacity_blocks - self.watermark_blocks


@frozen(kw_only=True)
class PoolState:
    """A pool at one moment. `stopped`: growth has used the watermark and not yet given enough back; `caution_blocks`
    are held back beyond the watermark, because the engine was seen to run short."""

    pool: Pool
    held_blocks: int
    requests: int
    stopped: bool = False
    caution_blocks: int = 0

    @property
    def free_blocks(self) -> int:
        """Blocks nobody holds, the watermark included."""
        return self.pool.capacity_blocks - self.held_blocks

    @property
    def admissible_blocks(self) -> int:
        """Blocks a new request may take: free ones above the watermark; none while stopped."""
        if self.stopped:
            return 0
        return max(0, self.free_blocks - self.pool.watermark_blocks - self.caution_blocks)

    @property
    def enterable_blocks(self) -> int:
        """What the next request may take: an empty pool has nobody who could grow, and to hold its watermark back would
        starve the only one there is."""
        return self.admissible_blocks if self.requests else self.free_blocks


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortage:
    """Why nothing was reserved: this pool had less free than was wanted."""

    pool: str
    wanted_blocks: int
    free_blocks: int


@dataclass(slots=True, eq=False)
class _Hold:
    """One request at one stage: blocks of its own, and the prefix it refers to."""

    own_blocks: int
    pin: Pin | None


@dataclass(slots=True, eq=False)
class Account:
    """The books of one pool. Read it through `Ledger`."""

    pool: Pool
    block_tokens: int
    own_blocks: int = 0
    shared_blocks: int = 0
    foreign_blocks: int = 0
    requests: int = 0
    stopped: bool = False
    caution_blocks: int = 0
    told: StageUse = NO_USE
    """What other gateways say they have booked."""
    untold_blocks: int = 0
    """Booked here since the others were told."""
    share_blocks: int | None = None
    """What may be booked before they are told again, one request apart; None = there are no others."""
    prefixes: SharedPrefixes = field(default_factory=SharedPrefixes)

    @property
    def peer_blocks(self) -> int:
        """Blocks of other gateways; those that find no room beside ours are the engine's to queue, and count again as
        soon as ours leave."""
        if not self.told.blocks:
            return 0
        rest = self.pool.capacity_blocks - self.own_blocks - self.shared_blocks - self.foreign_blocks
        return max(0, min(self.told.blocks, rest))

    @property
    def held_blocks(self) -> int:
        """Everything that is not free."""
        return self.own_blocks + self.shared_blocks + self.foreign_blocks + self.peer_blocks

    @property
    def free_blocks(self) -> int:
        """Capacity that nobody holds."""
        return self.pool.capacity_blocks - self.held_blocks

    def span_blocks(self, start: int, end: int) -> int:
        """Blocks of this pool that named blocks [start, end) fill. Only layers that keep every token can share."""
        need = self.pool.need
        ratio = self.block_tokens, need.block_tokens
        return need.full_groups * (end * ratio[0] // ratio[1] - start * ratio[0] // ratio[1])

    def pinned_blocks(self, hold: _Hold) -> int:
        """Blocks of the prefix a request refers to."""
        return 0 if hold.pin is None else self.span_blocks(0, hold.pin.depth)

    def unfilled_blocks(self, hold: _Hold, tokens: int) -> int:
        """Of the prefix that a request of `tokens` so far refers to, the blocks beyond them that nobody else uses."""
        if hold.pin is None or tokens >= hold.pin.depth * self.block_tokens:
            return 0
        start = max(self.prefixes.alone_from(hold.pin), -(-tokens // self.block_tokens))
        return self.span_blocks(start, hold.pin.depth) if start < hold.pin.depth else 0

    def new_blocks(self, tokens: int, found: int) -> int:
        """Blocks that `tokens` need beyond `found` named blocks that are in use already."""
        return self.pool.need.blocks(tokens) - (self.span_blocks(0, found) if found else 0)

    def take(self, tokens: int, names: Sequence[int], cached: int) -> _Hold:
        """Book `tokens`; the caller has seen that there is room."""
        pin = self.prefixes.pin(names, cached) if names else None
        depth = 0
        if pin is not None:
            depth = pin.depth
            self.shared_blocks += self.span_blocks(pin.found, depth)
        own = self.pool.need.blocks(tokens) - (self.span_blocks(0, depth) if depth else 0)
        self.own_blocks += own
        self.untold_blocks += self.new_blocks(tokens, 0 if pin is None else pin.found)
        self.requests += 1
        self.settle()
        return _Hold(own, pin)

    def give_back(self, hold: _Hold) -> None:
        """Unbook."""
        self.own_blocks -= hold.own_blocks
        if hold.pin is not None:
            self.shared_blocks -= self.span_blocks(*self.prefixes.unpin(hold.pin))
        self.requests -= 1
        self.settle()

    def settle(self) -> None:
        """Stop and resume: the pool's hysteresis."""
        resume = self.pool.resume_blocks
        if resume is not None:
            self.stopped = self.held_blocks > (resume if self.stopped else self.pool.stop_blocks)

    def state(self) -> PoolState:
        """As a value."""
        return PoolState(
            pool=self.pool,
            held_blocks=self.held_blocks,
            requests=self.requests + self.told.requests,
            stopped=self.stopped,
            caution_blocks=self.caution_blocks,
        )


@dataclass(slots=True)
class Ledger:
    """The books of a set of pools, by pool name. Mutable; everything handed out is a value.

    `block_tokens`: tokens per named block of a prefix. Misuse is our bug and raises: ValueError for a second
    reservation of one request or a growth that shrinks, KeyError for an unknown pool or request.
    """

    accounts: dict[str, Account]
    block_tokens: int = 16
    _holds: dict[str, dict[str, _Hold]] = field(default_factory=dict[str, dict[str, _Hold]])
    _states: tuple[PoolState, ...] | None = None

    @classmethod
    def of(cls, pools: Iterable[Pool], *, block_tokens: int = 16) -> Ledger:
        """An empty ledger. Raises ValueError when two pools have one name."""
        named: dict[str, Account] = {}
        for pool in pools:
            if pool.name in named:
                raise ValueError(f"two pools are called {pool.name}")
            named[pool.name] = Account(pool, block_tokens)
        return cls(named, block_tokens)

    @property
    def pools(self) -> dict[str, Pool]:
        """The pools by name."""
        return {name: account.pool for name, account in self.accounts.items()}

    def state(self, pool: str) -> PoolState:
        """One pool now."""
        return self.accounts[pool].state()

    def states(self) -> tuple[PoolState, ...]:
        """All pools now, in the order given."""
        if self._states is None:
            self._states = tuple(account.state() for account in self.accounts.values())
        return self._states

    def holds(self, request: str) -> Mapping[str, int]:
        """Blocks of a request by pool, those of its shared prefix included; empty for one that holds nothing."""
        return {
            name: hold.own_blocks + self.accounts[name].pinned_blocks(hold)
            for name, hold in self._holds.get(request, {}).items()
        }

    def requests(self) -> tuple[str, ...]:
        """All that hold anything, in the order they reserved."""
        return tuple(self._holds)

    def found_blocks(self, names: Sequence[int]) -> dict[str, int]:
        """Blocks by pool that a request with this prefix would share with those that run."""
        found: dict[str, int] = {}
        for name, account in self.accounts.items():
            depth = account.prefixes.found(names) if account.prefixes.blocks_in_use else 0
            if depth:
                found[name] = account.span_blocks(0, depth)
        return found

    def reserve(
        self, request: str, tokens: Mapping[str, int], prefix: Sequence[int] = (), cached: int = 0
    ) -> Shortage | None:
        """Take what `tokens` (by pool name) need at every pool, or nothing. None means it was taken.

        `prefix`: the names of the request's whole blocks. Those in use already are referred to and not taken again;
        of the others, the first `cached` (all in all), which the engine has in its cache, can be shared at once, the
        rest from `computed` on.
        """
        if request in self._holds:
            raise ValueError(f"{request} holds blocks already")
        for name, count in tokens.items():
            account = self.accounts[name]
            names = self._within(prefix, count)
            wanted = account.new_blocks(count, account.prefixes.found(names, cached) if names else 0)
            if wanted > account.free_blocks:
                return Shortage(pool=name, wanted_blocks=wanted, free_blocks=account.free_blocks)
        self._holds[request] = {
            name: self.accounts[name].take(count, self._within(prefix, count), cached) for name, count in tokens.items()
        }
        self._states = None
        return None

    def computed(self, request: str) -> None:
        """The request's input is in the cache: its blocks may be shared by those that come."""
        for name, hold in self._holds.get(request, {}).items():
            if hold.pin is not None:
                self.accounts[name].prefixes.computed(hold.pin)

    def grow(self, request: str, tokens: Mapping[str, int]) -> Shortage | None:
        """Extend a reservation to `tokens` in all at the named pools, or not at all. The watermark may be used."""
        return self._resize(request, tokens, shrink=False)

    def correct(self, request: str, tokens: Mapping[str, int]) -> Shortage | None:
        """Set a reservation to `tokens` in all, more or less than it was: its true length became known. It never gets
        less than the prefix it refers to."""
        return self._resize(request, tokens, shrink=True)

    def release(self, request: str, pool: str | None = None) -> Mapping[str, int]:
        """Give back what a request holds: everywhere, or at one pool (prefill ends, decode goes on). Returns the blocks
        that became free by pool; a second release gives back nothing."""
        held = self._holds.get(request, {})
        given: dict[str, int] = {}
        for name in [name for name in held if pool in (None, name)]:
            account = self.accounts[name]
            before = account.free_blocks
            account.give_back(held.pop(name))
            given[name] = account.free_blocks - before
        if not held:
            self._holds.pop(request, None)
        self._states = None
        return given

    def used_blocks(self, tokens: Mapping[str, int]) -> dict[str, int]:
        """Blocks by pool that are filled by now, when each request is `tokens` long: prefixes in use once, and of what
        is reserved the part that has been reached, of its prefix too where nobody else uses it. A request that is not
        named has filled all it reserved."""
        used = {name: account.shared_blocks for name, account in self.accounts.items()}
        for request, held in self._holds.items():
            length = tokens.get(request)
            for name, hold in held.items():
                account, blocks = self.accounts[name], hold.own_blocks
                if length is not None:
                    blocks = min(blocks, max(0, account.pool.need.blocks(length) - account.pinned_blocks(hold)))
                    blocks -= account.unfilled_blocks(hold, length)
                used[name] += blocks
        return used

    def set_foreign(self, pool: str, blocks: int) -> None:
        """Blocks that somebody else holds, as the engine's metrics show; cut to what is free of ours."""
        account = self.accounts[pool]
        account.foreign_blocks = 0
        account.foreign_blocks = max(0, min(blocks, account.free_blocks))
        account.settle()
        self._states = None

    def set_peers(self, stages: Mapping[str, StageUse], gateways: int, *, told: bool) -> None:
        """What the other gateways have booked, by stage; `gateways`: all that there are, this one included. `told`:
        they know all that is booked here."""
        for account in self.accounts.values():
            account.told = stages.get(account.pool.stage, NO_USE)
            account.settle()
            if told or gateways == 1 or account.share_blocks is None:
                account.untold_blocks = 0
                account.share_blocks = None if gateways == 1 else account.state().admissible_blocks // gateways
        self._states = None

    def must_tell(self, tokens: int, shared_blocks: Mapping[str, int] | None = None) -> bool:
        """Whether the other gateways must hear of what was booked here before `tokens` more may be: it is more than
        this gateway's share of what was free. One request may always be on its way, so what is booked twice is bounded:
        a request, or a share, per other gateway."""
        for name, account in self.accounts.items():
            if account.share_blocks is None or not account.untold_blocks:
                continue
            wanted = account.pool.need.blocks(tokens) - (shared_blocks.get(name, 0) if shared_blocks else 0)
            if account.untold_blocks + wanted > account.share_blocks:
                return True
        return False

    def use(self) -> dict[str, StageUse]:
        """What is booked here by stage, for the other gateways."""
        return {
            account.pool.stage: StageUse(blocks=account.own_blocks + account.shared_blocks, requests=account.requests)
            for account in self.accounts.values()
        }

    def set_caution(self, pool: str, blocks: int) -> None:
        """Hold back this much beyond the watermark."""
        self.accounts[pool].caution_blocks = blocks
        self._states = None

    def _within(self, prefix: Sequence[int], tokens: int) -> Sequence[int]:
        most = tokens // self.block_tokens
        return prefix if len(prefix) <= most else prefix[:most]

    def _resize(self, request: str, tokens: Mapping[str, int], *, shrink: bool) -> Shortage | None:
        held = self._holds[request]
        wanted: dict[str, int] = {}
        for name, count in tokens.items():
            account, hold = self.accounts[name], held[name]
            more = account.pool.need.blocks(count) - account.pinned_blocks(hold) - hold.own_blocks
            if more < 0:
                if not shrink and hold.own_blocks:  # without any it refers to a prefix longer than itself
                    raise ValueError(f"{request} cannot grow to less than it holds")
                more = max(more, -hold.own_blocks)
            if more > account.free_blocks:
                return Shortage(pool=name, wanted_blocks=more, free_blocks=account.free_blocks)
            wanted[name] = more
        for name, more in wanted.items():
            held[name].own_blocks += more
            self.accounts[name].own_blocks += more
            self.accounts[name].settle()
        self._states = None
        return None
