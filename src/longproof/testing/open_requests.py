"""Requests that are under way, by the id that an order to abort names them by."""

from __future__ import annotations

from longproof.testing.engine_log import Served
from longproof.testing.presence import Presence


class OpenRequests:
    """Who is here."""

    def __init__(self) -> None:
        self._by_id: dict[str, tuple[Presence, Served]] = {}

    def enter(self, request_id: str, client: Presence, served: Served) -> None:
        self._by_id[request_id] = client, served

    def leave(self, request_id: str) -> None:
        self._by_id.pop(request_id, None)

    def abort(self, request_ids: list[str]) -> int:
        """Aborts those named, all when none is named; how many ids the order held or, without any, who was here.

        vLLM 0.32 answers with the same number (entrypoints/rl/online/api_router.py).
        """
        named = request_ids or list(self._by_id)
        for request_id in named:
            if request_id in self._by_id:
                self._by_id[request_id][0].abort()
        return len(named)

    def beside(self, served: Served) -> Served | None:
        """Another request that runs now, the oldest."""
        others = (other for _, other in self._by_id.values() if other is not served)
        return next((other for other in others if other.admitted_ns is not None), None)
