"""Whether the client is still there. The engine waits only through here, so its leaving ends every wait."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias

from longproof.clock import NS_PER_S, Clock
from longproof.testing.engine_log import Served

Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]


class ClientLeft(Exception):  # noqa: N818 - a way out, not an error
    """The client closed the connection before the answer was complete."""


class Presence:
    """Reads the request's body, then watches for the disconnect and writes it into the log entry.

    `stay` makes the engine blind: the disconnect is still logged, but no wait ends early.
    """

    def __init__(self, receive: Receive, clock: Clock, served: Served) -> None:
        self._receive = receive
        self._clock = clock
        self._served = served
        self._left = asyncio.Event()
        self._watch: asyncio.Task[None] | None = None
        self.stay = False

    async def body(self) -> bytes:
        """The whole request body; the watch begins when it is there. Raises ClientLeft when it never is."""
        parts: list[bytes] = []
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                self._note_left()
                raise ClientLeft
            parts.append(message.get("body", b""))
            if not message.get("more_body", False):
                self._watch = asyncio.create_task(self._wait_for_disconnect())
                return b"".join(parts)

    def stop(self) -> None:
        """Ends the watch: from here on a disconnect is the ordinary end."""
        if self._watch is not None:
            self._watch.cancel()

    async def sleep_until(self, at_ns: int) -> None:
        """Waits until the clock shows `at_ns`. Raises ClientLeft."""
        wait_ns = at_ns - self._clock.now_ns()
        if wait_ns <= 0:
            await asyncio.sleep(0)  # lets the watch run: writing to a socket with room never yields
        elif self.stay:
            await asyncio.sleep(wait_ns / NS_PER_S)
        else:
            await self._first_of(asyncio.sleep(wait_ns / NS_PER_S))
        self._check()

    async def wait_for(self, event: asyncio.Event) -> None:
        """Waits for an event, for as long as the client does. Raises ClientLeft, even when blind: nobody could ever
        end it."""
        if not event.is_set():
            await self._first_of(event.wait())
            if not event.is_set():
                raise ClientLeft

    async def _first_of(self, other: Awaitable[Any]) -> None:
        tasks = {asyncio.ensure_future(other), asyncio.ensure_future(self._left.wait())}
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()

    def _check(self) -> None:
        if self._left.is_set() and not self.stay:
            raise ClientLeft

    async def _wait_for_disconnect(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._note_left()

    def _note_left(self) -> None:
        self._served.disconnected_ns = self._clock.now_ns()
        self._left.set()
