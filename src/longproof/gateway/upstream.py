"""The engines' side: kept connections to all replicas, one request on its way.

post ──▶ not connected ─────────▶ Unreached     nothing was sent: another replica may be asked
     └─▶ lost before a status ──▶ Lost          it may have been generated: nobody may be asked again
     └─▶ 429, 503 ──────────────▶ Refused       the engine did not begin: another replica may be asked
     └─▶ any other status ──────▶ the answer
"""

from __future__ import annotations

import asyncio
import base64
import email.utils
import math
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from types import TracebackType

from yarl import URL

from longproof.clock import NS_PER_S
from longproof.gateway.engine_connection import Answer, EngineConnection, Lost
from longproof.gateway.turns import LARGE_BYTES, Turns

__all__ = ["Answer", "Lost", "Refused", "Unreached", "Upstream", "retry_after_ns"]

_CONNECT_S = 5.0
_IDLE_S = 3.0  # uvicorn (vLLM, SGLang) and llama.cpp close idle connections after 5 s; ours must go first
_LONGEST_RETRY_AFTER_S = 3_600
_SENT_TOGETHER = 2
"""Of long bodies, so many begin to be sent per turn of the loop: 2 ms of work."""
_SEND_BYTES = 1 << 20
"""Of the kernel's buffer per connection: where it takes four megabytes, a write of them stops the loop for 1.5 ms."""


class Unreached(Exception):  # noqa: N818 - named for what happened
    """No connection could be made: the engine has seen nothing of the request."""


class Refused(Exception):  # noqa: N818 - named for what happened
    """The engine would not begin: 429 or 503. `retry_after_ns` as it says, None where it says nothing."""

    def __init__(self, status: int, retry_after_ns: int | None) -> None:
        super().__init__(f"refused with {status}")
        self.status = status
        self.retry_after_ns = retry_after_ns


@dataclass(frozen=True, slots=True)
class _Target:
    """Where a URL leads: whom to connect to, and what is asked there."""

    host: str
    port: int
    secure: bool
    start: str
    """The request line without its method, and the Host header."""
    authorization: str | None
    """Of a URL with user and password."""


@lru_cache(maxsize=4_096)
def _target(url: URL) -> _Target:
    host, port = url.raw_host, url.port
    if url.scheme not in ("http", "https") or not host or not port:
        raise Unreached(f"{url} is no address of an engine")
    start = f" {url.raw_path_qs} HTTP/1.1\r\nHost: {url.host_port_subcomponent}\r\n"
    user = None if url.user is None else base64.b64encode(f"{url.user}:{url.password or ''}".encode()).decode()
    return _Target(host, port, url.scheme == "https", start, None if user is None else f"Basic {user}")


class Upstream:
    """Connections to all replicas, as many as there are requests: admission limits, and whoever waited for a connection
    would stand in a second, hidden queue. `async with` it.

    `idle_s`: how long a connection is kept that nobody uses. `tls`: whom engines with https are to be, None = anybody
    with a certificate that this machine trusts."""

    def __init__(self, *, idle_s: float = _IDLE_S, tls: ssl.SSLContext | None = None) -> None:
        self._idle_s = idle_s
        self._resting: dict[tuple[str, int, bool], list[EngineConnection]] = {}
        self._all: set[EngineConnection] = set()
        self._sweep: asyncio.TimerHandle | None = None
        self._tls = tls
        self._turns = Turns(_SENT_TOGETHER)

    async def __aenter__(self) -> Upstream:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._sweep is not None:
            self._sweep.cancel()
        for connection in list(self._all):
            connection.abort()
        await asyncio.sleep(0)  # transports end a turn of the loop after they were closed

    async def send(self, url: URL, headers: Mapping[str, str], body: bytes | None, *, method: str = "POST") -> Answer:
        """Sends a request and waits for its status, however long that takes. Redirects are never followed: an engine
        must not send the gateway to an address of its choice. Unreached, Lost."""
        target = _target(url)
        connection = self._rested(target) or await self._connect(target)
        if body is not None and len(body) > LARGE_BYTES:
            try:
                await self._turns.mine()
            except BaseException:
                connection.abort()
                raise
            if not connection.open:
                raise Unreached(f"{target.host}:{target.port} closed the connection before anything was sent")
        answer = connection.ask(_head(method, target, headers, body), body)
        try:
            await answer.began()
        except BaseException:
            answer.drop()
            raise
        return answer

    def _rested(self, target: _Target) -> EngineConnection | None:
        """The one used last: the others may age and go. None that is too old: where the loop was away, or the whole
        process, the sweep has not come to it, and that the engine has closed it has not been read."""
        resting = self._resting.get((target.host, target.port, target.secure))
        due_s = asyncio.get_running_loop().time() - self._idle_s
        while resting:
            connection = resting.pop()
            if connection.open and connection.rested_s > due_s:
                return connection
            connection.abort()
        return None

    async def _connect(self, target: _Target) -> EngineConnection:
        key = (target.host, target.port, target.secure)
        resting = self._resting.setdefault(key, [])

        def made() -> EngineConnection:
            return EngineConnection(lambda connection: self._rest(connection, resting), self._all.discard)

        if target.secure and self._tls is None:
            self._tls = await asyncio.to_thread(ssl.create_default_context)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(_CONNECT_S):
                tls = self._tls if target.secure else None
                transport, connection = await loop.create_connection(made, target.host, target.port, ssl=tls)
        except TimeoutError:
            raise Unreached(f"no connection to {target.host}:{target.port} within {_CONNECT_S:g} s") from None
        except OSError as problem:  # refused, no such name, not its certificate
            raise Unreached(f"no connection to {target.host}:{target.port}: {problem}") from problem
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BYTES)
        self._all.add(connection)
        return connection

    def _rest(self, connection: EngineConnection, resting: list[EngineConnection]) -> None:
        loop = asyncio.get_running_loop()
        connection.rested_s = loop.time()
        resting.append(connection)
        if self._sweep is None:
            self._sweep = loop.call_later(self._idle_s, self._close_idle)

    def _close_idle(self) -> None:
        loop = asyncio.get_running_loop()
        due_s = loop.time() - self._idle_s
        left = False
        for resting in self._resting.values():
            idle = next((place for place, one in enumerate(resting) if one.rested_s > due_s), len(resting))
            for connection in resting[:idle]:
                connection.abort()
            del resting[:idle]
            left = left or bool(resting)
        self._sweep = loop.call_later(self._idle_s / 3, self._close_idle) if left else None


def _head(method: str, target: _Target, headers: Mapping[str, str], body: bytes | None) -> bytes:
    if target.authorization is not None and "Authorization" not in headers:
        headers = {**headers, "Authorization": target.authorization}
    lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
    if not lines.count("\r") == lines.count("\n") == len(headers):
        raise ValueError("a header's value has more than one line")  # the server's parser lets none through
    length = "" if body is None else f"Content-Length: {len(body)}\r\n"
    return f"{method}{target.start}{lines}{length}\r\n".encode("utf-8", "surrogateescape")


def retry_after_ns(value: str | None, *, now: datetime | None = None) -> int | None:
    """Retry-After in nanoseconds: seconds, or a date. None for what cannot be read; never more than an hour."""
    if value is None:
        return None
    text = value.strip()
    try:
        seconds = float(text)
    except ValueError:
        try:
            at = email.utils.parsedate_to_datetime(text)
        except (ValueError, OverflowError):
            return None
        if at.tzinfo is None:  # "-0000": a time in no zone that it tells of, which is UTC all the same
            at = at.replace(tzinfo=UTC)
        seconds = (at - (now or datetime.now(UTC))).total_seconds()
    if not math.isfinite(seconds):
        return None
    return int(min(max(seconds, 0.0), _LONGEST_RETRY_AFTER_S) * NS_PER_S)
