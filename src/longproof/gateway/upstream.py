"""The engines' side: one connection pool, one replica's address and key, one request on its way.

post ──▶ not connected ─────────▶ Unreached     nothing was sent: another replica may be asked
     └─▶ lost before a status ──▶ Lost          it may have been generated: nobody may be asked again
     └─▶ 429, 503 ──────────────▶ Refused       the engine did not begin: another replica may be asked
     └─▶ any other status ──────▶ the response
"""

from __future__ import annotations

import asyncio
import email.utils
import math
from datetime import UTC, datetime
from types import TracebackType

import aiohttp
from aiohttp import hdrs
from aiohttp.abc import AbstractStreamWriter
from aiohttp.payload import Payload
from yarl import URL

from longproof.clock import NS_PER_S

_CONNECT_S = 5.0
_IDLE_S = 3.0  # uvicorn (vLLM, SGLang) and llama.cpp close idle connections after 5 s; ours must go first
_READ_BYTES = 1 << 18
_LONGEST_RETRY_AFTER_S = 3_600


class Unreached(Exception):  # noqa: N818 - named for what happened
    """No connection could be made: the engine has seen nothing of the request."""


class Lost(Exception):  # noqa: N818 - named for what happened
    """The connection broke after the request was sent and before an answer began."""


class Refused(Exception):  # noqa: N818 - named for what happened
    """The engine would not begin: 429 or 503. `retry_after_ns` as it says, None where it says nothing."""

    def __init__(self, status: int, retry_after_ns: int | None) -> None:
        super().__init__(f"refused with {status}")
        self.status = status
        self.retry_after_ns = retry_after_ns


class Whole(Payload):
    """A body that is there already. aiohttp's own payload for bytes warns above 1 MiB, and asks to be given a file."""

    _default_content_type = "application/json"
    _autoclose = True

    def __init__(self, value: bytes, content_type: str) -> None:
        super().__init__(value, content_type=content_type)
        self._size = len(value)

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        return self._value.decode(encoding, errors)

    async def write(self, writer: AbstractStreamWriter) -> None:
        await writer.write(self._value)

    async def write_with_length(self, writer: AbstractStreamWriter, content_length: int | None) -> None:
        await writer.write(self._value if content_length is None else self._value[:content_length])


class Upstream:
    """The pool of connections to all replicas. `async with` it."""

    def __init__(self, *, ssl_ca: str | None = None) -> None:
        self._ssl_ca = ssl_ca
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Upstream:
        self._session = aiohttp.ClientSession(
            # no limit: admission limits, and a waiting connection would be a second, hidden queue
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_IDLE_S, ttl_dns_cache=60),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S),
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=(hdrs.USER_AGENT, hdrs.ACCEPT_ENCODING, hdrs.ACCEPT),
            read_bufsize=_READ_BYTES,
            trust_env=False,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()
            await asyncio.sleep(0)  # transports end a turn of the loop after they were closed

    async def send(
        self, url: URL, headers: dict[str, str], body: bytes | None, *, method: str = "POST"
    ) -> aiohttp.ClientResponse:
        """Sends a request and waits for its status, however long that takes. Unreached, Lost."""
        assert self._session is not None
        data = None if body is None else Whole(body, headers.get("Content-Type", "application/json"))
        try:
            # redirects are never followed: an engine must not send the gateway to an address of its choice
            return await self._session.request(method, url, data=data, headers=headers, allow_redirects=False)
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as problem:
            raise Unreached(str(problem)) from problem
        except (aiohttp.ClientError, ConnectionError) as problem:
            raise Lost(str(problem) or type(problem).__name__) from problem


def drop(response: aiohttp.ClientResponse) -> None:
    """Breaks an exchange off at once: whatever is still to be written is thrown away, and the engine sees a reset."""
    connection = response.connection
    transport = None if connection is None else connection.transport
    if isinstance(transport, asyncio.WriteTransport):
        transport.abort()
    response.close()


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
