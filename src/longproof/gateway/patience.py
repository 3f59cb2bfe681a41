"""How long an engine may send nothing, on the clock of whoever listens.

    async with Patience(silence_s) as patience:
        patience.heard(at_s)          a sign of life: it may be silent for as long again from then on
        patience.rest()               somebody else is waited for: nothing is expected until something is heard

When its time is over, the loop gets one more look at its sockets before anything is given up: where the loop itself was
away (a pause of the machine, a frozen process), or the answer comes in that very moment, what has come is there unread.
"""

from __future__ import annotations

import asyncio
import math
from types import TracebackType

_LOOK_S = 0.05


class Patience:
    """TimeoutError in its block when nothing was heard for `silence_s`."""

    __slots__ = ("_limit", "_looked", "_loop", "_silence_s", "_timer", "_until_s")

    def __init__(self, silence_s: float) -> None:
        self._silence_s = silence_s
        self._loop = asyncio.get_running_loop()
        self._limit = asyncio.timeout(None)
        self._looked = False
        self._until_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> Patience:
        await self._limit.__aenter__()
        self.heard(self._loop.time())
        self._timer = self._loop.call_at(self._until_s, self._over)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        if self._timer is not None:
            self._timer.cancel()
        return await self._limit.__aexit__(kind, value, trace)

    def heard(self, at_s: float) -> None:
        """Something came at `at_s`, by the loop's clock. Cheap: it is called for every chunk."""
        self._until_s = at_s + self._silence_s
        self._looked = False

    def rest(self) -> None:
        """Nothing is expected until something is heard again."""
        self._until_s = math.inf

    def _over(self) -> None:
        now_s = self._loop.time()
        if now_s < self._until_s:
            self._timer = self._loop.call_at(min(self._until_s, now_s + self._silence_s), self._over)
        elif not self._looked:
            self._looked = True
            self._timer = self._loop.call_later(_LOOK_S, self._over)
        else:
            self._limit.reschedule(now_s)
