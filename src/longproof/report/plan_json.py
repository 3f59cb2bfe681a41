"""A plan and a model's geometry as JSON: every figure with its unit in the name, a reading with where it came from."""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import cast

from longproof.domain.measure import Measured, Unknown
from longproof.plan.layouts import describe_layout
from longproof.plan.perf_estimate import TimeEstimate
from longproof.plan.planner import Plan
from longproof.plan.summary import ModelSummary


def plan_json(plan: Plan, *, command: str | None = None) -> str:
    """The whole plan. `judgement.value.verdict.kind` is admit, queue or reject."""
    document: dict[str, object] = {
        "model": tree(plan.model),
        "engine": plan.launch.engine.value,
        "version": plan.launch.version,
        "layout": {"name": describe_layout(plan.launch.layout), **_fields(plan.launch.layout)},
        "kv_dtype": plan.launch.kv_dtype,
        "device": plan.device,
        "limit_tokens": plan.rule.limit_tokens,
        "request": {**_fields(plan.request), "input_tokens": plan.request.input_tokens},
        "ranks": [tree(rank) for rank in plan.ranks],
        "capacity": tree(plan.capacity),
        "judgement": tree(plan.judgement),
        "at_once": tree(plan.at_once),
        "curve": tree(plan.curve),
        "speeds": tree(plan.speeds),
        "prices": tree(plan.prices),
        "mix": tree(plan.mix),
        "unknown": list(plan.unknowns),
        "notes": list(plan.notes),
    }
    if command is not None:
        document["command"] = command
    return _dump(document)


def summary_json(summary: ModelSummary) -> str:
    """A model's geometry."""
    return _dump(_fields(summary))


def tree(value: object) -> object:
    """A value as JSON has it: dataclasses as objects, readings with provenance or the reason they are unknown."""
    if isinstance(value, Unknown):
        return {"unknown": value.reason}
    if isinstance(value, Measured):
        known = cast("Measured[object]", value)  # isinstance loses the parameter
        return {"value": tree(known.value), "provenance": known.provenance.value, "source": known.source}
    if isinstance(value, TimeEstimate):
        return {"seconds": value.seconds, "low_seconds": value.low, "high_seconds": value.high, **_fields(value)}
    if is_dataclass(value) and not isinstance(value, type):
        kind = type(value).__name__.lower()
        named = {"kind": kind} if kind in ("admit", "queue", "reject") else {}
        return {**named, **_fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, (tuple, list)):
        items: list[object] = list(value)  # pyright: ignore[reportUnknownArgumentType] - an object's items are objects
        return [tree(entry) for entry in items]
    return value


def _fields(value: object) -> dict[str, object]:
    assert is_dataclass(value)  # the caller asked
    return {field.name: tree(getattr(value, field.name)) for field in fields(value)}


def _dump(document: dict[str, object]) -> str:
    return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)
