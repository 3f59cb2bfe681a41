"""Turns on the event loop: of those who all have something to do at once, a few go on, then others have theirs.

Thirty clients that send megabytes would have thirty sockets read, parsed and copied before the loop looks at its timers
again. Who waits here does not read, and its socket is paused meanwhile.
"""

from __future__ import annotations

import asyncio
from collections import deque

LARGE_BYTES = 256 << 10
"""Who reads, counts or sends a longer body waits for turns: each takes the loop a millisecond."""


class Turns:
    """Lets `each` of those who wait go on per turn of the loop, in their order."""

    def __init__(self, each: int) -> None:
        self._each = each
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._calling = False

    async def mine(self) -> None:
        """Waits for a turn."""
        loop = asyncio.get_running_loop()
        waiter = loop.create_future()
        self._waiting.append(waiter)
        if not self._calling:
            self._calling = True
            loop.call_soon(self._next, loop)
        await waiter

    def _next(self, loop: asyncio.AbstractEventLoop) -> None:
        called = 0
        while self._waiting and called < self._each:
            waiter = self._waiting.popleft()
            if not waiter.done():  # it was cancelled
                waiter.set_result(None)
                called += 1
        self._calling = bool(self._waiting)
        if self._calling:
            loop.call_soon(self._next, loop)
