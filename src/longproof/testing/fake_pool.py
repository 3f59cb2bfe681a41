"""Admission: a number of slots and a pool of KV tokens, first come, first served.

need ≤ free, slot free      runs at once
need ≤ capacity             waits its turn, or is refused as busy (OverCapacity.REFUSE, tokens short)
need > capacity             REFUSE: refused · HANG: never runs, others pass it · QUEUE: blocks all behind it
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum


class OverCapacity(StrEnum):
    """What happens to a request for which the KV pool has no room."""

    REFUSE = "refuse"
    HANG = "hang"
    QUEUE = "queue"


class PoolRefusal(Exception):  # noqa: N818 - not an error of ours: it becomes the HTTP answer
    """The request was refused for want of KV tokens; `ever` says whether it could run in an empty pool."""

    def __init__(self, *, need_tokens: int, capacity_tokens: int, free_tokens: int) -> None:
        super().__init__(f"needs {need_tokens}, free {free_tokens} of {capacity_tokens}")
        self.need_tokens = need_tokens
        self.capacity_tokens = capacity_tokens
        self.free_tokens = free_tokens

    @property
    def ever(self) -> bool:
        return self.need_tokens <= self.capacity_tokens


@dataclass(eq=False, slots=True, kw_only=True)
class Ticket:
    """A request's place: waiting until `admitted` is set."""

    need_tokens: int
    admitted: asyncio.Event = field(default_factory=asyncio.Event)


class Pool:
    """Slots and KV tokens. Lives in the server's event loop; law: used + free = capacity, and a ticket leaves exactly
    once."""

    def __init__(self, *, slots: int, capacity_tokens: int, over_capacity: OverCapacity) -> None:
        self.slots = slots
        self.capacity_tokens = capacity_tokens
        self._over_capacity = OverCapacity(over_capacity)
        self._running: set[Ticket] = set()
        self._waiting: deque[Ticket] = deque()
        self._stranded: set[Ticket] = set()

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return len(self._waiting) + len(self._stranded)

    @property
    def used_tokens(self) -> int:
        return sum(ticket.need_tokens for ticket in self._running)

    def enter(self, need_tokens: int, *, strand: bool = False) -> Ticket:
        """A ticket, admitted or waiting. Raises PoolRefusal where the policy refuses. `strand`: it shall never be
        admitted."""
        ticket = Ticket(need_tokens=need_tokens)
        if strand or (need_tokens > self.capacity_tokens and self._over_capacity is OverCapacity.HANG):
            self._stranded.add(ticket)
            return ticket
        free = self.capacity_tokens - self.used_tokens
        if need_tokens > free and self._over_capacity is OverCapacity.REFUSE:
            raise PoolRefusal(need_tokens=need_tokens, capacity_tokens=self.capacity_tokens, free_tokens=free)
        self._waiting.append(ticket)
        self._admit()
        return ticket

    def leave(self, ticket: Ticket) -> None:
        """Gives back what a ticket holds, or its place in the queue."""
        self._running.discard(ticket)
        self._stranded.discard(ticket)
        if ticket in self._waiting:
            self._waiting.remove(ticket)
        self._admit()

    def _admit(self) -> None:
        while self._waiting and len(self._running) < self.slots:
            if self._waiting[0].need_tokens > self.capacity_tokens - self.used_tokens:
                return
            ticket = self._waiting.popleft()
            self._running.add(ticket)
            ticket.admitted.set()
