"""Whether the client is still there. The engine waits only through here, so its leaving ends every wait."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias

from longproof.clock import NS_PER_S, Clock
from longproof.testing.bell import Bell
from longproof.testing.engine_log import Served

Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]


class ClientLeft(Exception):  # noqa: N818 - a way out, not an error
    """The client closed the connection before the answer was complete."""


class Aborted(Exception):  # noqa: N818 - a way out, not an error
    """The request was aborted by order of somebody else."""


class Presence:
    """Reads the request's body, then watches for the disconnect and writes it into the log entry.

    `stay` makes the engine blind: the disconnect is still logged, but no wait ends early. An abort ends any wait.
    """

    def __init__(self, receive: Receive, clock: Clock, served: Served) -> None:
        self._receive = receive
        self._clock = clock
        self._served = served
        self._left = False
        self._watch: asyncio.Task[None] | None = None
        self._aborted = False
        self._pending: asyncio.Future[None] | None = None
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

    def abort(self) -> None:
        """Ends whatever it waits for, from here on, with Aborted."""
        self._aborted = True
        self._wake()

    async def sleep_until(self, at_ns: int) -> None:
        """Waits until the clock shows `at_ns`. Raises ClientLeft and Aborted."""
        wait_ns = at_ns - self._clock.now_ns()
        if wait_ns <= 0:
            await asyncio.sleep(0)  # lets the watch run: writing to a socket with room never yields
        else:
            loop = asyncio.get_running_loop()
            while (wait_ns := at_ns - self._clock.now_ns()) > 0 and not self._over:
                future = loop.create_future()
                timer = loop.call_later(wait_ns / NS_PER_S, _finish, future)
                try:
                    await self._wait(future)
                finally:
                    timer.cancel()
        self.check()

    async def hear(self, bell: Bell) -> None:
        """Waits for the next ring. Raises ClientLeft and Aborted."""
        self.check()
        await self._wait(bell.next())
        self.check()

    async def wait_for(self, event: asyncio.Event) -> None:
        """Waits for an event, for as long as the client does. Raises ClientLeft, even when blind: nobody could ever
        end it. Raises Aborted."""
        waiting = asyncio.ensure_future(event.wait())
        try:
            while not event.is_set() and not self._left and not self._aborted:
                future = asyncio.get_running_loop().create_future()
                waiting.add_done_callback(lambda _, future=future: _finish(future))
                self._pending = future
                await future
        finally:
            waiting.cancel()
        if not event.is_set():
            raise Aborted if self._aborted else ClientLeft

    def check(self) -> None:
        """Raises Aborted or, unless blind, ClientLeft, when that is so."""
        if self._aborted:
            raise Aborted
        if self._left and not self.stay:
            raise ClientLeft

    @property
    def _over(self) -> bool:
        return self._aborted or (self._left and not self.stay)

    async def _wait(self, future: asyncio.Future[None]) -> None:
        self._pending = future
        await future
        self._pending = None

    def _wake(self) -> None:
        if self._pending is not None:
            _finish(self._pending)

    async def _wait_for_disconnect(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._note_left()

    def _note_left(self) -> None:
        self._served.disconnected_ns = self._clock.now_ns()
        self._left = True
        self._wake()


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
