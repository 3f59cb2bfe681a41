"""Who may be connected, and for how long without having asked anything.

    connect ─▶ too many are ─▶ 503, closed
        └─▶ first head within `head_s` ─▶ served; afterwards the idle time-out of kept connections holds
                └─▶ not ─▶ closed

A head that trickles in takes nothing but its connection, so connections are what is bounded. Bodies have bounds of
their own (`intake`).
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import cast

from aiohttp import web
from aiohttp.web import BaseRequest
from aiohttp.web_protocol import RequestHandler

from longproof.clock import NS_PER_S
from longproof.gateway.errors import Problem
from longproof.gateway.routes import Routes

_MOST_LOOKS_S = 1.0
_MOST_WHY = 120


class Doors:
    """The factory of protocols that `loop.create_server` wants. `most` connections at once; `turned_away` counts those
    beyond, `timed_out` those that asked nothing in time."""

    def __init__(self, routes: Routes, *, most: int, head_s: float, **settings: object) -> None:
        self._routes = routes
        self._most = most
        self._head_s = head_s
        self._loop = asyncio.get_running_loop()
        self._silent: OrderedDict[RequestHandler, float] = OrderedDict()
        """Connections that have asked nothing yet, with the time each came; the oldest first."""
        self._look: asyncio.TimerHandle | None = None
        self._server = _Counted(self, handler=self._asked, **settings)
        self.open = 0
        self.turned_away = 0
        self.timed_out = 0

    def __call__(self) -> asyncio.Protocol:
        """One more connection's protocol."""
        if self.open >= self._most:
            self.turned_away += 1
            return _Full(self._most)
        return self._server()

    async def shutdown(self, timeout_s: float) -> None:
        """Closes all connections."""
        if self._look is not None:
            self._look.cancel()
        await self._server.shutdown(timeout_s)

    def came(self, handler: RequestHandler) -> None:
        """It is connected."""
        self.open += 1
        self._silent[handler] = self._loop.time()
        if self._look is None:
            self._look = self._loop.call_later(min(self._head_s, _MOST_LOOKS_S), self._close_silent)

    def left(self, handler: RequestHandler) -> None:
        """Its connection has ended."""
        self.open -= 1
        self._silent.pop(handler, None)

    def _asked(self, request: BaseRequest) -> object:
        self._silent.pop(request.protocol, None)
        return self._routes(request)

    def _close_silent(self) -> None:
        self._look = None
        due_s = self._loop.time() - self._head_s
        while self._silent and next(iter(self._silent.values())) <= due_s:
            handler, _ = self._silent.popitem(last=False)
            self.timed_out += 1
            handler.force_close()
        if self._silent:
            self._look = self._loop.call_later(min(self._head_s, _MOST_LOOKS_S), self._close_silent)


class _Connection(RequestHandler):
    """aiohttp's; but what is no request is refused in the form that everything else is refused in."""

    __slots__ = ()

    def handle_error(
        self, request: BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """What it answers to bytes that are no HTTP."""
        del exc  # logged by nobody: anybody could fill the disk with malformed requests
        if request.writer.output_size > 0:
            raise ConnectionError("an answer was begun")
        why = (message or "this is no HTTP request").partition("\n")[0][:_MOST_WHY]
        problem = Problem(status=status, code="invalid_http", message=why)
        headers = {"Content-Type": "application/json", "Server": "longproof"}
        response = web.Response(status=status, body=problem.body(), headers=headers)
        response.force_close()
        return response


class _Counted(web.Server):
    """aiohttp's, which tells of every connection."""

    def __init__(self, doors: Doors, **settings: object) -> None:
        super().__init__(**settings)  # type: ignore[arg-type] - aiohttp's own keywords
        self._doors = doors

    def __call__(self) -> RequestHandler:
        return _Connection(self, loop=self._loop, **self._kwargs)

    def connection_made(self, handler: RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        self._doors.came(handler)

    def connection_lost(self, handler: RequestHandler, exc: BaseException | None = None) -> None:
        super().connection_lost(handler, exc)
        self._doors.left(handler)


class _Full(asyncio.Protocol):
    """Says that there are too many, and closes."""

    def __init__(self, most: int) -> None:
        self._most = most

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        message = f"{self._most} connections are open at this gateway, as many as it takes"
        problem = Problem(
            status=503, code="too_many_connections", message=message, limit=self._most, retry_after_ns=NS_PER_S
        )
        body = problem.body()
        head = (
            "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 1\r\n"
            f"Connection: close\r\nServer: longproof\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        writing = cast(asyncio.Transport, transport)
        writing.write(head.encode() + body)
        writing.close()
