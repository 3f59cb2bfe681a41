"""The event kernel: modelled replicas on one side, the gateway's own controller and router on the other.

    arrivals ──▶ Controller.on_arrival ──▶ Dispatch ──▶ engine.submit
                       ▲                                   │ first token, tokens, end, KV events
                       └───────────────────────────────────┘

Nothing here decides anything. Time is an integer of the heap; two runs of one workload are equal.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from itertools import count

from longproof.domain.kv_event import KvEvent
from longproof.domain.units import NS_PER_MS
from longproof.policy.actions import Action, Dispatch, Refusal, Wait
from longproof.policy.arrivals import Arrival, Ended, EndKind
from longproof.policy.controller import Controller
from routing.engines import Engine, Sink
from routing.requests import Job, Outcome

TICK_NS = 100 * NS_PER_MS


class Kernel(Sink):
    """One run. `tell_events`: KV events reach the gateway."""

    def __init__(self, controller: Controller, *, tell_events: bool = True) -> None:
        self.outcome = Outcome()
        self._controller = controller
        self._tell_events = tell_events
        self._engines: dict[str, Engine] = {}
        self._heap: list[tuple[int, int, Callable[[int], None]]] = []
        self._number = count()
        self._jobs: dict[str, Job] = {}
        self._waiting = 0
        self._ticking = False

    def run(self, engines: Sequence[Engine], workload: Iterable[tuple[int, Job]]) -> Outcome:
        """Until everything has ended."""
        self._engines = {engine.name: engine for engine in engines}
        for at_ns, job in workload:
            self._push(at_ns, lambda now_ns, job=job: self._arrive(job, now_ns))
        while self._heap:
            now_ns, _, event = heapq.heappop(self._heap)
            event(now_ns)
        self.outcome.uncached_tokens = {engine.name: engine.uncached_tokens for engine in engines}
        return self.outcome

    def at(self, when_ns: int, engine: Engine, what: object) -> None:
        self._push(when_ns, lambda now_ns: engine.on(what, now_ns))

    def first_token(self, job: Job, now_ns: int) -> None:
        job.first_token_ns = now_ns
        self._do(self._controller.on_first_token(job.id, now_ns), now_ns)

    def produced(self, job: Job, output_tokens: int, now_ns: int) -> None:
        self._do(self._controller.on_output(job.id, output_tokens, now_ns), now_ns)

    def finished(self, job: Job, now_ns: int) -> None:
        self.outcome.ended_ns = now_ns
        end = Ended(
            kind=EndKind.COMPLETED,
            input_tokens=job.input_tokens,
            output_tokens=job.output_tokens,
            cached_tokens=job.cached_tokens,
        )
        self._do(self._controller.on_finish(job.id, end, now_ns), now_ns)
        self._come_back(job, now_ns)

    def cache_changed(self, engine: Engine, events: list[KvEvent], now_ns: int) -> None:
        if self._tell_events:
            for event in events:
                self._controller.on_kv_event(engine.name, event, now_ns)

    def _push(self, at_ns: int, event: Callable[[int], None]) -> None:
        heapq.heappush(self._heap, (at_ns, next(self._number), event))

    def _arrive(self, job: Job, now_ns: int) -> None:
        job.arrived_ns = now_ns
        self._jobs[job.id] = job
        self.outcome.jobs.append(job)
        arrival = Arrival(
            id=job.id,
            tenant="everybody",
            model="m",
            input_tokens=job.input_tokens,
            exact=True,
            output_tokens=job.output_tokens,
            blocks=job.blocks,
            session=job.session,
        )
        decision = self._controller.on_arrival(arrival, now_ns)
        if isinstance(decision, Wait):
            self._waiting += 1
            self.outcome.longest_queue = max(self.outcome.longest_queue, self._waiting)
            self._tick_soon(now_ns)
        else:
            self._act(decision, now_ns)

    def _do(self, actions: Iterable[Action], now_ns: int) -> None:
        for action in actions:
            self._waiting -= 1
            self._act(action, now_ns)

    def _act(self, action: Action, now_ns: int) -> None:
        job = self._jobs[action.id]
        match action:
            case Dispatch():
                job.replica = action.replica
                self._engines[action.replica].submit(job, now_ns)
            case Refusal():
                job.refused = action.code
                self._come_back(job, now_ns)

    def _come_back(self, job: Job, now_ns: int) -> None:
        if job.following is not None:
            again = job.following(now_ns)
            if again is not None:
                self._push(again[0], lambda at_ns, job=again[1]: self._arrive(job, at_ns))

    def _tick_soon(self, now_ns: int) -> None:
        if not self._ticking:
            self._ticking = True
            self._push(now_ns + TICK_NS, self._tick)

    def _tick(self, now_ns: int) -> None:
        self._ticking = False
        self._do(self._controller.on_tick(now_ns), now_ns)
        if self._waiting:
            self._tick_soon(now_ns)
