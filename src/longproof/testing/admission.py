"""A request's way into the pool and out of it, in either kind of engine: apart, or among others in steps."""

from __future__ import annotations

from longproof.clock import NS_PER_S
from longproof.testing.ask import Ask
from longproof.testing.engine_log import Served
from longproof.testing.engine_state import EngineState
from longproof.testing.fake_pool import Ticket
from longproof.testing.lie import Lie, find
from longproof.testing.lies import Hang, IgnoreCold
from longproof.testing.lies_of_load import AdmitThenHang, LeakKv, LostAbortCounter, SlowCancel
from longproof.testing.pace import InSteps, Pace, Timetable
from longproof.testing.presence import Presence
from longproof.testing.scheduler import Seat


class Admission:
    """One request's place. `enter` first, `leave` in any case; `hangs` and `pace` mean something once it is
    admitted."""

    def __init__(self, state: EngineState, served: Served, client: Presence, ask: Ask, lies: tuple[Lie, ...]) -> None:
        self._state = state
        self._served = served
        self._client = client
        self._ask = ask
        self._lies = lies
        self._ticket: Ticket | None = None
        self._entered_ns = state.clock.now_ns()
        self.hangs = False

    def enter(self, allowance_tokens: int, output_tokens: int, *, keeps: bool) -> None:
        """Into the queue or straight in. Raises PoolRefusal. `keeps`: its blocks are to be read by another engine."""
        state, served = self._state, self._served
        need, strand = served.read_tokens + allowance_tokens, find(self._lies, Hang) is not None
        self._entered_ns = state.clock.now_ns()
        if state.scheduler is None or state.steps is None:
            self._ticket = state.pool.enter(need, strand=strand, task=served.index)
            return
        seat = Seat(
            need_tokens=need,
            task=served.index,
            prompt_tokens=served.read_tokens,
            output_tokens=max(output_tokens, 1),
            lies=self._lies,
            look_up=self._look_up,
            keeps=keeps,
        )
        state.scheduler.queue(seat, strand=strand)
        self._ticket = seat
        state.steps.start(lambda: state.behaviour)

    async def admitted(self) -> None:
        """Waits for the pool. Raises ClientLeft and Aborted."""
        ticket, state, served = self._ticket, self._state, self._served
        assert ticket is not None
        state.slowness.queue(state.pool.waiting, state.behaviour, state.clock.now_ns())
        await self._client.wait_for(ticket.admitted)
        served.admitted_ns = ticket.admitted_ns if isinstance(ticket, Seat) else state.clock.now_ns()
        state.counters.queue.observe((served.admitted_ns - self._entered_ns) / NS_PER_S)
        if isinstance(ticket, Seat):
            self.hangs = ticket.frozen
            served.cached_tokens = 0 if served.transferred_tokens else ticket.cached
        else:
            lie = find(self._lies, AdmitThenHang)
            self.hangs = lie is not None and state.pool.running > lie.beside
            served.cached_tokens = 0 if served.transferred_tokens else self._look_up()

    def pace(self) -> Pace:
        """When its tokens come."""
        ticket, served = self._ticket, self._served
        if isinstance(ticket, Seat):
            return InSteps(self._state, self._client, self._lies, ticket)
        return Timetable(
            self._state,
            self._client,
            self._lies,
            started_ns=served.admitted_ns or self._entered_ns,
            uncached_tokens=served.read_tokens - served.cached_tokens - served.transferred_tokens,
        )

    @property
    def blocks(self) -> int:
        """What it holds of the pool."""
        return 0 if self._ticket is None else self._ticket.blocks

    def park(self) -> Ticket | None:
        """Leaves, but its blocks stay taken until the ticket that this gives leaves the pool."""
        ticket, self._ticket = self._ticket, None
        if ticket is not None:
            self._state.pool.park(ticket)
            self._note_preemptions(ticket)
        return ticket

    def leave(self, *, cancelled: bool, finished: bool) -> None:
        """Gives back what it holds, but for what the lies keep."""
        ticket, state = self._ticket, self._state
        if ticket is None:
            return
        self._note_preemptions(ticket)
        ran = ticket.admitted.is_set()
        slow, leak = find(self._lies, SlowCancel), find(self._lies, LeakKv)
        state.pool.leave(ticket, after_s=slow.for_s if cancelled and slow is not None else 0.0)
        if leak is not None and ran and ((cancelled and leak.on != "finish") or (finished and leak.on != "cancel")):
            state.pool.blocks.leak(leak.blocks)
        if cancelled and find(self._lies, LostAbortCounter) is None:
            state.counters.finish("abort")

    def _note_preemptions(self, ticket: Ticket) -> None:
        self._state.counters.preemptions.observe(ticket.preemptions if isinstance(ticket, Seat) else 0)
        if isinstance(ticket, Seat):
            self._served.preemptions = ticket.preemptions
            self._served.recomputed_tokens = ticket.recomputed_tokens

    def _look_up(self) -> int:
        if self._served.transferred_tokens:
            return self._served.transferred_tokens
        if self._ask.cold and find(self._lies, IgnoreCold) is None:
            return 0
        return self._state.cache.cached_tokens(self._served.read_ids, salt=self._ask.salt)
