"""When those who wait have waited long enough."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from longproof.policy.request_state import Request


class Expiries:
    """Deadlines and the longest wait, by time. Entries of requests that no longer wait are dropped when their time
    comes."""

    def __init__(self, longest_wait_ns: int) -> None:
        self._longest_wait_ns = longest_wait_ns
        self._due: list[tuple[int, str, bool]] = []

    def watch(self, request: Request) -> None:
        """It waits; once per request is enough."""
        if request.watched:
            return
        request.watched = True
        arrival = request.arrival
        at_ns, is_deadline = request.ticket.arrived_ns + self._longest_wait_ns, False
        if arrival.deadline_ns is not None and arrival.deadline_ns < at_ns:
            at_ns, is_deadline = arrival.deadline_ns, True
        heapq.heappush(self._due, (at_ns, arrival.id, is_deadline))

    def due(self, now_ns: int) -> Iterator[tuple[str, bool]]:
        """(request, whether by its deadline) of those whose time has come."""
        while self._due and self._due[0][0] <= now_ns:
            _, request_id, is_deadline = heapq.heappop(self._due)
            yield request_id, is_deadline
