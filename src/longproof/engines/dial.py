"""Opens the connection of a generation request: TCP, TLS where the URL says https, through a proxy where the
environment names one.

    http              TCP ─▶ POST /path
    https             TCP ─▶ TLS ─▶ POST /path
    http by proxy     TCP to the proxy ─▶ POST http://host/path
    https by proxy    TCP to the proxy ─▶ CONNECT host:port ─▶ TLS ─▶ POST /path
"""

from __future__ import annotations

import asyncio
import base64
import ssl
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import unquote

import httpx

from longproof.engines.address import is_loopback
from longproof.errors import UsageError

CONNECT_TIMEOUT_S = 15.0
_PORTS = {"http": 80, "https": 443}
_LONGEST_PROXY_ANSWER_BYTES = 64 * 1024
P = TypeVar("P", bound=asyncio.BaseProtocol)


@dataclass(frozen=True, slots=True, kw_only=True)
class Proxy:
    """An HTTP proxy; `authorization` is the header's value, None without a user name in its address."""

    host: str
    port: int
    authorization: str | None = None


def proxy_for(url: str) -> Proxy | None:
    """The proxy that the environment (http_proxy, https_proxy, all_proxy, no_proxy) names for a base URL; None for
    loopback addresses. Raises UsageError for a proxy that is none of HTTP."""
    if is_loopback(url):
        return None
    parts = httpx.URL(url)
    named = urllib.request.getproxies_environment()
    address = named.get(parts.scheme) or named.get("all")
    if not address or urllib.request.proxy_bypass(f"{parts.host}:{parts.port or _PORTS[parts.scheme]}"):
        return None
    proxy = httpx.URL(address if "://" in address else f"http://{address}")
    if proxy.scheme != "http" or not proxy.host:
        raise UsageError(
            f"the environment's proxy for {url} is {proxy.scheme}://{proxy.host}, and only http:// ones are spoken",
            advice="name an HTTP proxy, or add the server's host to no_proxy",
        )
    authorization = None
    if proxy.username or proxy.password:
        pair = f"{unquote(proxy.username)}:{unquote(proxy.password)}".encode()
        authorization = f"Basic {base64.b64encode(pair).decode()}"
    return Proxy(host=proxy.host, port=proxy.port or 80, authorization=authorization)


class Dialer:
    """Opens connections to where a URL points. Holds no connection itself."""

    def __init__(self, tls: ssl.SSLContext, proxy: Proxy | None) -> None:
        self._tls = tls
        self._proxy = proxy

    def request_target(self, url: httpx.URL) -> bytes:
        """What stands in the request line: a path, or the whole URL where a proxy has to know it."""
        if self._proxy is None or url.scheme == "https":
            return url.raw_path
        return b"http://" + url.netloc + url.raw_path

    def headers(self, url: httpx.URL) -> dict[str, str]:
        """Headers that the way needs: the proxy's authorization, where it reads the request itself."""
        if self._proxy is None or self._proxy.authorization is None or url.scheme == "https":
            return {}
        return {"Proxy-Authorization": self._proxy.authorization}

    async def dial(self, url: httpx.URL, protocol: Callable[[], P]) -> P:
        """A connected protocol. Raises httpx.ConnectError or ConnectTimeout."""
        limit = asyncio.timeout(CONNECT_TIMEOUT_S)
        try:
            async with limit:
                return await self._connect(url, protocol)
        except TimeoutError as problem:
            if limit.expired():
                raise httpx.ConnectTimeout(f"no connection within {CONNECT_TIMEOUT_S:g} s") from problem
            raise httpx.ConnectError(str(problem)) from problem
        except (OSError, ssl.SSLError, UnicodeError) as problem:
            raise httpx.ConnectError(str(problem) or repr(problem)) from problem

    async def _connect(self, url: httpx.URL, protocol: Callable[[], P]) -> P:
        loop = asyncio.get_running_loop()
        host, port = url.raw_host.decode(), url.port or _PORTS[url.scheme]
        secure = url.scheme == "https"
        if self._proxy is None:
            _, made = await loop.create_connection(
                protocol, host, port, ssl=self._tls if secure else None, server_hostname=host if secure else None
            )
            return made
        if not secure:
            _, made = await loop.create_connection(protocol, self._proxy.host, self._proxy.port)
            return made
        return await self._through(self._proxy, host, port, protocol)

    async def _through(self, proxy: Proxy, host: str, port: int, protocol: Callable[[], P]) -> P:
        loop = asyncio.get_running_loop()
        where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        transport, tunnel = await loop.create_connection(lambda: _Tunnel(where, proxy), proxy.host, proxy.port)
        try:
            await tunnel.opened
            made = protocol()
            secured = await loop.start_tls(transport, made, self._tls, server_hostname=host)
        except BaseException:
            transport.abort()
            raise
        if secured is None:
            raise ConnectionError("the proxy closed the connection during the TLS handshake")
        made.connection_made(secured)
        return made


class _Tunnel(asyncio.Protocol):
    """Asks a proxy for a way through; `opened` is done when there is one, or fails with what the proxy said."""

    def __init__(self, where: str, proxy: Proxy) -> None:
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        lines = [f"CONNECT {where} HTTP/1.1", f"Host: {where}"]
        if proxy.authorization is not None:
            lines.append(f"Proxy-Authorization: {proxy.authorization}")
        self._ask = "\r\n".join([*lines, "", ""]).encode()
        self._heard = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        transport.write(self._ask)

    def data_received(self, data: bytes) -> None:
        self._heard += data
        head, whole, _ = self._heard.partition(b"\r\n\r\n")
        if self.opened.done() or not (whole or len(self._heard) > _LONGEST_PROXY_ANSWER_BYTES):
            return
        line = head.split(b"\r\n")[0].decode("latin-1")
        if line.split(" ")[1:2] and line.split(" ")[1].startswith("2"):
            self.opened.set_result(None)
        else:
            self.opened.set_exception(ConnectionError(f"the proxy answered: {line[:200]}"))

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.opened.done():
            self.opened.set_exception(exc or ConnectionError("the proxy closed the connection"))
