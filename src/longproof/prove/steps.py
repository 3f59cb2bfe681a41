"""From a step of the protocol to the probe that runs it. A new probe is one file, and one line here."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

from longproof.asking.context import ProbeContext
from longproof.evidence.records import Step
from longproof.probe import (
    accounting,
    boundary,
    busy,
    conversation,
    disaggregated,
    overload,
    reclaim,
    restart,
    speed,
    sustained,
    sweep,
    warmth,
)
from longproof.prove.parameters import PlanT, Values, int_of, int_or_none, ints_of, plan_of
from longproof.quality.plan import QualityPlan
from longproof.quality.run import run as quality_run

Runner: TypeAlias = Callable[[ProbeContext, Values], Awaitable[None]]


async def run_step(ctx: ProbeContext, step: Step) -> None:
    """Runs one step with the parameters that stand in the protocol."""
    await _RUNNERS[step.probe](ctx, step.parameters)


async def _accounting(ctx: ProbeContext, values: Values) -> None:
    plan = accounting.AccountingPlan(
        lengths=ints_of(values, "lengths"),
        canary_tokens=int_of(values, "canary_tokens"),
        limit_tokens=int_or_none(values, "limit_tokens"),
    )
    await accounting.run(ctx, plan)


async def _boundary(ctx: ProbeContext, values: Values) -> None:
    plan = boundary.BoundaryPlan(
        top_tokens=int_of(values, "top_tokens"),
        limit_tokens=int_or_none(values, "limit_tokens"),
        hint_tokens=int_or_none(values, "hint_tokens"),
        floor_tokens=int_of(values, "floor_tokens"),
        resolution_tokens=int_of(values, "resolution_tokens"),
        repeats=int_of(values, "repeats"),
    )
    await boundary.run(ctx, plan)


async def _speed(ctx: ProbeContext, values: Values) -> None:
    await speed.run(ctx, ints_of(values, "lengths"), int_of(values, "repeats"))


async def _warmth(ctx: ProbeContext, values: Values) -> None:
    await warmth.run(ctx, ints_of(values, "lengths"), int_of(values, "repeats"))


def _planned(kind: type[PlanT], run: Callable[[ProbeContext, PlanT], Awaitable[None]]) -> Runner:
    """Runs a probe whose parameters are those of a plan."""

    async def runner(ctx: ProbeContext, values: Values) -> None:
        await run(ctx, plan_of(kind, values))

    return runner


_RUNNERS: dict[str, Runner] = {
    "accounting": _accounting,
    "boundary": _boundary,
    "speed": _speed,
    "warmth": _warmth,
    "quality": _planned(QualityPlan, quality_run),
    "disaggregated": _planned(disaggregated.DisaggregatedPlan, disaggregated.run),
    "busy": _planned(busy.BusyPlan, busy.run),
    "reclaim": _planned(reclaim.ReclaimPlan, reclaim.run),
    "conversation": _planned(conversation.ConversationPlan, conversation.run),
    "sweep": _planned(sweep.SweepPlan, sweep.run),
    "restart": _planned(restart.RestartPlan, restart.run),
    "sustained": _planned(sustained.SustainedPlan, sustained.run),
    "overload": _planned(overload.OverloadPlan, overload.run),
}
