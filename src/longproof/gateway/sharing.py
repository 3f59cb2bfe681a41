"""Several gateways before the same engines: each tells the others what it has booked, and books what they tell.

    controller.own_use ── something changed, or a beat is due ──▶ store ──▶ the others, at once
    controller.on_peers ◀── summed ◀── store: every gateway whose lease runs
    router: a prompt is cached there ──▶ store ──▶ on_kv_event of the others, where no engine tells

Nothing waits for the store. A booking is taken here first and told within `every_s`; until the others know of it, no
more than this gateway's share of what was free may be booked, one request apart (`policy.ledger`). So two gateways that
book at the same moment exceed a stage by at most a request or a share per other gateway, and its watermark stands
behind that.

A gateway that dies is forgotten when its lease ends. When the store is lost, the others' bookings stay for a lease, and
then everybody decides by its own books and the engines' metrics, which count foreign blocks as they always do; the
reason is in `state`, and the store is tried again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Protocol

from longproof.clock import NS_PER_S, Clock
from longproof.domain.kv_event import KvEvent, KvStored
from longproof.gateway.shared_codec import (
    Booked,
    Heard,
    decode_booked,
    decode_message,
    encode_booked,
    leaving_message,
    stored_messages,
)
from longproof.gateway.shared_store import SharedStore, StoreLost
from longproof.policy.actions import Action
from longproof.policy.peers import FleetUse, SpentElsewhere, summed
from longproof.policy.routing import PrefixRouter

_log = logging.getLogger("longproof.gateway")
_BEATS_PER_LEASE = 6
_MOST_UNTOLD = 4_096


class Books(Protocol):
    """The controller, as far as it is told of other gateways."""

    @property
    def changes(self) -> tuple[int, int]: ...
    def own_use(self) -> FleetUse: ...
    def on_peers(self, use: FleetUse, gateways: int, now_ns: int, /, *, told: bool) -> Sequence[Action]: ...
    def on_kv_event(self, replica: str, event: KvEvent, now_ns: int, /) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingRule:
    """`lease_s`: how long a dead gateway's bookings stay; `every_s`: how long a booking may be untold; `again_s`: pause
    before a lost store is tried again."""

    lease_s: float = 3.0
    every_s: float = 0.005
    again_s: float = 0.5

    @property
    def beat_s(self) -> float:
        """How often a lease is renewed, and looked at."""
        return self.lease_s / _BEATS_PER_LEASE

    @property
    def answer_s(self) -> float:
        """How long the store may take to answer."""
        return max(1.0, self.beat_s)

    @property
    def kept_s(self) -> float:
        """The lease in the store: with the beat at which others look, it makes `lease_s`."""
        return self.lease_s - self.beat_s


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingState:
    """`problem`: why nothing is shared now, None = it is. `gateways`: all that are known, this one included. Counts are
    since the start; `untold_prompts` were cached here and never told: too many, or the store was lost."""

    problem: str | None
    gateways: int
    exchanges: int
    stores_told: int
    stores_heard: int
    untold_prompts: int


@dataclass(slots=True)
class _Counts:
    exchanges: int = 0
    stores_told: int = 0
    stores_heard: int = 0
    untold_prompts: int = 0


class Sharing:
    """One gateway's part. Make, `start` and `close` it on the event loop. `act` carries the controller's actions."""

    def __init__(
        self,
        store: SharedStore,
        books: Books,
        router: PrefixRouter,
        act: Callable[[Iterable[Action]], None],
        clock: Clock,
        rule: SharingRule = SharingRule(),
    ) -> None:
        self._store, self._books, self._router, self._act = store, books, router, act
        self._clock, self._rule = clock, rule
        self._peers: dict[str, Booked] = {}
        self._spent = SpentElsewhere()
        self._number = 0
        self._problem: str | None = "the store has not answered yet"
        self._counts = _Counts()
        self._prompts: deque[tuple[str, Sequence[int]]] = deque()
        self._heard_ns = clock.now_ns()
        self._tasks: list[asyncio.Task[None]] = []
        self._closing = False
        router.keepers.append(self._kept)

    @property
    def state(self) -> SharingState:
        """How it goes."""
        counts = self._counts
        return SharingState(
            problem=self._problem,
            gateways=1 + len(self._peers),
            exchanges=counts.exchanges,
            stores_told=counts.stores_told,
            stores_heard=counts.stores_heard,
            untold_prompts=counts.untold_prompts,
        )

    def problems(self) -> list[str]:
        """For the operator."""
        if self._problem is None:
            return []
        return [f"nothing is shared with other gateways: {self._problem}; this one decides by its own books"]

    def start(self) -> None:
        """Begins to tell and to listen."""
        self._tasks = [asyncio.create_task(self._tell()), asyncio.create_task(self._listen())]

    async def close(self) -> None:
        """Gives up the lease, so that nobody waits for its end. A store that does not answer is left alone."""
        self._closing = True
        for task in self._tasks:
            task.cancel()
        if self._tasks:  # a client that is timing out may swallow a cancellation: it ends at its next turn then
            await asyncio.wait(self._tasks, timeout=2 * self._rule.answer_s)
        try:
            await self._store.leave(leaving_message(self._store.gateway))
        except StoreLost as problem:
            _log.warning("the shared store could not be told of the end: %s", problem)
        await self._store.aclose()

    # ── telling ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def _tell(self) -> None:
        known, beat_ns = (-1, -1), 0
        while not self._closing:
            await asyncio.sleep(self._rule.every_s)
            now_ns, changes = self._clock.now_ns(), self._books.changes
            if changes == known and now_ns < beat_ns and not self._prompts:
                continue
            try:
                if changes != known or now_ns >= beat_ns:
                    await self._exchange(changed=changes != known, takes=changes[1])
                    known, beat_ns = changes, now_ns + int(self._rule.beat_s * NS_PER_S)
                await self._tell_prompts()
            except StoreLost as problem:
                self._lost(str(problem))
            except Exception as problem:  # what others have put there must not end the telling for good
                _log.exception("telling other gateways")
                self._lost(f"{type(problem).__name__}: {problem}")
            else:
                continue
            known = -1, -1
            await asyncio.sleep(self._rule.again_s)

    async def _exchange(self, *, changed: bool, takes: int) -> None:
        self._number += 1
        use = self._router.with_work(self._books.own_use(), self._clock.now_ns())
        found = await self._store.exchange(encode_booked(Booked(number=self._number, use=use)), changed=changed)
        self._counts.exchanges += 1
        self._heard_ns = self._clock.now_ns()
        if self._problem is not None:
            _log.info("books are shared with other gateways through %s", self._store.address.shown)
            self._problem = None
        before = len(self._peers)
        self._peers = {name: booked for name in found if (booked := self._newer(name, found[name])) is not None}
        if self._peers or before:
            self._book(told=self._books.changes[1] == takes)

    async def _tell_prompts(self) -> None:
        messages: list[bytes] = []
        while self._prompts and len(messages) < _MOST_UNTOLD:
            replica, blocks = self._prompts.popleft()
            messages += stored_messages(self._store.gateway, replica, blocks)
            self._counts.stores_told += 1
        if messages:
            await self._store.tell(messages)

    def _kept(self, replica: str, blocks: Sequence[int]) -> None:
        """The router takes a prompt as cached."""
        if not self._peers or self._problem is not None:
            return
        if len(self._prompts) >= _MOST_UNTOLD:
            self._counts.untold_prompts += 1
            return
        self._prompts.append((replica, blocks))

    # ── listening ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def _listen(self) -> None:
        while not self._closing:
            try:
                async with aclosing(self._store.listen()) as messages:
                    async for message in messages:
                        heard = None if message is None else decode_message(message)
                        if heard is not None and heard.gateway != self._store.gateway:
                            self._hear(heard)
            except StoreLost:
                pass  # what is wrong is told by `_tell`, which asks at every beat
            except Exception:
                _log.exception("listening to other gateways")
            await asyncio.sleep(self._rule.again_s)

    def _hear(self, heard: Heard) -> None:
        if heard.left:
            if self._peers.pop(heard.gateway, None) is not None:
                self._book(told=False)
        elif heard.booked is None:
            self._counts.stores_heard += 1
            event = KvStored(blocks=heard.blocks)
            if self._guessed(heard.replica):
                self._books.on_kv_event(heard.replica, event, self._clock.now_ns())
        elif heard.gateway not in self._peers or heard.booked.number > self._peers[heard.gateway].number:
            self._peers[heard.gateway] = heard.booked
            self._book(told=False)

    def _guessed(self, replica: str) -> bool:
        """Whether nobody but us knows what is cached there; an engine that tells is believed alone."""
        try:
            return not self._router.index.figures(replica).told
        except KeyError:
            return False

    def _newer(self, gateway: str, data: bytes) -> Booked | None:
        """What a gateway has booked: as the store has it, or as it told meanwhile."""
        booked, known = decode_booked(data), self._peers.get(gateway)
        if booked is None:
            return known
        return known if known is not None and known.number > booked.number else booked

    def _book(self, *, told: bool) -> None:
        for gateway, booked in self._peers.items():
            self._spent.heard(gateway, booked.use)
        use = self._spent.put_into(summed(booked.use for booked in self._peers.values()))
        self._act(self._books.on_peers(use, 1 + len(self._peers), self._clock.now_ns(), told=told))

    def _lost(self, problem: str) -> None:
        reason = f"{self._store.address.shown}: {problem}"
        if self._problem != reason:
            _log.warning("books are not shared with other gateways: %s", reason)
        self._problem = reason
        self._counts.untold_prompts += len(self._prompts)
        self._prompts.clear()
        if self._clock.now_ns() - self._heard_ns > self._rule.lease_s * NS_PER_S:
            self._peers = {}
        self._book(told=True)  # nobody can be told: a share at each try, rather than nothing
