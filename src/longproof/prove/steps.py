"""From a step of the protocol to the probe that runs it. A new probe is one file, and one line here."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

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
from longproof.prove.parameters import Values, int_of, int_or_none, ints_of, plan_of
from longproof.quality.plan import QualityPlan
from longproof.quality.run import run as quality_run


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


async def _quality(ctx: ProbeContext, values: Values) -> None:
    await quality_run(ctx, plan_of(QualityPlan, values))


async def _disaggregated(ctx: ProbeContext, values: Values) -> None:
    await disaggregated.run(ctx, plan_of(disaggregated.DisaggregatedPlan, values))


async def _busy(ctx: ProbeContext, values: Values) -> None:
    await busy.run(ctx, plan_of(busy.BusyPlan, values))


async def _reclaim(ctx: ProbeContext, values: Values) -> None:
    await reclaim.run(ctx, plan_of(reclaim.ReclaimPlan, values))


async def _conversation(ctx: ProbeContext, values: Values) -> None:
    await conversation.run(ctx, plan_of(conversation.ConversationPlan, values))


async def _sweep(ctx: ProbeContext, values: Values) -> None:
    await sweep.run(ctx, plan_of(sweep.SweepPlan, values))


async def _restart(ctx: ProbeContext, values: Values) -> None:
    await restart.run(ctx, plan_of(restart.RestartPlan, values))


async def _overload(ctx: ProbeContext, values: Values) -> None:
    await overload.run(ctx, plan_of(overload.OverloadPlan, values))


async def _sustained(ctx: ProbeContext, values: Values) -> None:
    await sustained.run(ctx, plan_of(sustained.SustainedPlan, values))


_RUNNERS: dict[str, Callable[[ProbeContext, Values], Awaitable[None]]] = {
    "accounting": _accounting,
    "boundary": _boundary,
    "speed": _speed,
    "warmth": _warmth,
    "quality": _quality,
    "disaggregated": _disaggregated,
    "busy": _busy,
    "reclaim": _reclaim,
    "conversation": _conversation,
    "sweep": _sweep,
    "restart": _restart,
    "sustained": _sustained,
    "overload": _overload,
}
