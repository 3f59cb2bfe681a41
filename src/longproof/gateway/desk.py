"""Where requests wait for the controller's word, and the only place that tells it anything about them.

    place ─▶ on_arrival ──▶ Dispatch │ Refusal │ Wait … until an action for this request comes out of any later call
    leave ─▶ on_finish                              (counted, tick, a finish of somebody else, a sample, a replica)

The controller decides and knows no time; the desk reads the clock and carries its actions to whoever waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from longproof.clock import Clock
from longproof.gateway.ports import Controls, Counted
from longproof.policy.actions import Action, Decision, Dispatch, Refusal, Wait
from longproof.policy.arrivals import Arrival, Ended

_TICK_S = 0.05


class Ticket:
    """One request at the desk. `waited` says whether it had to."""

    __slots__ = ("_answer", "_waiter", "arrival", "waited")

    def __init__(self, arrival: Arrival) -> None:
        self.arrival = arrival
        self.waited = False
        self._answer: Dispatch | Refusal | None = None
        self._waiter: asyncio.Future[None] | None = None

    def give(self, answer: Dispatch | Refusal) -> None:
        """The controller's word; a later one overtakes an earlier one nobody has read."""
        self._answer = answer
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def answer(self) -> Dispatch | Refusal:
        """Waits for it."""
        while self._answer is None:
            self.waited = True
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        found, self._answer, self._waiter = self._answer, None, None
        return found


class Desk:
    """One controller and all who wait for it. Everything happens on one event loop."""

    def __init__(self, controller: Controls, clock: Clock) -> None:
        self.controller = controller
        self._clock = clock
        self._tickets: dict[str, Ticket] = {}
        self._ticking: asyncio.TimerHandle | None = None
        self.watchers: list[Callable[[Decision, Arrival, int], None]] = []
        """Told of every decision, with the request it is about and the time. Must not raise."""
        self.departures: list[Callable[[str, int], None]] = []
        """Told of every request that leaves, once, however it ended. Must not raise."""

    @property
    def open_requests(self) -> int:
        """Requests that arrived and have not ended."""
        return len(self._tickets)

    def arrive(self, arrival: Arrival) -> tuple[Ticket, Wait | None]:
        """A new request: its ticket, which has the answer at once where the controller has it at once; and where it has
        not, what it waits for (`counted`)."""
        ticket = self._tickets[arrival.id] = Ticket(arrival)
        now_ns = self._clock.now_ns()
        decision = self.controller.on_arrival(arrival, now_ns)
        for watch in self.watchers:
            watch(decision, arrival, now_ns)
        if isinstance(decision, Wait):
            return ticket, decision
        ticket.give(decision)
        return ticket, None

    def counted(self, request_id: str, counted: Counted) -> None:
        """Its exact length is known, or nobody can count it and its bound has to do."""
        if request_id in self._tickets:
            now_ns = self._clock.now_ns()
            actions = self.controller.on_counted(
                request_id, counted.input_tokens, counted.blocks, now_ns, by_text=counted.by_text
            )
            self.act(actions)

    def first_token(self, request_id: str) -> None:
        """Its prefill is done."""
        self.act(self.controller.on_first_token(request_id, self._clock.now_ns()))

    def output(self, request_id: str, output_tokens: int) -> None:
        """It has grown to so many tokens of output."""
        self.act(self.controller.on_output(request_id, output_tokens, self._clock.now_ns()))

    def refused(self, request_id: str, retry_after_ns: int | None) -> None:
        """The engine would not begin with it; the ticket gets another answer."""
        self.act(self.controller.on_refused_by_engine(request_id, retry_after_ns, self._clock.now_ns()))

    def leave(self, request_id: str, end: Ended) -> None:
        """It has ended, one way or another. A second call changes nothing."""
        if self._tickets.pop(request_id, None) is not None:
            self.act(self.controller.on_finish(request_id, end, self._departed(request_id)))

    def cancel(self, request_id: str) -> None:
        """Its client left before it was dispatched."""
        if self._tickets.pop(request_id, None) is not None:
            self.act(self.controller.cancel(request_id, self._departed(request_id)))

    def _departed(self, request_id: str) -> int:
        now_ns = self._clock.now_ns()
        for tell in self.departures:
            tell(request_id, now_ns)
        return now_ns

    def kv_token_ms(self, request_id: str) -> int | None:
        """The cache it has occupied so far, in token-milliseconds; ask before it leaves."""
        return self.controller.kv_token_ms(request_id, self._clock.now_ns())

    def act(self, actions: Iterable[Action]) -> None:
        """Hands actions to those they are for; one for a request that has left is dropped: its end was told already."""
        for action in actions:
            ticket = self._tickets.get(action.id)
            if ticket is not None:
                for watch in self.watchers:
                    watch(action, ticket.arrival, self._clock.now_ns())
                ticket.give(action)

    def start(self) -> None:
        """Begins with the ticks that let deadlines pass and requests age."""
        loop = asyncio.get_running_loop()

        def tick() -> None:
            self._ticking = loop.call_later(_TICK_S, tick)
            self.act(self.controller.on_tick(self._clock.now_ns()))

        self._ticking = loop.call_later(_TICK_S, tick)

    def stop(self) -> None:
        """Ends the ticks."""
        if self._ticking is not None:
            self._ticking.cancel()
            self._ticking = None
