"""Prometheus text → flat samples. The reference parser (prometheus_client) reads every name and its labels, once.

A large engine's text is thousands of lines, of which a scrape to the next changes nothing but the numbers, and the
reference parser takes some 15 µs for each: 30 ms in which a client that measures would see nothing else. So what it
made of a line's head, up to the number, is remembered.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache

from prometheus_client.parser import text_string_to_metric_families


def metric_values(text: str, keep: Callable[[str], bool] | None = None) -> dict[str, float]:
    """Samples as ``name{a="x",b="y"}`` (labels sorted) → value. Samples that are no finite number are left out, and so
    are those whose bare name `keep` turns down.

    Text that is no Prometheus exposition gives what could be read before the first fault, possibly nothing.
    """
    values: dict[str, float] = {}
    kept: dict[str, bool] = {}
    try:
        for line in map(str.strip, text.split("\n")):
            name, labelled, _ = line.partition("{")
            if not labelled:
                name = name.partition(" ")[0]
            wanted = kept.get(name)
            if wanted is None:
                bare = name.split()[0] if name else "#"  # a tab may stand before the number
                kept[name] = wanted = bare[0] != "#" and (keep is None or keep(bare))
            if not wanted:
                continue
            head, _, number = line.rpartition(" ")
            full = _full_name(head)
            value, full = (float(number), full) if full is not None else _read(line)
            if math.isfinite(value):
                values[full] = value
    except (ValueError, KeyError, IndexError):
        pass  # the parser's ways to say "this is not the format"
    return values


@lru_cache(maxsize=16_384)
def _full_name(head: str) -> str | None:
    """The sample that a line's head names; None where the head holds something else (a time stands at the line's
    end; no space at all)."""
    if not head or (not head.endswith("}") and any(letter.isspace() for letter in head)):
        return None
    return _read(head + " 0")[1]


def _read(line: str) -> tuple[float, str]:
    for family in text_string_to_metric_families(line):
        for sample in family.samples:
            return sample.value, sample_name(sample.name, sample.labels)
    raise ValueError(line)


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
