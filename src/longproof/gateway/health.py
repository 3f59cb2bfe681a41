"""Is it alive, and should it get requests? For load balancers: no key is asked for, and nothing else is told."""

from __future__ import annotations

from collections.abc import Callable

import orjson
from aiohttp.web import BaseRequest, Response, StreamResponse


class Health:
    """`problem` gives the reason why nothing can be served now, None when all is well."""

    def __init__(self, problem: Callable[[], str | None]) -> None:
        self._problem = problem
        self.draining = False

    async def live(self, _: BaseRequest) -> StreamResponse:
        """GET /health, /live: the process answers. 200 even while it drains: it must not be killed then."""
        return _json(200, "draining" if self.draining else "ok")

    async def ready(self, _: BaseRequest) -> StreamResponse:
        """GET /ready: 503 while it drains, and while no replica is up."""
        if self.draining:
            return _json(503, "draining")
        problem = self._problem()
        return _json(200, "ok") if problem is None else _json(503, problem)


def _json(status: int, word: str) -> Response:
    headers = {"Content-Type": "application/json", **({} if status == 200 else {"Retry-After": "1"})}
    return Response(status=status, body=orjson.dumps({"status": word}), headers=headers)
