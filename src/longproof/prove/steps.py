"""From a step of the protocol to the probe that runs it. A new probe is one file, and one line here."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

from longproof.asking.context import ProbeContext
from longproof.evidence.records import Step
from longproof.probe import accounting, boundary, speed, warmth

_Values: TypeAlias = dict[str, int | float | str | bool | list[int]]


async def run_step(ctx: ProbeContext, step: Step) -> None:
    """Runs one step with the parameters that stand in the protocol."""
    await _RUNNERS[step.probe](ctx, step.parameters)


async def _accounting(ctx: ProbeContext, values: _Values) -> None:
    plan = accounting.AccountingPlan(
        lengths=_ints(values, "lengths"),
        canary_tokens=_int(values, "canary_tokens"),
        limit_tokens=_int_or_none(values, "limit_tokens"),
    )
    await accounting.run(ctx, plan)


async def _boundary(ctx: ProbeContext, values: _Values) -> None:
    plan = boundary.BoundaryPlan(
        top_tokens=_int(values, "top_tokens"),
        limit_tokens=_int_or_none(values, "limit_tokens"),
        hint_tokens=_int_or_none(values, "hint_tokens"),
        floor_tokens=_int(values, "floor_tokens"),
        resolution_tokens=_int(values, "resolution_tokens"),
        repeats=_int(values, "repeats"),
    )
    await boundary.run(ctx, plan)


async def _speed(ctx: ProbeContext, values: _Values) -> None:
    await speed.run(ctx, _ints(values, "lengths"), _int(values, "repeats"))


async def _warmth(ctx: ProbeContext, values: _Values) -> None:
    await warmth.run(ctx, _ints(values, "lengths"), _int(values, "repeats"))


def _int(values: _Values, name: str) -> int:
    value = values[name]
    if not isinstance(value, int):
        raise TypeError(f"parameter {name} is {value!r}, not a number")
    return value


def _int_or_none(values: _Values, name: str) -> int | None:
    return _int(values, name) if name in values else None


def _ints(values: _Values, name: str) -> tuple[int, ...]:
    value = values[name]
    if not isinstance(value, list):
        raise TypeError(f"parameter {name} is {value!r}, not a list")
    return tuple(value)


_RUNNERS: dict[str, Callable[[ProbeContext, _Values], Awaitable[None]]] = {
    "accounting": _accounting,
    "boundary": _boundary,
    "speed": _speed,
    "warmth": _warmth,
}
