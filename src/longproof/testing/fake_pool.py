"""Admission: a number of slots and a pool of KV blocks, first come, first served.

need ≤ free, slot free      runs at once
need ≤ capacity             waits its turn, or is refused as busy (OverCapacity.REFUSE, tokens short)
need > capacity             REFUSE: refused · HANG: never runs, others pass it · QUEUE: blocks all behind it
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum

from longproof.testing.kv_blocks import KvBlocks


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
    """A request's place: waiting until `admitted` is set. `task` is the request's number, `slot` where it runs,
    `blocks` what it holds."""

    need_tokens: int
    task: int = -1
    admitted: asyncio.Event = field(default_factory=asyncio.Event)
    slot: int | None = None
    blocks: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauges:
    """What the metrics show of a moment."""

    running: int = 0
    waiting: int = 0
    used_tokens: int = 0


class Pool:
    """Slots and KV blocks. Lives in the server's event loop; law: used + free = capacity, and a ticket leaves exactly
    once. A request takes all that it may need when it is admitted."""

    def __init__(self, *, slots: int, capacity_tokens: int, over_capacity: OverCapacity, block_tokens: int = 1) -> None:
        self.slots = slots
        self.capacity_tokens = capacity_tokens
        self.blocks = KvBlocks(capacity_tokens=capacity_tokens, block_tokens=block_tokens)
        self._over_capacity = OverCapacity(over_capacity)
        self._running: list[Ticket] = []
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
        return self.blocks.used_tokens

    @property
    def gauges(self) -> Gauges:
        """What the engine says of itself: here the truth."""
        return Gauges(running=self.running, waiting=self.waiting, used_tokens=self.used_tokens)

    @property
    def slot_tasks(self) -> list[int | None]:
        """The number of the request in each slot."""
        by_slot = {ticket.slot: ticket.task for ticket in self._running}
        return [by_slot.get(slot) for slot in range(self.slots)]

    def enter(self, need_tokens: int, *, strand: bool = False, task: int = -1) -> Ticket:
        """A ticket, admitted or waiting. Raises PoolRefusal where the policy refuses. `strand`: it shall never be
        admitted."""
        ticket = Ticket(need_tokens=need_tokens, task=task)
        self.queue(ticket, strand=strand)
        return ticket

    def queue(self, ticket: Ticket, *, strand: bool = False) -> None:
        """Puts a ticket in the queue, as `enter` does."""
        need, free = self.blocks.of(ticket.need_tokens), self.blocks.free
        too_large = need > self.blocks.capacity
        if strand or (too_large and self._over_capacity is OverCapacity.HANG):
            self._stranded.add(ticket)
            return
        if need > free and self._over_capacity is OverCapacity.REFUSE:
            raise PoolRefusal(
                need_tokens=ticket.need_tokens,
                capacity_tokens=self.capacity_tokens,
                free_tokens=free * self.blocks.block_tokens,
            )
        self._waiting.append(ticket)
        self._admit()

    def leave(self, ticket: Ticket, *, after_s: float = 0.0) -> None:
        """Gives back what a ticket holds, or its place in the queue; what runs does so `after_s` later."""
        if after_s and ticket in self._running:
            asyncio.get_running_loop().call_later(after_s, self.leave, ticket)
            return
        self._stranded.discard(ticket)
        if ticket in self._waiting:
            self._waiting.remove(ticket)
        self._stop(ticket)
        self._give(ticket)
        self._admit()

    def park(self, ticket: Ticket) -> None:
        """It runs no longer, but its blocks stay taken until it leaves: another engine is to read them."""
        self._stop(ticket)
        self._admit()

    def _stop(self, ticket: Ticket) -> None:
        if ticket in self._running:
            self._running.remove(ticket)
        ticket.slot = None

    def _give(self, ticket: Ticket) -> None:
        self.blocks.give(ticket.blocks)
        ticket.blocks = 0

    def _run(self, ticket: Ticket) -> None:
        taken = {running.slot for running in self._running}
        ticket.slot = next(slot for slot in range(self.slots) if slot not in taken)
        self._running.append(ticket)
        ticket.admitted.set()

    def _take(self, ticket: Ticket, blocks: int) -> None:
        self.blocks.take(blocks)
        ticket.blocks += blocks

    def _admit(self) -> None:
        while self._waiting and self.running < self.slots:
            need = self.blocks.of(self._waiting[0].need_tokens)
            if need > self.blocks.free:
                return
            ticket = self._waiting.popleft()
            self._take(ticket, need)
            self._run(ticket)
