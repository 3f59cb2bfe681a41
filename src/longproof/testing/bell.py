"""A bell that one waiter hears: cheaper than an event and two tasks for every token."""

from __future__ import annotations

import asyncio


class Bell:
    """`ring` wakes the one that `next` gave its future to; nobody may be there."""

    def __init__(self) -> None:
        self._future: asyncio.Future[None] | None = None

    def next(self) -> asyncio.Future[None]:
        """Done at the next ring."""
        self._future = asyncio.get_running_loop().create_future()
        return self._future

    def ring(self) -> None:
        if self._future is not None and not self._future.done():
            self._future.set_result(None)
