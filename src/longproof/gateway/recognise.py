"""Whether the engines are still what they were, and the claims still hold.

    a replica is back ──▶ asked what it is ──▶ other facts ──▶ told to the operator
    another day                                    └─────────▶ claims judged anew ──▶ controller.on_claims

A replica that is another configuration than at the start goes on being booked as it was: what it holds is settled by a
restart of the gateway, and until then the operator is told. What a claim says of it is settled at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from datetime import date
from typing import Protocol

from longproof.clock import Clock
from longproof.domain.deployment import Deployment
from longproof.errors import EngineMisbehaved, TargetError, UserError
from longproof.evidence.fingerprint import differences, fingerprint
from longproof.policy.claim_gate import ProvenLimits

_NAMED = 3
_LOOK_EVERY_S = 30.0
_AGAIN_S = 2.0
_TRIES = 5
_log = logging.getLogger("longproof.gateway")
Judge = Callable[[Mapping[str, Sequence[Deployment]]], Mapping[str, ProvenLimits]]
"""What claims say, by model, of the deployments that serve it. Blocks; may raise UserError."""


class Claims(Protocol):
    """The controller, as far as it is told of claims."""

    def on_claims(self, proven: Mapping[str, ProvenLimits], now_ns: int, /) -> None: ...


class Recognition:
    """`serving`: by replica the models it serves; `known`: what each was at the start; `ask`: what one is now, raises
    as `engine_of`. Make, `start` and `close` it on the event loop."""

    def __init__(
        self,
        serving: Mapping[str, Sequence[str]],
        known: Mapping[str, Deployment],
        ask: Callable[[str], Awaitable[Deployment]],
        judge: Judge,
        proven: Mapping[str, ProvenLimits],
        claims: Claims,
        clock: Clock,
        look_every_s: float = _LOOK_EVERY_S,
    ) -> None:
        self._serving, self._known, self._ask = serving, dict(known), ask
        self._judge, self._proven, self._claims, self._clock = judge, proven, claims, clock
        self._look_every_s = look_every_s
        self._now = dict(known)
        self._problems: dict[str, str] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._judging = asyncio.Lock()

    def problems(self) -> list[str]:
        """For the operator."""
        return list(self._problems.values())

    def start(self) -> None:
        """Begins to look at the date, where there are claims."""
        if self._proven:
            self._begin(self._watch_date(self._clock.wall().date()))

    async def close(self) -> None:
        """Looks no more."""
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def back(self, replica: str) -> None:
        """A replica answers again: a new life, or its first."""
        self._begin(self._look_at(replica))

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _watch_date(self, day: date) -> None:
        while True:
            await asyncio.sleep(self._look_every_s)
            if (today := self._clock.wall().date()) != day:
                day = today
                await self.judge_claims()

    async def _asked(self, replica: str) -> Deployment | None:
        for tries_left in reversed(range(_TRIES)):
            try:
                return await self._ask(replica)
            except (TargetError, EngineMisbehaved) as problem:
                if tries_left:
                    await asyncio.sleep(_AGAIN_S)
                else:
                    self._tell(replica, f"it cannot be told what replica {replica} is since it is back: {problem}")
        return None

    async def _look_at(self, replica: str) -> None:
        found = await self._asked(replica)
        if found is None:
            return
        self._now[replica] = found
        changes = _changes(self._known[replica], found)
        self._tell(
            replica,
            f"replica {replica} is another configuration since it is back: {_named(changes)}; it is booked as it was"
            " until the gateway is restarted"
            if changes
            else None,
        )
        await self.judge_claims()

    def _tell(self, replica: str, problem: str | None) -> None:
        if problem is None:
            self._problems.pop(replica, None)
        elif self._problems.get(replica) != problem:
            self._problems[replica] = problem
            _log.warning("%s", problem)

    async def judge_claims(self) -> None:
        """Holds the claims against what runs and the date."""
        if not self._proven:
            return
        async with self._judging:
            running: dict[str, list[Deployment]] = {}
            for replica, models in self._serving.items():
                for model in models:
                    running.setdefault(model, []).append(self._now[replica])
            try:
                proven = await asyncio.to_thread(self._judge, running)
            except UserError as problem:
                _log.warning("claims are enforced as they were read: %s", problem.problem)
                return
            if proven == self._proven:
                return
            for model, limits in proven.items():
                before = self._proven.get(model)
                if before is not None and before.problem != limits.problem:
                    _log.warning("claim %s: %s", limits.claim, limits.problem or "it holds again")
            self._proven = proven
            self._claims.on_claims(proven, self._clock.now_ns())


def _changes(before: Deployment, after: Deployment) -> list[str]:
    was, now = fingerprint(before), fingerprint(after)
    return [
        f"{name} is {new}, was {old}"
        for name, old, new in differences(was, now)
        if name in was.facts and name in now.facts and not name.startswith("other.")
    ]


def _named(changes: Sequence[str]) -> str:
    more = f" and {len(changes) - _NAMED} more" if len(changes) > _NAMED else ""
    return "; ".join(changes[:_NAMED]) + more
