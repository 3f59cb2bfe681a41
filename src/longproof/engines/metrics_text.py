"""Prometheus text → flat samples, by the reference parser (prometheus_client)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from prometheus_client.parser import text_string_to_metric_families


def metric_values(text: str) -> dict[str, float]:
    """Every sample as ``name{a="x",b="y"}`` (labels sorted) → value. Samples that are no finite number are left out.

    Text that is no Prometheus exposition gives what could be read before the first fault, possibly nothing.
    """
    values: dict[str, float] = {}
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if math.isfinite(sample.value):
                    values[sample_name(sample.name, sample.labels)] = sample.value
    except (ValueError, KeyError, IndexError):
        pass  # the parser's ways to say "this is not the format"
    return values


def sample_name(name: str, labels: Mapping[str, str]) -> str:
    """``name{a="x",b="y"}`` with labels sorted, or the bare name."""
    if not labels:
        return name
    inside = ",".join(f'{label}="{_escaped(value)}"' for label, value in sorted(labels.items()))
    return f"{name}{{{inside}}}"


def total(values: Mapping[str, float], name: str) -> float | None:
    """The sum over all label sets of a metric (engines of a data-parallel group report one each), or None without
    any."""
    found = _of(values, name)
    return sum(found) if found else None


def largest(values: Mapping[str, float], name: str) -> float | None:
    """The largest over all label sets: what to believe of a usage fraction."""
    found = _of(values, name)
    return max(found) if found else None


def _of(values: Mapping[str, float], name: str) -> list[float]:
    labelled = name + "{"
    return [value for key, value in values.items() if key == name or key.startswith(labelled)]


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def names(values: Iterable[str]) -> set[str]:
    """Metric names without labels."""
    return {key.partition("{")[0] for key in values}
