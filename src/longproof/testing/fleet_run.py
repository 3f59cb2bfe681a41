"""A controller driven through virtual time against modelled engines: what requests wait, and whether an engine would
have had to preempt.

An engine here prefills one request after the other at its replica's rate, then produces a token every
`decode_ns_per_token`; its KV cache grows with every token, and it is *overfull* whenever that exceeds the capacity.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field

from longproof.policy.actions import Decision, Dispatch, Refusal
from longproof.policy.arrivals import Arrival, Ended, EndKind
from longproof.policy.controller import Controller

_TICK_NS = 100_000_000
_STEP_TOKENS = 16


@dataclass(slots=True)
class Outcome:
    """What became of one request. Times are from its arrival, in nanoseconds; None = it did not come to that."""

    arrived_ns: int
    replica: str | None = None
    dispatched_ns: int | None = None
    first_token_ns: int | None = None
    ended_ns: int | None = None
    refusal: Refusal | None = None

    @property
    def ttft_ns(self) -> int | None:
        """Arrival to first token."""
        return None if self.first_token_ns is None else self.first_token_ns - self.arrived_ns

    @property
    def waited_ns(self) -> int | None:
        """Arrival to dispatch."""
        return None if self.dispatched_ns is None else self.dispatched_ns - self.arrived_ns


@dataclass(slots=True)
class _Engine:
    capacity_tokens: int
    free_at_ns: int = 0
    tokens: dict[str, int] = field(default_factory=dict[str, int])
    most_tokens: int = 0

    def fill(self, request: str, tokens: int) -> None:
        self.tokens[request] = tokens
        self.most_tokens = max(self.most_tokens, sum(self.tokens.values()))


class FleetRun:
    """One run. Give it arrivals with their times and true output lengths, then read `outcomes`."""

    def __init__(self, controller: Controller) -> None:
        self.controller = controller
        self.outcomes: dict[str, Outcome] = {}
        self.engines = {
            rule.name: _Engine(rule.pools[0].capacity_blocks * rule.pools[0].need.block_tokens)
            for rule in controller.config.replicas
        }
        self._rules = {rule.name: rule for rule in controller.config.replicas}
        self._events: list[tuple[int, int, str, str, int]] = []
        self._arrivals: dict[str, tuple[Arrival, int]] = {}
        self._number = 0

    @property
    def overfull(self) -> list[str]:
        """Engines that at some moment would have had to preempt."""
        return [name for name, engine in self.engines.items() if engine.most_tokens > engine.capacity_tokens]

    def run(self, arrivals: Iterable[tuple[int, Arrival, int]], until_ns: int | None = None) -> FleetRun:
        """(time, request, output it will produce): run until all have ended, or until `until_ns`."""
        for at_ns, arrival, output in arrivals:
            self._arrivals[arrival.id] = (arrival, output)
            self._at(at_ns, "arrive", arrival.id)
        self._at(0, "tick", "")
        while self._events:
            now_ns, _, what, request, number = heapq.heappop(self._events)
            if until_ns is not None and now_ns > until_ns:
                break
            self._happen(now_ns, what, request, number)
        return self

    def _happen(self, now_ns: int, what: str, request: str, number: int) -> None:
        match what:
            case "arrive":
                self.outcomes[request] = Outcome(now_ns)
                self._act([self.controller.on_arrival(self._arrivals[request][0], now_ns)], now_ns)
            case "first":
                self.outcomes[request].first_token_ns = now_ns
                self._act(self.controller.on_first_token(request, now_ns), now_ns)
                self._produce(now_ns, request, min(_STEP_TOKENS, self._arrivals[request][1]))
            case "output":
                arrival, output = self._arrivals[request]
                self._engine(request).fill(request, arrival.input_tokens + number)
                self._act(self.controller.on_output(request, number, now_ns), now_ns)
                if number < output:
                    self._produce(now_ns, request, min(number + _STEP_TOKENS, output))
                else:
                    self._end(now_ns, request, output)
            case _:
                self._act(self.controller.on_tick(now_ns), now_ns)
                if self._events or any(outcome.ended_ns is None for outcome in self.outcomes.values()):
                    self._at(now_ns + _TICK_NS, "tick", "")

    def _act(self, decisions: Iterable[Decision], now_ns: int) -> None:
        for decision in decisions:
            outcome = self.outcomes[decision.id]
            if isinstance(decision, Dispatch):
                outcome.replica, outcome.dispatched_ns = decision.replica, now_ns
                engine, rule = self.engines[decision.replica], self._rules[decision.replica]
                arrival = self._arrivals[decision.id][0]
                engine.free_at_ns = max(engine.free_at_ns, now_ns) + rule.prefill.ns(
                    decision.uncached_tokens, decision.cached_tokens
                )
                engine.fill(decision.id, arrival.input_tokens)
                self._at(engine.free_at_ns, "first", decision.id)
            elif isinstance(decision, Refusal):
                outcome.refusal, outcome.ended_ns = decision, now_ns

    def _produce(self, now_ns: int, request: str, number: int) -> None:
        rule = self._rules[self.outcomes[request].replica or ""]
        self._at(now_ns + _STEP_TOKENS * rule.decode_ns_per_token, "output", request, number)

    def _end(self, now_ns: int, request: str, output: int) -> None:
        del self._engine(request).tokens[request]
        self.outcomes[request].ended_ns = now_ns
        end = Ended(kind=EndKind.COMPLETED, output_tokens=output)
        self._act(self.controller.on_finish(request, end, now_ns), now_ns)

    def _engine(self, request: str) -> _Engine:
        return self.engines[self.outcomes[request].replica or ""]

    def _at(self, at_ns: int, what: str, request: str, number: int = 0) -> None:
        self._number += 1
        heapq.heappush(self._events, (at_ns, self._number, what, request, number))
