"""Which request goes where: one table. Whatever raises `ApiError` is answered in OpenAI's form, here and nowhere
else."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from aiohttp import hdrs
from aiohttp.web import BaseRequest, Response, StreamResponse

from longproof.gateway.downstream import LAST, REQUEST_ID, shown_id
from longproof.gateway.errors import ApiError, Problem

Endpoint: TypeAlias = Callable[[BaseRequest], Awaitable[StreamResponse]]
"""Answers one request."""

_BOOT = os.urandom(4).hex()
_log = logging.getLogger("longproof.gateway")


@dataclass(slots=True)
class Routes:
    """`exact` by method and path, then the first of `prefixes` (with their trailing slash) the path begins with."""

    exact: dict[tuple[str, str], Endpoint] = field(default_factory=dict[tuple[str, str], Endpoint])
    prefixes: list[tuple[str, str, Endpoint]] = field(default_factory=list[tuple[str, str, Endpoint]])
    open: int = 0
    """Requests that are being answered."""
    asked: int = 0
    """Requests so far."""
    closing: bool = False
    """Whether connections are closed after their answer, a stream or not: the gateway drains."""

    def add(self, method: str, path: str, endpoint: Endpoint) -> None:
        """A route; a path that ends with ``/*`` takes everything below it. ValueError for one that is there already."""
        if path.endswith("/*"):
            self.prefixes.append((method, path[:-1], endpoint))
            return
        if (method, path) in self.exact:
            raise ValueError(f"{method} {path} is there twice")
        self.exact[method, path] = endpoint

    def table(self) -> list[tuple[str, str]]:
        """Method and path of every route; a path that ends with ``/*`` stands for all below it."""
        return [*self.exact, *((method, f"{prefix}*") for method, prefix, _ in self.prefixes)]

    def find(self, method: str, path: str) -> Endpoint:
        """The endpoint of a request. ApiError 404, or 405 where only the method is wrong."""
        if method == "HEAD":
            method = "GET"  # the answer's body is left out when it is written
        found = self.exact.get((method, path))
        if found is not None:
            return found
        for wanted, prefix, endpoint in self.prefixes:
            if wanted == method and path.startswith(prefix):
                return endpoint
        allowed = sorted({wanted for wanted, known in self.exact if known == path})
        if allowed:
            message = f"{path} takes {', '.join(allowed)}, not {method[:16]}"
            raise ApiError(Problem(status=405, code="method_not_allowed", message=message, allow=tuple(allowed)))
        raise not_found(method, path)

    async def __call__(self, request: BaseRequest) -> StreamResponse:
        """What `aiohttp.web.Server` calls for every request."""
        self.open += 1
        self.asked += 1
        if self.closing:
            request[LAST] = True
        try:
            response = await self.find(request.method, request.path)(request)
        except ApiError as refused:
            response = _answer(refused.problem, request)
        except asyncio.CancelledError:
            raise
        except Exception:
            _log.exception("our bug, while answering %s %r", request.method, request.path[:200])
            message = "the gateway failed in a way it should not; its log says how"
            response = _answer(Problem(status=500, code="internal_error", message=message), request)
        finally:
            self.open -= 1
        if not response.prepared:
            response.headers.setdefault(hdrs.SERVER, "longproof")
            if REQUEST_ID not in response.headers:  # what generates has one that goes to the engine, too
                response.headers[REQUEST_ID] = shown_id(request, f"lp-{_BOOT}-r{self.asked}")
            if self.closing:
                response.force_close()
        # a stream that was begun before says nothing of the end of its connection: its client may use it once more,
        # and is told then
        return response


def not_found(method: str, path: str) -> ApiError:
    """404 in OpenAI's form."""
    message = f"there is no {method[:16]} {path[:200]} here"
    return ApiError(Problem(status=404, code="not_found", message=message))


def _answer(problem: Problem, request: BaseRequest) -> Response:
    headers = {"Content-Type": "application/json"}
    if problem.retry_after_s is not None:
        headers[hdrs.RETRY_AFTER] = str(problem.retry_after_s)
    if problem.status == 401:
        headers[hdrs.WWW_AUTHENTICATE] = "Bearer"
    if problem.allow:
        headers[hdrs.ALLOW] = ", ".join(problem.allow)
    response = Response(status=problem.status, body=problem.body(), headers=headers)
    if not request.content.is_eof():
        response.force_close()  # the rest of a body nobody will read
    return response
