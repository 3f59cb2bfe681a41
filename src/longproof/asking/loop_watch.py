"""How late this process's own event loop comes back: while it is away nothing is stamped."""

from __future__ import annotations

import asyncio

from longproof.clock import NS_PER_S, Clock
from longproof.evidence.records import Lag

_TICK_S = 0.02
_LATE_NS = 1_000_000


class LoopWatch:
    """Looks fifty times a second, which costs a thousandth of a core. `checks` counts the looks since the last
    `take`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lags: list[Lag] = []
        self._checks = 0

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            due_ns = self._clock.now_ns() + round(_TICK_S * NS_PER_S)
            await asyncio.sleep(_TICK_S)
            self._checks += 1
            late_ns = self._clock.now_ns() - due_ns
            if late_ns > _LATE_NS:
                self._lags.append(Lag(at_ns=due_ns, late_ns=late_ns))

    def take(self) -> tuple[tuple[Lag, ...], int]:
        """The late returns above 1 ms and the number of looks, since the last call."""
        taken = tuple(self._lags), self._checks
        self._lags, self._checks = [], 0
        return taken
