"""The HTTP connection to one server, for everything that is not a streamed generation."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Self

import httpx
import orjson

from longproof.clock import Clock, SystemClock
from longproof.domain.events import RequestTimeline, ServerError
from longproof.engines.address import base_url, is_loopback
from longproof.engines.base import OnContent
from longproof.engines.dial import CONNECT_TIMEOUT_S, Dialer, proxy_for
from longproof.engines.exchange import Exchange, Outgoing, describe
from longproof.engines.http_answer import Backlog
from longproof.engines.json_fields import JsonObject, as_object, decode
from longproof.engines.request_body import Prepared
from longproof.engines.secret import Secret
from longproof.engines.server_error import error_from_body
from longproof.errors import EngineProtocolError, EngineSilent, EngineUnreachable, UsageError

CALL_TIMEOUT_S = 60.0
_KEEPALIVE_S = (
    2.0  # below the 5 s after which uvicorn and llama.cpp hang up: a reused connection must never be a dying one
)
_MOST_IDLE = 32
"""Kept for the next call; one that its server closes meanwhile stays half closed until then, so they are few."""


class Refused(EngineProtocolError):  # noqa: N818 - named for what happened, as its siblings are
    """A call outside generation was answered with an error. `status` and `error` are the server's."""

    def __init__(self, what: str, *, url: str, status: int, error: ServerError) -> None:
        super().__init__(what, url=url)
        self.status = status
        self.error = error

    @property
    def absent(self) -> bool:
        """Whether this means "no such route here" rather than "no"."""
        return self.status in (404, 405, 501)


class Link:
    """One base URL, one key, over HTTP/1.1, with as many connections as asked for and no read timeout of its own.

    Calls share kept-alive connections and are sent a second time when one breaks before any answer: servers close idle
    ones without a word (llama.cpp's after 100 requests). Every generation request has a connection of its own: it is
    never sent twice, and a server that breaks it is a fact.

    Calls raise EngineUnreachable, EngineProtocolError or its child `Refused`. Proxies from the environment are not used
    for loopback addresses. Raises UsageError for an address or key that cannot be one.
    """

    def __init__(self, url: str, *, api_key: str | None = None, clock: Clock | None = None) -> None:
        self.url = base_url(url)
        self.clock: Clock = clock or SystemClock()
        if api_key is not None and (not api_key.isascii() or not api_key.isprintable()):
            raise UsageError(
                "the API key has characters that no HTTP header can carry",
                advice="check the variable named by --api-key-env",
            )
        try:
            httpx.URL(self.url)
        except httpx.InvalidURL as problem:
            raise UsageError(f"'{url}' is not a URL: {problem}", advice="check the host name") from None
        self._secret = Secret(api_key)
        self._headers = {"Accept-Encoding": "identity", "User-Agent": "longproof"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"
        tls = httpx.create_ssl_context()
        self._backlog = Backlog()
        self._dialer = Dialer(tls, proxy_for(self.url))
        self._calls = httpx.AsyncClient(
            headers=self._headers,
            timeout=httpx.Timeout(None, connect=CONNECT_TIMEOUT_S),
            limits=httpx.Limits(
                max_connections=None, max_keepalive_connections=_MOST_IDLE, keepalive_expiry=_KEEPALIVE_S
            ),
            trust_env=not is_loopback(self.url),
            verify=tls,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Closes all connections. Safe to call twice."""
        await self._calls.aclose()

    def move(self, url: str) -> None:
        """The same server, restarted, serves at another address of the same machine."""
        self.url = base_url(url)

    async def get(self, path: str, *, timeout_s: float = CALL_TIMEOUT_S) -> httpx.Response:
        """GET; the whole response, status below 400."""
        return await self._call("GET", path, None, timeout_s)

    async def post(self, path: str, body: Mapping[str, object], *, timeout_s: float = CALL_TIMEOUT_S) -> httpx.Response:
        """POST of a JSON body; the whole response, status below 400."""
        return await self._call("POST", path, orjson.dumps(body), timeout_s)

    async def get_json(self, path: str, *, timeout_s: float = CALL_TIMEOUT_S) -> JsonObject:
        """GET a JSON object."""
        return self.json_of(await self.get(path, timeout_s=timeout_s))

    async def post_json(
        self, path: str, body: Mapping[str, object], *, timeout_s: float = CALL_TIMEOUT_S
    ) -> JsonObject:
        """POST a JSON body, get a JSON object."""
        return self.json_of(await self.post(path, body, timeout_s=timeout_s))

    async def get_json_if_served(self, path: str, *, timeout_s: float = CALL_TIMEOUT_S) -> JsonObject | None:
        """GET a JSON object; None where the server has no such route, or something else than JSON behind it."""
        try:
            return await self.get_json(path, timeout_s=timeout_s)
        except EngineProtocolError:
            return None

    async def stream(
        self, prepared: Prepared, *, on_content: OnContent | None = None, leave: asyncio.Event | None = None
    ) -> RequestTimeline:
        """POST a generation request and follow its stream, until `leave` is set; never raises for what the server
        does."""
        exchange = Exchange(
            Outgoing(
                url=self.url + prepared.path,
                headers={
                    **self._headers,
                    "Content-Type": "application/json",
                    "Accept": "text/event-stream, application/json",
                    **prepared.headers,
                },
                body=prepared.body,
                request=prepared.request,
                request_id=prepared.request_id,
            ),
            clock=self.clock,
            backlog=self._backlog,
            on_content=on_content,
            leave=leave,
        )
        del prepared  # the exchange lets go of the body when it is sent; it may be megabytes
        timeline = await exchange.run(self._dialer)
        return self._secret.out_of_timeline(timeline)

    async def _call(self, method: str, path: str, body: bytes | None, timeout_s: float) -> httpx.Response:
        try:
            try:
                response = await self._request(method, path, body, timeout_s)
            except (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError):
                response = await self._request(method, path, body, timeout_s)
        except TimeoutError as problem:
            raise EngineSilent(
                f"{method} {path}: ReadTimeout: no end within {timeout_s:g} s", url=self.url
            ) from problem
        except httpx.TimeoutException as problem:
            raise EngineSilent(f"{method} {path}: {describe(problem)}", url=self.url) from problem
        except (httpx.HTTPError, OSError) as problem:
            raise EngineUnreachable(f"{method} {path}: {describe(problem)}", url=self.url) from problem
        if response.status_code < 300:
            return response
        error = self._secret.out_of_error(error_from_body(response.content))
        words = (
            self._secret.out_of(f"redirects to {response.headers.get('location', 'nowhere')}")
            if response.is_redirect
            else error.message[:500]
        )
        raise Refused(
            f"{method} {path} answered {response.status_code}: {words}",
            url=self.url,
            status=response.status_code,
            error=error,
        )

    async def _request(self, method: str, path: str, body: bytes | None, timeout_s: float) -> httpx.Response:
        async with asyncio.timeout(timeout_s):  # httpx's own limit begins anew with every byte that drips in
            return await self._calls.request(
                method,
                self.url + path,
                content=body,
                headers={} if body is None else {"Content-Type": "application/json"},
                timeout=httpx.Timeout(timeout_s, connect=min(timeout_s, CONNECT_TIMEOUT_S)),
            )

    def json_of(self, response: httpx.Response) -> JsonObject:
        """The JSON object that a response is. Raises EngineProtocolError when it is none."""
        found = as_object(self.value_of(response))
        if found is None:
            raise EngineProtocolError(f"{response.url.path} answered with JSON that is no object", url=self.url)
        return found

    def value_of(self, response: httpx.Response) -> object:
        """The JSON value that a response is. Raises EngineProtocolError when it is none."""
        try:
            return self._secret.out_of(decode(response.content))
        except ValueError:
            head = self._secret.out_of(response.text)[:200].strip()
            what = f"{response.url.path} answered {response.status_code} with something else than JSON: {head!r}"
            raise EngineProtocolError(what, url=self.url) from None
