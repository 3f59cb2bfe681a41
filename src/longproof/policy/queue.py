"""The order in which waiting requests are offered to the replicas.

    fresh   per tenant by (priority, work), between tenants by virtual finish: service had + work, per weight
    late    waited longer than the age bound: per tenant by arrival, between tenants by service had

Shortest work first is what keeps the median wait low under overload; alone it starves the long ones. So who is late no
longer loses by size, and the late get a share of all work that is let in: neither a flood of short requests nor a row
of giants has it all. Between tenants, whoever had less service goes first, so a flood of one tenant delays itself.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field

from longproof.policy.controller_config import QueueRule
from longproof.policy.queue_load import Ahead, QueueLoad
from longproof.policy.tenants import Tenant


@dataclass(slots=True, eq=False)
class Ticket:
    """One waiting request. `work_ns`: the prefill it would be; `tokens`: what it would hold. Both stay as they are
    while it waits. `number` rises with every arrival and is its name here."""

    id: str
    tenant: Tenant
    priority: int
    work_ns: int
    arrived_ns: int
    number: int
    tokens: int = 0
    late: bool = False


_Key = tuple[int, int, int]


@dataclass(slots=True, eq=False)
class _Line:
    """One tenant's waiting requests. `ages`: the fresh ones by arrival."""

    tenant: Tenant
    fresh: list[_Key] = field(default_factory=list[_Key])
    ages: OrderedDict[int, Ticket] = field(default_factory=OrderedDict[int, Ticket])
    late: OrderedDict[int, Ticket] = field(default_factory=OrderedDict[int, Ticket])
    late_sizes: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])

    def drop_fresh(self, ticket: Ticket) -> None:
        key = (ticket.priority, ticket.work_ns, ticket.number)
        del self.fresh[bisect_left(self.fresh, key)]
        del self.ages[ticket.number]

    def drop_late(self, ticket: Ticket) -> None:
        del self.late_sizes[bisect_left(self.late_sizes, (ticket.work_ns, ticket.number))]
        del self.late[ticket.number]


class FairQueue:
    """The waiting requests of one group of replicas."""

    def __init__(self, rule: QueueRule) -> None:
        self._rule = rule
        self._lines: dict[int, _Line] = {}
        self._tickets: dict[int, Ticket] = {}
        self._load = QueueLoad()
        self._late_served = 0
        self._fresh_served = 0
        self._late_count = 0

    def __len__(self) -> int:
        return len(self._tickets)

    def add(self, ticket: Ticket) -> None:
        """It waits from now on; where it stands depends on `arrived_ns`, not on when it is added."""
        line = self._lines.get(id(ticket.tenant))
        if line is None:
            line = self._lines[id(ticket.tenant)] = _Line(ticket.tenant)
        self._tickets[ticket.number] = ticket
        ticket.late = False
        insort(line.fresh, (ticket.priority, ticket.work_ns, ticket.number))
        came_back = bool(line.ages) and next(reversed(line.ages)) > ticket.number  # an engine had refused it
        line.ages[ticket.number] = ticket
        if came_back:
            line.ages = OrderedDict(sorted(line.ages.items()))
        self._load.add(ticket.work_ns, ticket.tokens)

    def remove(self, ticket: Ticket) -> None:
        """It waits no longer. Nothing happens if it did not."""
        if self._tickets.pop(ticket.number, None) is None:
            return
        line = self._lines[id(ticket.tenant)]
        if ticket.late:
            line.drop_late(ticket)
            self._late_count -= 1
            self._load.drop_late(ticket.work_ns, ticket.tokens)
            if not self._late_count:
                self._late_served = self._fresh_served = 0
        else:
            line.drop_fresh(ticket)
            self._load.drop(ticket.work_ns, ticket.tokens)
        if not line.ages and not line.late:
            del self._lines[id(ticket.tenant)]

    def served(self, ticket: Ticket) -> None:
        """It was let in: its work counts for its lane. To be called before `remove`."""
        if self._late_count:
            if ticket.late:
                self._late_served += ticket.work_ns
            else:
                self._fresh_served += ticket.work_ns

    def promote(self, now_ns: int) -> None:
        """Whoever has waited for the age bound is late from now on."""
        cutoff = now_ns - self._rule.age_bound_ns
        for line in self._lines.values():
            while line.ages:
                ticket = next(iter(line.ages.values()))
                if ticket.arrived_ns > cutoff:
                    break
                line.drop_fresh(ticket)
                ticket.late = True
                line.late[ticket.number] = ticket
                insort(line.late_sizes, (ticket.work_ns, ticket.number))
                self._late_count += 1
                self._load.drop(ticket.work_ns, ticket.tokens)
                self._load.add_late(ticket.work_ns, ticket.tokens)

    @property
    def late_turn(self) -> bool:
        """Whether the late have had less than their share of the work let in since somebody is late."""
        if not self._late_count:
            return False
        if self._late_count == len(self._tickets):
            return True
        share = self._rule.overdue_share
        return self._late_served * (1 - share) <= self._fresh_served * share and share > 0

    def late(self) -> Iterator[Ticket]:
        """The late, in their order. The queue must not change while this or the next two are read; tenants that run as
        many as they may are passed by."""
        for line in self._in_turn(self._late_lines()):
            yield from line.late.values()

    def late_small(self) -> Iterator[Ticket]:
        """The late, the least work first: who may pass by those that fit nowhere yet."""
        for line in self._in_turn(self._late_lines()):
            yield from (line.late[number] for _, number in line.late_sizes)

    def fresh(self) -> Iterator[Ticket]:
        """Those within the age bound, in their order."""
        lines = [line for line in self._lines.values() if line.fresh and not line.tenant.capped]
        if len(lines) == 1:
            return (self._tickets[key[2]] for key in lines[0].fresh)
        merged = heapq.merge(*(self._keyed(line) for line in lines))
        return (self._tickets[key[2]] for key in merged)

    def ahead_of(self, work_ns: int) -> Ahead:
        """What is served before a new request of `work_ns`, as things stand."""
        return self._load.ahead_of(work_ns, self._rule.overdue_share)

    def in_order_of_arrival(self) -> Iterator[Ticket]:
        """All of them."""
        return (self._tickets[number] for number in sorted(self._tickets))

    def _late_lines(self) -> list[_Line]:
        return [line for line in self._lines.values() if line.late and not line.tenant.capped]

    @staticmethod
    def _in_turn(lines: list[_Line]) -> list[_Line]:
        """The least served tenant first, of equals the one that has waited longest."""
        return sorted(lines, key=lambda line: (line.tenant.virtual_ns, next(iter(line.late))))

    def _keyed(self, line: _Line) -> Iterator[tuple[int, float, int]]:
        start, weight = line.tenant.virtual_ns, line.tenant.rule.weight
        return ((priority, start + work / weight, number) for priority, work, number in line.fresh)
