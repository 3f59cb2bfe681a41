"""A controller driven through virtual time against engines that work in steps, as vLLM's do: every stream has its token
of each step, prompts share what is left of it, in the order they came; a step takes the longer, the more it does.

    step = base + each · streams + per_token · prefilled + per_context_token · context of the streams

What it is for: what time per token and to the first people get, with a controller in between and without one. Memory is
the ledger's: an engine here never preempts.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from longproof.policy.actions import Decision, Dispatch, Refusal
from longproof.policy.arrivals import Arrival, Ended, EndKind
from longproof.policy.controller import Controller

_TICK_NS = 100_000_000
_REPORT_TOKENS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """Nanoseconds; by default about those of SmolLM2-135M on one core with vLLM 0.32."""

    base_ns: int = 9_000_000
    each_ns: int = 2_600_000
    per_token_ns: int = 1_250_000
    per_context_token_ns: int = 3_600


@dataclass(slots=True)
class Answered:
    """What became of one request. Times in nanoseconds."""

    arrived_ns: int
    replica: str = ""
    first_ns: int = 0
    last_ns: int = 0
    tokens: int = 0

    @property
    def ttft_ns(self) -> int:
        """Arrival to first token."""
        return self.first_ns - self.arrived_ns

    @property
    def tpot_ns(self) -> float:
        """Mean time of its further tokens."""
        return (self.last_ns - self.first_ns) / max(1, self.tokens - 1)


@dataclass(slots=True)
class _Engine:
    waiting: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])
    streams: list[str] = field(default_factory=list[str])
    busy: bool = False


class SteppingFleet:
    """One run. `controller` None: requests alternate between the engines. `step_tokens`: of one step; `chunk_tokens`:
    of one prompt's part of it. A step takes up to the share `chance_of_more` longer, at random."""

    def __init__(
        self,
        engines: Sequence[str],
        controller: Controller | None,
        *,
        time: StepTime = StepTime(),
        step_tokens: int = 512,
        chunk_tokens: int = 128,
        chance_of_more: float = 0.2,
        seed: int = 0,
    ) -> None:
        self.answered: dict[str, Answered] = {}
        self._engines = {name: _Engine() for name in engines}
        self._controller = controller
        self._time, self._step_tokens, self._chunk_tokens = time, step_tokens, chunk_tokens
        self._more, self._chance = chance_of_more, random.Random(seed)
        self._requests: dict[str, tuple[Arrival, int]] = {}
        self._events: list[tuple[int, int, str, str]] = []
        self._under_way: dict[str, list[tuple[str, int]]] = {}
        self._number = 0
        self._open = 0

    def run(self, arrivals: Iterable[tuple[int, Arrival, int]]) -> SteppingFleet:
        """(time, request, output it will produce): until all are answered. Raises RuntimeError when one is refused."""
        for at_ns, arrival, output in arrivals:
            self._requests[arrival.id] = arrival, output
            self._open += 1
            self._at(at_ns, "arrive", arrival.id)
        self._at(0, "tick", "")
        while self._open:
            now_ns, _, what, name = heapq.heappop(self._events)
            if what == "arrive":
                self._arrive(name, now_ns)
            elif what == "step":
                self._stepped(name, now_ns)
            elif self._controller is not None:
                self._act(self._controller.on_tick(now_ns), now_ns)
                self._at(now_ns + _TICK_NS, "tick", "")
        return self

    def _arrive(self, request: str, now_ns: int) -> None:
        arrival, _ = self._requests[request]
        self.answered[request] = Answered(now_ns)
        if self._controller is not None:
            self._act([self._controller.on_arrival(arrival, now_ns)], now_ns)
        else:
            names = list(self._engines)
            self._send(request, names[(len(self.answered) - 1) % len(names)], now_ns)

    def _act(self, decisions: Iterable[Decision], now_ns: int) -> None:
        for decision in decisions:
            if isinstance(decision, Dispatch):
                self._send(decision.id, decision.replica, now_ns)
            elif isinstance(decision, Refusal):
                raise RuntimeError(f"refused: {decision}")

    def _send(self, request: str, replica: str, now_ns: int) -> None:
        self.answered[request].replica = replica
        self._engines[replica].waiting.append((request, self._requests[request][0].input_tokens))
        self._begin(replica, now_ns)

    def _begin(self, replica: str, now_ns: int) -> None:
        engine = self._engines[replica]
        if engine.busy or not (engine.waiting or engine.streams):
            return
        engine.busy = True
        left, parts = self._step_tokens - len(engine.streams), list[tuple[str, int]]()
        for request, tokens in engine.waiting:
            part = min(tokens, self._chunk_tokens, left)
            if part <= 0:
                break
            parts.append((request, part))
            left -= part
        self._under_way[replica] = parts
        context = sum(self._requests[r][0].input_tokens + self.answered[r].tokens for r in engine.streams)
        took_ns = self._time.base_ns + self._time.each_ns * len(engine.streams)
        took_ns += self._time.per_token_ns * sum(part for _, part in parts) + self._time.per_context_token_ns * context
        self._at(now_ns + int(took_ns * (1 + self._chance.uniform(0, self._more))), "step", replica)

    def _stepped(self, replica: str, now_ns: int) -> None:
        engine, parts = self._engines[replica], dict(self._under_way.pop(replica))
        for request in list(engine.streams):
            self._produced(engine, request, now_ns)
        waiting, engine.waiting = engine.waiting, []
        for request, tokens in waiting:
            if tokens > parts.get(request, 0):
                engine.waiting.append((request, tokens - parts.get(request, 0)))
                continue
            answer = self.answered[request]
            answer.first_ns = answer.last_ns = now_ns
            answer.tokens = 1
            engine.streams.append(request)
            if self._controller is not None:
                self._act(self._controller.on_first_token(request, now_ns), now_ns)
        engine.busy = False
        self._begin(replica, now_ns)

    def _produced(self, engine: _Engine, request: str, now_ns: int) -> None:
        answer, output = self.answered[request], self._requests[request][1]
        answer.tokens += 1
        answer.last_ns = now_ns
        if self._controller is not None and answer.tokens % _REPORT_TOKENS == 0:
            self._act(self._controller.on_output(request, answer.tokens, now_ns), now_ns)
        if answer.tokens >= output:
            engine.streams.remove(request)
            self._open -= 1
            if self._controller is not None:
                end = Ended(kind=EndKind.COMPLETED, output_tokens=answer.tokens, cached_tokens=0)
                self._act(self._controller.on_finish(request, end, now_ns), now_ns)

    def _at(self, at_ns: int, what: str, name: str) -> None:
        self._number += 1
        heapq.heappush(self._events, (at_ns, self._number, what, name))
