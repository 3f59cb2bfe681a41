"""When a request's tokens are ready: by a timetable of its own, or when the steps that all share give them."""

from __future__ import annotations

from typing import Protocol

from longproof.clock import NS_PER_S
from longproof.testing.engine_state import EngineState
from longproof.testing.lie import Lie, find
from longproof.testing.lies import SlowPrefill, StallStream
from longproof.testing.presence import Presence
from longproof.testing.scheduler import Seat


class Pace(Protocol):
    """Waits raise ClientLeft and Aborted."""

    async def first(self, most_s: float | None = None) -> bool:
        """Waits until the first token is ready, or at most that long; whether it is."""
        ...

    async def token(self, number: int) -> None:
        """Waits until the answer's token `number` (from 1) is ready."""
        ...

    @property
    def first_ns(self) -> int:
        """When the first token was ready by the engine's own account; after `first`."""
        ...


class Timetable:
    """As if the request ran alone:

    admitted ──(uncached tokens / rate + delay)──▶ token 1 ──token_s──▶ token 2 ──token_s──▶ …

    The timetable does not move when a wait ends late, so that late waits do not add up.
    """

    def __init__(
        self, state: EngineState, client: Presence, lies: tuple[Lie, ...], *, started_ns: int, uncached_tokens: int
    ) -> None:
        self._state = state
        self._client = client
        self._stall = find(lies, StallStream)
        slow = find(lies, SlowPrefill)
        prefill_s = uncached_tokens / state.behaviour.prefill_tokens_per_s * state.stretch()
        self._first_ns = started_ns + round((prefill_s + (0.0 if slow is None else slow.delay_s)) * NS_PER_S)
        self._due_ns = [self._first_ns]

    @property
    def first_ns(self) -> int:
        return self._first_ns

    async def first(self, most_s: float | None = None) -> bool:
        now_ns = self._state.clock.now_ns()
        until_ns = self._first_ns if most_s is None else min(self._first_ns, now_ns + round(most_s * NS_PER_S))
        await self._client.sleep_until(until_ns)
        return until_ns == self._first_ns

    async def token(self, number: int) -> None:
        behaviour = self._state.behaviour
        while len(self._due_ns) < number:
            due_ns = self._due_ns[-1] + round(behaviour.token_s * self._state.stretch() * NS_PER_S)
            self._due_ns += [due_ns] * (1 + self._state.accepted())
        stalled_s = self._stall.for_s if self._stall is not None and number > self._stall.after_tokens else 0.0
        await self._client.sleep_until(self._due_ns[number - 1] + round(stalled_s * NS_PER_S))


class InSteps:
    """As a seat among others gets its tokens."""

    def __init__(self, state: EngineState, client: Presence, lies: tuple[Lie, ...], seat: Seat) -> None:
        self._state = state
        self._client = client
        self._seat = seat
        self._stall = find(lies, StallStream)
        self._slow = find(lies, SlowPrefill)

    @property
    def first_ns(self) -> int:
        return self._seat.first_ns or self._state.clock.now_ns()

    async def first(self, most_s: float | None = None) -> bool:
        now_ns = self._state.clock.now_ns
        end_ns = None if most_s is None else now_ns() + round(most_s * NS_PER_S)
        while not self._seat.produced:
            if end_ns is None:
                await self._client.hear(self._seat.bell)
            elif now_ns() >= end_ns:
                return False
            else:
                await self._client.sleep_until(end_ns)
        if self._slow is not None:
            await self._client.sleep_until(self._seat.first_ns + round(self._slow.delay_s * NS_PER_S))
        return True

    async def token(self, number: int) -> None:
        while self._seat.produced < number and not self._seat.done:
            await self._client.hear(self._seat.bell)
        if self._stall is not None and number > self._stall.after_tokens:
            stall, self._stall = self._stall, None
            await self._client.sleep_until(self._state.clock.now_ns() + round(stall.for_s * NS_PER_S))
        await self._client.sleep_until(0)  # lets the watch run
