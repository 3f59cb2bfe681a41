"""Who gets what in a step of an engine whose requests share the work, as vLLM 0.32 decides it (v1/core/sched).

1. Those that run, oldest first: one token each of an answer, or as much of a prompt as the step's budget holds.
   Where no block is free the youngest loses all of its blocks, goes to the head of the queue and is computed again.
2. Then, if nobody lost anything, those that wait, first come, first served: as long as a slot is free, the whole
   sequence would fit beside what others still need for their prompts, and there is budget.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from longproof.clock import NS_PER_S
from longproof.testing.behaviour import Behaviour
from longproof.testing.bell import Bell
from longproof.testing.fake_pool import Gauges, Pool, Ticket
from longproof.testing.lie import Lie, find
from longproof.testing.lies_of_load import AdmitThenHang, StarveLong, StarveShort, Thrash


def _nothing() -> int:
    return 0


@dataclass(eq=False, slots=True, kw_only=True)
class Seat(Ticket):
    """A sequence among those that share steps.

    `computed` tokens have their KV; a token is `produced` when all before it are computed. `look_up` tells how many a
    cache has. Times are the steps' own. `frozen`: it never gets anything. `keeps`: its blocks stay taken when it is
    done. `done`: its answer is whole.
    """

    prompt_tokens: int
    output_tokens: int
    lies: tuple[Lie, ...] = ()
    look_up: Callable[[], int] = _nothing
    bell: Bell = field(default_factory=Bell)
    cached: int = 0
    computed: int = 0
    produced: int = 0
    kept_since: int = 0
    preemptions: int = 0
    recomputed_tokens: int = 0
    admitted_ns: int = 0
    first_ns: int = 0
    frozen: bool = False
    keeps: bool = False
    done: bool = False

    @property
    def remaining(self) -> int:
        """Tokens to compute before the next token of the answer."""
        return self.prompt_tokens + self.produced - self.computed


@dataclass(slots=True, kw_only=True)
class Step:
    """What one step computes: seats with their number of tokens, of prompts (`prompt_tokens`) and of answers."""

    parts: list[tuple[Seat, int]] = field(default_factory=list[tuple[Seat, int]])
    prompt_tokens: int = 0
    answers: int = 0
    stretch: float = 1.0

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.answers

    def add(self, seat: Seat, tokens: int) -> None:
        self.parts.append((seat, tokens))
        if _answers(seat):
            self.answers += tokens
        else:
            self.prompt_tokens += tokens


def _answers(seat: Seat) -> bool:
    return seat.produced > 0 and seat.remaining == 1


class Scheduler(Pool):
    """The pool of an engine whose requests share steps. Blocks are taken at once or grow, as the behaviour has it.
    `accepted` draws how many tokens speculation gives with the next one."""

    def __init__(self, behaviour: Behaviour, accepted: Callable[[], int]) -> None:
        super().__init__(
            slots=behaviour.slots,
            capacity_tokens=behaviour.pool_tokens,
            over_capacity=behaviour.over_capacity,
            block_tokens=behaviour.dialect.cache_block_tokens,
        )
        self._behaviour = behaviour
        self._accepted = accepted
        self._others_ns = 0
        self._under_way = False
        self._leaving: list[tuple[Ticket, float]] = []
        self._shown = Gauges()
        self.changed = Bell()
        self.preemptions = 0

    def behave(self, behaviour: Behaviour) -> None:
        self._behaviour = behaviour

    @property
    def gauges(self) -> Gauges:
        """What the engine says of itself: as it was when the last step ended."""
        return self._shown

    @property
    def seats(self) -> list[Seat]:
        """Those that run, oldest first."""
        return [ticket for ticket in self._running if isinstance(ticket, Seat)]

    def plan(self, now_ns: int) -> Step:
        """The next step; takes blocks, preempts and admits."""
        step, greedy, coming = Step(), self._greedy(), self._next(now_ns)
        if not greedy and coming is not None and self._starving(coming):
            self._admit_into(step, now_ns)  # it has its first step to itself as well
        if not step.parts:
            self._fill(step, greedy, now_ns)
        step.stretch = max((lie.stretch for seat, _ in step.parts if (lie := self._starving(seat))), default=1.0)
        self._under_way = True
        return step

    def _fill(self, step: Step, greedy: list[Seat], now_ns: int) -> None:
        lost = self.preemptions
        for seat in greedy or self.seats:
            tokens = self._share(seat, step)
            if seat not in self._running or seat.frozen or tokens <= 0:
                continue
            if self._thrashes(seat):
                self._preempt(seat)
            elif self._grow(seat, seat.computed + tokens):
                step.add(seat, tokens)
        if self.preemptions == lost and not greedy:
            self._admit_into(step, now_ns)

    def finish(self, step: Step, now_ns: int = 0) -> None:
        """The step is over: tokens are there, what has all of its answer makes room, and so does what left."""
        self._under_way = False
        for seat, tokens in step.parts:
            drafted = self._drafted(seat)
            seat.computed += tokens
            if seat.remaining > 0:
                continue
            seat.first_ns = seat.first_ns if seat.produced else now_ns
            seat.computed += drafted
            seat.produced += 1 + drafted
            if seat.produced >= seat.output_tokens:
                self._end(seat)
            seat.bell.ring()
        leaving, self._leaving = self._leaving, []
        for ticket, after_s in leaving:
            self.leave(ticket, after_s=after_s)
        self._shown = super().gauges

    def leave(self, ticket: Ticket, *, after_s: float = 0.0) -> None:
        """As a pool has it, but between two steps."""
        if self._under_way:
            self._leaving.append((ticket, after_s))
            return
        if after_s and isinstance(ticket, Seat):
            ticket.frozen = True
        super().leave(ticket, after_s=after_s)

    def _end(self, seat: Seat) -> None:
        seat.done = True
        self._stop(seat)
        if not seat.keeps:
            self._give(seat)

    def _admit(self) -> None:
        """Admission happens in a step."""
        self.changed.ring()

    def _greedy(self) -> list[Seat]:
        return [seat for seat in self.seats if self._starving(seat)][:1]

    def _starving(self, seat: Seat) -> StarveShort | None:
        return None if _answers(seat) else find(seat.lies, StarveShort)

    def _thrashes(self, seat: Seat) -> bool:
        lie = find(seat.lies, Thrash)
        return lie is not None and self.running >= lie.running and seat.produced - seat.kept_since >= lie.every_tokens

    def _share(self, seat: Seat, step: Step) -> int:
        """Tokens that a seat gets of what is left of the step."""
        most = self._behaviour.prompt_step_tokens if self.running + self.waiting > 1 else None
        left = self._behaviour.step_tokens - step.tokens
        return min(seat.remaining, left if most is None else min(left, most))

    def _grow(self, seat: Seat, tokens: int) -> bool:
        """Blocks for so many tokens; False when the seat itself had to go."""
        need = self.blocks.of(tokens) - seat.blocks
        while need > self.blocks.free:
            youngest = next((other for other in reversed(self.seats) if not other.frozen), seat)
            self._preempt(youngest)
            if youngest is seat:
                return False
        if need > 0:
            self._take(seat, need)
        return True

    def _preempt(self, seat: Seat) -> None:
        self._stop(seat)
        self._give(seat)
        seat.recomputed_tokens += seat.computed
        seat.preemptions += 1
        seat.computed = 0
        self.preemptions += 1
        self._waiting.appendleft(seat)

    def _admit_into(self, step: Step, now_ns: int) -> None:
        grows = self._behaviour.blocks_grow
        while self.running < self.slots and step.tokens < self._behaviour.step_tokens:
            seat = self._next(now_ns)
            if seat is None:
                return
            need = self.blocks.of(seat.prompt_tokens + seat.produced if grows else seat.need_tokens)
            if need + (self._kept_free() if grows else 0) > self.blocks.free:
                return
            self._waiting.remove(seat)
            if not seat.preemptions:  # who was preempted is computed from the start
                seat.cached = min(seat.look_up(), seat.prompt_tokens)
                seat.computed = min(seat.cached, seat.prompt_tokens - 1)
                seat.admitted_ns = now_ns
            seat.kept_since = seat.produced
            hang = find(seat.lies, AdmitThenHang)
            seat.frozen = hang is not None and self.running >= hang.beside
            self._run(seat)
            tokens = self._share(seat, step)
            self._take(seat, self.blocks.of(seat.computed + tokens) if grows else need)
            if not seat.frozen:
                step.add(seat, tokens)
            if self._starving(seat):
                return

    def _next(self, now_ns: int) -> Seat | None:
        """The first in the queue, but for those that a lie lets wait for as long as there are others."""
        waiting = [ticket for ticket in self._waiting if isinstance(ticket, Seat)]
        calm = {id(seat): lie.calm_s for seat in waiting if (lie := find(seat.lies, StarveLong)) is not None}
        others = [seat for seat in waiting if id(seat) not in calm]
        if others or any(find(seat.lies, StarveLong) is None for seat in self.seats):
            self._others_ns = now_ns
        if others or not waiting:
            return next(iter(others), None)
        still_ns = now_ns - self._others_ns
        return next((seat for seat in waiting if still_ns >= calm[id(seat)] * NS_PER_S), None)

    def _kept_free(self) -> int:
        """Blocks that an admission must leave: the rest of the prompts under way, and the watermark beside others."""
        reserved = sum(max(self.blocks.of(s.prompt_tokens + s.produced) - s.blocks, 0) for s in self.seats)
        return reserved + (int(self._behaviour.watermark * self.blocks.capacity) if self._running else 0)

    def _drafted(self, seat: Seat) -> int:
        """Tokens that this step gives beyond the first, by speculation."""
        if not self._behaviour.speculation or not _answers(seat):
            return 0
        return max(min(self._accepted(), seat.output_tokens - seat.produced - 1), 0)
