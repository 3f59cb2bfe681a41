"""The live dashboard: one page without a build step, fed by server-sent events.

    GET /dashboard           the page: no data in it, so no key is asked for
    GET /dashboard/events    history once, then a view every second: for admin keys

The page reads the stream with `fetch`, not EventSource, because only that can send an Authorization header: no key is
ever in a URL or a cookie. Everything from requests and servers is put in as text. The policy in the page's headers
allows no script, style or address but its own.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import logging
from collections.abc import Callable
from functools import cache
from importlib.resources import files

from aiohttp.web import BaseRequest, Response, StreamResponse

from longproof.domain.palette import css_variables
from longproof.gateway.dashboard_view import History, Sources, view
from longproof.gateway.errors import ApiError, Problem

EVERY_S = 1.0
MOST_WATCHERS = 32
_CLIENT_STALLS_S = 10.0
_log = logging.getLogger("longproof.gateway")

Guard = Callable[[BaseRequest], None]
"""Raises ApiError for a request that may not see the fleet."""


class Dashboard:
    """Call `start` on the event loop and `close` before it drains: watching never keeps a gateway alive."""

    def __init__(self, sources: Sources, guard: Guard, *, every_s: float = EVERY_S) -> None:
        self._sources, self._guard, self._every_s = sources, guard, every_s
        self._history = History()
        self._view = b""
        self._watchers: set[asyncio.Event] = set()
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    def start(self) -> None:
        """Begins to sample."""
        self._sample()
        self._task = asyncio.create_task(self._sample_for_ever(), name="dashboard")

    def close(self) -> None:
        """Ends every stream."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
        for watcher in self._watchers:
            watcher.set()

    async def page(self, _: BaseRequest) -> StreamResponse:
        """GET /dashboard."""
        body, policy = _page()
        headers = {
            "Content-Type": "text/html; charset=utf-8",
            "Content-Security-Policy": policy,
            "Cache-Control": "no-cache",
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
        }
        return Response(body=body, headers=headers)

    async def events(self, request: BaseRequest) -> StreamResponse:
        """GET /dashboard/events. ApiError as the guard says, and 503 when too many watch already."""
        self._guard(request)
        if request.method == "HEAD":  # aiohttp would write the stream: bytes that nobody behind a proxy expects
            return Response(headers={"Content-Type": "text/event-stream"})
        if len(self._watchers) >= MOST_WATCHERS:
            message = f"{MOST_WATCHERS} pages watch this gateway already; close one"
            raise ApiError(Problem(status=503, code="too_many_watchers", message=message, retry_after_ns=10**10))
        response = StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"})
        await response.prepare(request)
        fleet, news = self._sources.fleet(), asyncio.Event()
        self._view = view(self._sources, None, fleet)
        self._watchers.add(news)
        try:
            await self._tell(response, b"history", self._history.encoded())
            while not self._closed:
                await self._tell(response, b"view", self._view)
                await news.wait()
                news.clear()
        except (ConnectionError, TimeoutError):
            response.force_close()  # it left, or reads too slowly to be told anything new
        finally:
            self._watchers.discard(news)
        return response

    async def _tell(self, response: StreamResponse, name: bytes, data: bytes) -> None:
        async with asyncio.timeout(_CLIENT_STALLS_S):
            await response.write(b"event: %s\ndata: %s\n\n" % (name, data))

    async def _sample_for_ever(self) -> None:
        while True:
            await asyncio.sleep(self._every_s)
            try:
                self._sample()
            except Exception:  # the next view may be possible, and pages would go on showing the last one as news
                _log.exception("sampling for the dashboard")

    def _sample(self) -> None:
        fleet = self._sources.fleet()
        sample = self._history.add(fleet)
        if self._watchers:
            self._view = view(self._sources, sample, fleet)
        for watcher in self._watchers:
            watcher.set()


@cache
def _page() -> tuple[bytes, str]:
    """The page and the policy that goes with it: hashes of its one style and its one script."""
    style = css_variables() + "\n" + _part("dashboard.css")
    script = _part("dashboard.js")
    body = _part("dashboard.html").replace("/*style*/", style).replace("/*script*/", script)
    policy = (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; connect-src 'self';"
        " img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return body.encode(), policy


def _part(name: str) -> str:
    return files("longproof.gateway").joinpath("pages", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"
