"""What the probes with a plan of their own cost: one line each."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from longproof.probe import busy, conversation, disaggregated, overload, reclaim, restart, sustained, sweep
from longproof.prove.parameters import PlanT, Values, plan_of
from longproof.quality.plan import QualityPlan
from longproof.quality.plan import cost as quality_cost

LoadCost: TypeAlias = Callable[[Values, int], tuple[int, int, int, int]]
"""(parameters, output tokens) → requests and tokens sent one at a time; ns of windows under load, tokens in them."""

_RESTART_NS = 15_000_000_000
"""A small engine's; a large model takes minutes."""
_RECOVERY_NS = 5_000_000_000


def _one_at_a_time(kind: type[PlanT], cost: Callable[[PlanT, int], tuple[int, int]]) -> LoadCost:
    """Together or not, a token takes its time: the engine is what is shared."""

    def whole(values: Values, output_tokens: int) -> tuple[int, int, int, int]:
        return (*cost(plan_of(kind, values), output_tokens), 0, 0)

    return whole


def _busy(values: Values, output_tokens: int) -> tuple[int, int, int, int]:
    plan = plan_of(busy.BusyPlan, values)
    _, tokens = busy.cost(plan, output_tokens)
    longs = plan.twins + plan.injections  # those in windows too are waited for: their time is beyond the windows'
    long_tokens = longs * (plan.long_tokens + plan.long_output_tokens)
    window_ns = 2 * (plan.lead_ns + plan.alone_ns) + plan.injections * (plan.lead_ns + plan.tail_ns)
    return longs + 2, long_tokens, window_ns, tokens - long_tokens


def _sustained(values: Values, output_tokens: int) -> tuple[int, int, int, int]:
    return sustained.cost(plan_of(sustained.SustainedPlan, values), output_tokens)


def _restart(values: Values, output_tokens: int) -> tuple[int, int, int, int]:
    requests, tokens = restart.cost(plan_of(restart.RestartPlan, values), output_tokens)
    return requests, tokens, _RESTART_NS, 0


def _overload(values: Values, output_tokens: int) -> tuple[int, int, int, int]:
    plan = plan_of(overload.OverloadPlan, values)
    _, tokens = overload.cost(plan, output_tokens)
    steps = len(plan.concurrencies) + len(plan.rates_per_s)
    return 0, 0, plan.idle_ns + steps * plan.step_ns + _RECOVERY_NS, tokens


LOAD_COSTS: dict[str, LoadCost] = {
    "quality": _one_at_a_time(QualityPlan, quality_cost),
    "disaggregated": _one_at_a_time(disaggregated.DisaggregatedPlan, disaggregated.cost),
    "busy": _busy,
    "reclaim": _one_at_a_time(reclaim.ReclaimPlan, reclaim.cost),
    "conversation": _one_at_a_time(conversation.ConversationPlan, conversation.cost),
    "sweep": _one_at_a_time(sweep.SweepPlan, sweep.cost),
    "restart": _restart,
    "sustained": _sustained,
    "overload": _overload,
}
