"""A step's parameters: what stands in the protocol for a probe's plan, and the plan read back from it.

A plan is a frozen dataclass. Its fields become parameters by name, nested ones with dots between (``background.seed``);
None is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias, TypeVar, cast

from pydantic import TypeAdapter

from longproof.evidence.records import Step

Values: TypeAlias = Mapping[str, int | float | str | bool | list[int] | list[float] | list[str]]
PlanT = TypeVar("PlanT")


def step_of(probe: str, plan: object) -> Step:
    """The step that runs a probe by this plan."""
    document = TypeAdapter[object](type(plan)).dump_python(plan, mode="json")
    return Step(probe=probe, parameters=dict(_flat("", document)))


def plan_of(kind: type[PlanT], values: Values) -> PlanT:
    """The plan behind a step's parameters. ValidationError where they do not make one: our bug."""
    nested: dict[str, Any] = {}
    for name, value in values.items():
        *path, last = name.split(".")
        place = nested
        for part in path:
            place = place.setdefault(part, {})
        place[last] = value
    return TypeAdapter(kind).validate_python(nested)


def int_of(values: Values, name: str) -> int:
    """A whole number. TypeError where it is none: our bug."""
    value = values[name]
    if not isinstance(value, int):
        raise TypeError(f"parameter {name} is {value!r}, not a number")
    return value


def int_or_none(values: Values, name: str) -> int | None:
    """A whole number, or None where it is left out."""
    return int_of(values, name) if name in values else None


def ints_of(values: Values, name: str) -> tuple[int, ...]:
    """Whole numbers."""
    value = values[name]
    if not isinstance(value, list):
        raise TypeError(f"parameter {name} is {value!r}, not a list")
    return tuple(item for item in value if isinstance(item, int))


def _flat(prefix: str, document: Mapping[str, Any]) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for name, value in document.items():
        if isinstance(value, dict):
            found += _flat(f"{prefix}{name}.", cast("Mapping[str, Any]", value))
        elif value is not None:
            found.append((f"{prefix}{name}", value))
    return found
