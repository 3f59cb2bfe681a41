"""The socket, and how it ends.

SIGTERM ─▶ /ready says no ─▶ (grace) ─▶ nothing new is accepted ─▶ what is open ends ─▶ closed
                                                                 └ drain_s ─▶ whatever is left is cut off
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from longproof.errors import UsageError
from longproof.gateway.doors import Doors
from longproof.gateway.routes import Routes

_BACKLOG = 2_048
_READ_BYTES = 128 << 10
"""A socket is paused once twice as much waits to be taken: about one read of uvloop's. With more, thirty clients that
begin to send megabytes stop the loop for 60 ms; with less, each pauses and resumes its socket a thousand times."""
_HEADER_BYTES = 16 << 10
_IDLE_S = 75.0
"""Idle connections are kept longer than load balancers do by default (60 s): they close first, so no request is lost
to a connection that closes under it."""
_SEND_BYTES = 256 << 10
"""Of the kernel's buffer per connection, where Linux would grow it to megabytes."""
_POLL_S = 0.02
_MOST_CONNECTIONS = 1 << 16
_KEPT_DESCRIPTORS = 128
_LAST_TURNS = 10
"""Of the event loop, in which a request that was on its way when the door closed can be read."""
_HANDSHAKE_S = 5.0

_log = logging.getLogger("longproof.gateway")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """Certificate chain and key in PEM; `client_ca`: clients must show a certificate that it signed."""

    certificate: Path
    key: Path
    client_ca: Path | None = None

    def context(self) -> ssl.SSLContext:
        """UsageError for files that cannot be used."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(self.certificate, self.key)
            if self.client_ca is not None:
                context.load_verify_locations(self.client_ca)
                context.verify_mode = ssl.CERT_REQUIRED
        except (OSError, ssl.SSLError) as problem:
            raise UsageError(
                f"the certificate {self.certificate} with key {self.key} cannot be used: {problem}",
                advice="give a PEM certificate chain and the unencrypted key that belongs to it",
            ) from problem
        return context


def _allow_many_connections() -> int:
    """A stream takes two descriptors, and many systems begin with 1,024: as many as the system allows us. Returns how
    many connections that is enough for, with some left for engines, files and the ledger."""
    try:
        import resource  # noqa: PLC0415 - Unix alone has it
    except ImportError:
        return _MOST_CONNECTIONS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and (hard == resource.RLIM_INFINITY or soft < hard):
        wanted = hard if hard != resource.RLIM_INFINITY else max(soft, 1 << 16)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError) as problem:
            _log.warning("no more than %d connections at once: %s", soft // 2, problem)
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST_CONNECTIONS if soft == resource.RLIM_INFINITY else max(16, (soft - _KEPT_DESCRIPTORS) // 2)
    return min(most, _MOST_CONNECTIONS)


def _quiet() -> logging.Logger:
    """For aiohttp, which would write a traceback for every malformed request: anybody could fill the disk with them.
    What goes wrong in an answer is logged by `routes`."""
    logger = logging.getLogger("longproof.gateway.http")
    logger.setLevel(logging.CRITICAL)
    return logger


def _waiting_at(door: socket.socket) -> list[socket.socket]:
    """Connections that nobody has accepted so far; the door is shut behind them, at once."""
    found: list[socket.socket] = []
    with door:
        door.setblocking(False)
        with suppress(OSError):  # nobody is left, or no descriptors are
            while True:
                found.append(door.accept()[0])
    for one in found:
        one.setblocking(False)
    return found


class Listener:
    """Answers HTTP/1.1 on one address with a table of routes. `head_s`: a new connection that has sent no whole head
    for so long is closed. `most_connections` at once, None = half of the descriptors that the system allows."""

    def __init__(
        self,
        routes: Routes,
        *,
        host: str,
        port: int,
        tls: Tls | None = None,
        head_s: float = 10.0,
        most_connections: int | None = None,
    ) -> None:
        self._routes = routes
        self._host = host
        self._port = port
        self._tls = tls
        self._head_s = head_s
        self._most_connections = most_connections
        self._context: ssl.SSLContext | None = None
        self._server: asyncio.Server | None = None
        self._doors: Doors | None = None

    @property
    def url(self) -> str:
        """Where it listens."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{'http' if self._tls is None else 'https'}://{host}:{self._port}"

    async def start(self) -> str:
        """Listens; returns the URL. UsageError where the address cannot be had."""
        loop = asyncio.get_running_loop()
        enough_for = _allow_many_connections()
        self._doors = Doors(
            self._routes,
            most=enough_for if self._most_connections is None else self._most_connections,
            head_s=self._head_s,
            handler_cancellation=True,  # a client that leaves cancels what is done for it, wherever that stands
            access_log=None,
            auto_decompress=False,
            read_bufsize=_READ_BYTES,
            keepalive_timeout=_IDLE_S,
            max_line_size=_HEADER_BYTES,
            max_field_size=_HEADER_BYTES,
            lingering_time=0.5,
            logger=_quiet(),
        )
        context = self._context = None if self._tls is None else self._tls.context()
        try:
            self._server = await loop.create_server(
                self._doors,
                self._host,
                self._port,
                backlog=_BACKLOG,
                ssl=context,
                ssl_handshake_timeout=None if context is None else self._head_s,
                reuse_address=True,
            )
            for listening in self._server.sockets:
                # inherited by every connection: what a slow reader can pile up here is bounded
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BYTES)
        except (OSError, OverflowError) as problem:
            raise UsageError(
                f"port {self._port} on {self._host} cannot be listened on: {problem}",
                advice="name another --port, or stop what listens there",
            ) from problem
        self._port = self._server.sockets[0].getsockname()[1]
        return self.url

    async def drain(self, *, grace_s: float, within_s: float) -> int:
        """Stops in order: for `grace_s` still accepts (load balancers take a while to hear of it), then finishes what
        is open. Returns how many requests were cut off because `within_s` was over."""
        self._routes.closing = True
        await asyncio.sleep(grace_s)
        await self._close_the_door()
        end_s = asyncio.get_running_loop().time() + within_s
        # a count of many tasks, which no single event stands for
        while self._routes.open and asyncio.get_running_loop().time() < end_s:  # noqa: ASYNC110
            await asyncio.sleep(_POLL_S)
        return await self.close()

    async def _close_the_door(self) -> None:
        """Accepts nothing new. Whoever is connected by now is let in first: the kernel would reset those that wait for
        it in a socket that is closed. And requests that are on their way, on kept connections too, get a moment."""
        if self._server is None or self._doors is None:
            return
        doors = [socket.socket(fileno=os.dup(one.fileno())) for one in self._server.sockets]
        self._server.close()
        arrived = [one for door in doors for one in _waiting_at(door)]
        handshake_s = None if self._context is None else _HANDSHAKE_S
        loop = asyncio.get_running_loop()
        entering = (
            loop.connect_accepted_socket(self._doors, one, ssl=self._context, ssl_handshake_timeout=handshake_s)
            for one in arrived
        )
        await asyncio.gather(*entering, return_exceptions=True)
        for _ in range(_LAST_TURNS):
            await asyncio.sleep(_POLL_S / 2)

    async def close(self) -> int:
        """Closes everything now; how many requests that cut off. Safe to call twice."""
        cut_off = self._routes.open
        if self._server is not None:
            self._server.close()
            self._server = None
        if self._doors is not None:
            if cut_off:
                _log.warning("%d requests were cut off", cut_off)
            await self._doors.shutdown(0.1)
            self._doors = None
        return cut_off
