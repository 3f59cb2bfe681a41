"""Who of those that wait goes next, whenever room may have become free."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice

from longproof.policy.actions import Action, Dispatch
from longproof.policy.bookings import Bookings
from longproof.policy.placing import Group, Placement, Placing
from longproof.policy.queue import Ticket
from longproof.policy.request_state import Phase, Request
from longproof.policy.tally import Tally

_TRIES = 8
"""Requests of each order that are offered before a pump gives up: what does not fit is passed by, within reason."""


class WaitingRoom:
    """Offers waiting requests to replicas."""

    def __init__(self, requests: Mapping[str, Request], placing: Placing, bookings: Bookings, tally: Tally) -> None:
        self._requests = requests
        self._placing = placing
        self._bookings = bookings
        self._tally = tally

    def pump(self, group: Group, now_ns: int) -> list[Action]:
        """Let in whoever fits, in the queue's order; then see to those who are late and fit nowhere."""
        group.queue.promote(now_ns)
        actions: list[Action] = []
        while len(group.queue) and any(r.open and r.takes_new(now_ns) for r in group.replicas):
            request, placement = self._next(group, now_ns)
            if request is None or placement is None:
                break
            actions += self._let_in(request, placement, group, now_ns)
        if group.emptying is not None and group.emptying.emptying_for is not None:
            actions += self._use_room(group, group.emptying.emptying_for, now_ns)
        if group.emptying is None and group.queue.late_turn:
            self._make_room(group, now_ns)
        return actions

    def find(self, request: Request, group: Group, now_ns: int, *, look: bool = False) -> Placement:
        """`Placing.find`, with the tenant's bound of running requests."""
        placement = self._placing.find(request, group, now_ns, look=look)
        if placement.replica is None or not request.tenant.capped:
            return placement
        return Placement(None, placement.choice, None, capped=True)

    def send(self, request: Request, placement: Placement, group: Group, now_ns: int) -> Dispatch:
        """Off it goes; its room is booked."""
        replica, best = placement.replica, placement.choice.best
        assert replica is not None
        self._bookings.send(request, replica, now_ns)
        self._tally.dispatched += 1
        group.stop_emptying(request.arrival.id)
        return Dispatch(
            id=request.arrival.id,
            replica=replica.name,
            reason=placement.choice.reason,
            scores=placement.choice.scores,
            pool=replica.pool,
            input_tokens=request.arrival.input_tokens,
            cached_tokens=request.cached_tokens,
            uncached_tokens=request.uncached_tokens,
            waited_ns=now_ns - request.ticket.arrived_ns,
            predicted_ttft_ns=0 if best is None else best.predicted_ttft_ns,
            attempt=request.attempts,
            warnings=request.gate.warnings,
        )

    def _next(self, group: Group, now_ns: int) -> tuple[Request | None, Placement | None]:
        """The first in order that fits, with its room taken."""
        for ticket in self._in_turn(group):
            request = self._requests[ticket.id]
            placement = self.find(request, group, now_ns)
            if placement.replica is not None and self._placing.take(request, placement.replica):
                return request, placement
        return None, None

    @staticmethod
    def _in_turn(group: Group) -> Iterator[Ticket]:
        queue = group.queue
        late = queue.late, queue.late_small
        lanes = (*late, queue.fresh) if queue.late_turn else (queue.fresh, *late)
        for lane in lanes:
            yield from islice(lane(), _TRIES)

    def _let_in(self, request: Request, placement: Placement, group: Group, now_ns: int) -> list[Action]:
        """Its room is taken: out of the queue and off to the engine, or to the ledger alone while it is counted."""
        assert placement.replica is not None
        group.queue.served(request.ticket)
        self._bookings.unqueue(request, group)
        self._bookings.book(request, placement.replica, now_ns)
        if request.counted:
            return [self.send(request, placement, group, now_ns)]
        request.phase = Phase.COUNTING
        group.counting += 1
        group.stop_emptying(request.arrival.id)
        return []

    def _use_room(self, group: Group, request_id: str, now_ns: int) -> list[Action]:
        """Let in whom a replica is being emptied for, as soon as it fits; and empty it no longer, once there is room
        and the router would not send it there after all."""
        request, emptied = self._requests[request_id], group.emptying
        if request.phase is not Phase.WAITING or emptied is None:
            group.stop_emptying(request_id)
            return []
        placement = self.find(request, group, now_ns, look=True)
        if placement.replica is not None and self._placing.take(request, placement.replica):
            return self._let_in(request, placement, group, now_ns)
        if emptied.room_in_ns == 0 and not placement.disturbs:
            group.stop_emptying(request_id)
        return []

    def _make_room(self, group: Group, now_ns: int) -> None:
        """Keep a replica for the first of the late until it fits there: nothing else is let in meanwhile."""
        for ticket in islice(group.queue.late(), _TRIES):
            request = self._requests[ticket.id]
            replica = self._placing.to_empty(request, group, now_ns)
            if replica is not None and replica.emptying_for is None:
                replica.emptying_for, group.emptying = ticket.id, replica
                replica.emptying_since_ns = now_ns
                return
