"""What a protocol costs, step by step, and what a budget that does not hold it all leaves out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from longproof.domain.units import format_ns, format_tokens
from longproof.evidence.records import Protocol, Step
from longproof.probe import sides
from longproof.probe.accounting import CANARY_OUTPUT_TOKENS, CONTROL_TOKENS, EDGE_OUTPUT_TOKENS, edge_positions
from longproof.probe.sides import SidesPlan
from longproof.prove.load_costs import LOAD_COSTS
from longproof.prove.options import DROP_ORDER
from longproof.prove.parameters import Values, int_of, int_or_none, ints_of

_WITHOUT_IDLE_STEPS_TOKENS = 384
"""A prompt that every server takes, where no step names one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Requests, and tokens (prompt + output) they use. `window_ns`: time that windows under load take whatever the
    server's speed; the tokens inside them are in `window_tokens` and not in `tokens`' time."""

    requests: int
    tokens: int
    window_ns: int = 0
    window_tokens: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            requests=self.requests + other.requests,
            tokens=self.tokens + other.tokens,
            window_ns=self.window_ns + other.window_ns,
            window_tokens=self.window_tokens + other.window_tokens,
        )

    @property
    def all_tokens(self) -> int:
        """Tokens of all requests, those inside windows too."""
        return self.tokens + self.window_tokens


Predict: TypeAlias = Callable[[int, int], float]
"""(tokens, requests) → ns, one request at a time."""


def cost_of(protocol: Protocol) -> Cost:
    """What the protocol costs when the boundary is where the server says it is (a search for one below that costs
    more)."""
    return sum((step_cost(step, protocol.output_tokens) for step in protocol.steps), Cost(requests=0, tokens=0))


def step_cost(step: Step, output_tokens: int) -> Cost:
    """What one step costs."""
    load = LOAD_COSTS.get(step.probe)
    if load is not None:
        requests, tokens, window_ns, window_tokens = load(step.parameters, output_tokens)
        return Cost(requests=requests, tokens=tokens, window_ns=window_ns, window_tokens=window_tokens)
    asked = _asked_tokens(step, output_tokens)
    return Cost(requests=len(asked), tokens=sum(asked))


def smallest_unit_tokens(protocol: Protocol) -> int:
    """The cheapest request that any step begins with: a budget below it measures nothing."""
    idle = [step for step in protocol.steps if step.probe not in LOAD_COSTS]
    asked = [tokens for step in idle for tokens in _asked_tokens(step, protocol.output_tokens)]
    return min(asked, default=_WITHOUT_IDLE_STEPS_TOKENS + protocol.output_tokens)


def duration_ns(cost: Cost, predict: Predict) -> float:
    """How long a step takes at the speed seen so far."""
    return cost.window_ns + predict(cost.tokens, cost.requests)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """What a budget holds: `kept` steps in their order, and why each of the others is not among them."""

    kept: tuple[Step, ...]
    dropped: dict[str, str]


def fit(protocol: Protocol, *, tokens_left: int | None, ns_left: float | None, predict: Predict) -> Fit:
    """Leaves out whole steps, in `DROP_ORDER`, until the rest fits. None = no limit. What is left may still be more
    than the budget holds: then the run cuts the last steps short. Quality alone is cut short rather than left out: it
    asks in rounds."""
    costs = {step.probe: step_cost(step, protocol.output_tokens) for step in protocol.steps}
    dropped: dict[str, str] = {}
    for probe in DROP_ORDER:
        tokens = sum(cost.all_tokens for cost in costs.values())
        ns = sum(duration_ns(cost, predict) for cost in costs.values())
        over_tokens = tokens_left is not None and tokens > tokens_left
        over_ns = ns_left is not None and ns > ns_left
        if (not over_tokens and not over_ns) or [*costs] == ["quality"]:
            break
        if probe not in costs:
            continue
        own = costs.pop(probe)
        dropped[probe] = (
            f"the budget does not hold it: all steps together take about {format_ns(ns)} of the"
            f" {format_ns(ns_left)} left, this one {format_ns(duration_ns(own, predict))}"
            if over_ns and ns_left is not None
            else f"the budget does not hold it: all steps together take {format_tokens(tokens)} tokens of the"
            f" {format_tokens(tokens_left or 0)} left, this one {format_tokens(own.all_tokens)}"
        )
    return Fit(kept=tuple(step for step in protocol.steps if step.probe in costs), dropped=dropped)


def _asked_tokens(step: Step, output: int) -> list[int]:
    """Tokens of every request that a step sends and that the server is expected to compute."""
    values: Values = step.parameters
    if step.probe == "boundary":  # just above, a refusal costs nothing and a clamp is not repeated
        return [int_of(values, "top_tokens")] * (int_of(values, "repeats") + 1)
    lengths = list(ints_of(values, "lengths"))
    if step.probe == "speed":  # the shortest once more, to warm up
        return [length + output for length in (*lengths[:1], *lengths * int_of(values, "repeats"))]
    if step.probe == sides.PROBE:
        return sides.asked_tokens(SidesPlan(lengths=tuple(lengths), rounds=int_of(values, "rounds")), output)
    if step.probe == "warmth":
        return [length + output for length in lengths] * 3 * int_of(values, "repeats")
    canaries = [at + CANARY_OUTPUT_TOKENS for at in (int_of(values, "canary_tokens"), CONTROL_TOKENS)] * 4
    limit = int_or_none(values, "limit_tokens")
    served = [] if limit is None else [at for at in edge_positions(limit).values() if at < limit]
    return [length + output for length in lengths] + canaries + [at + EDGE_OUTPUT_TOKENS for at in served]
