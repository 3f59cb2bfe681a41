"""Requirements as people write them: ``context >= 32k``, ``ttft_p95_s@4096 <= 5``, ``faults == 0``.

METRIC[_STAT][_UNIT][{CONDITION=VALUE,…}][@LENGTH] OP NUMBER[UNIT] [@ CONFIDENCE]
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from typing import NoReturn

from longproof.claim.metric import Kind, Metric
from longproof.claim.metrics import METRICS
from longproof.domain.units import parse_tokens
from longproof.errors import UsageError

_SHAPE = re.compile(
    r"^\s*(?P<name>[A-Za-z]\w*)\s*(?:\{(?P<conditions>[^{}]*)\}\s*)?(?:@\s*(?P<length>[\w.,]+))?\s*"
    r"(?P<op><=|>=|==|=|≤|≥|<|>)\s*"
    r"(?P<number>-?[\d.,_]+)\s*(?P<unit>[A-Za-z/%]*)\s*"
    r"(?:@\s*(?P<confidence>\d*\.?\d+)\s*(?P<percent>%?))?\s*$"
)
_EXAMPLES = "write for example 'context >= 32k', 'ttft_p95_s@4096 <= 5' or 'faults == 0'"
_OPS = {"≤": "<=", "≥": ">=", "=": "=="}
_UNITS: dict[str, dict[str, Fraction]] = {
    "s": {
        "": Fraction(1),
        "s": Fraction(1),
        "ms": Fraction(1, 1_000),
        "us": Fraction(1, 1_000_000),
        "min": Fraction(60),
        "h": Fraction(3_600),
    },
    "tok/s": {"": Fraction(1), "tok/s": Fraction(1)},
    "fraction": {"": Fraction(1), "%": Fraction(1, 100)},
    "ratio": {"": Fraction(1), "x": Fraction(1), "%": Fraction(1, 100)},
    "power": {"": Fraction(1)},
    "findings": {"": Fraction(1)},
    "places": {"": Fraction(1)},
    "preemptions": {"": Fraction(1)},
    "req/s": {"": Fraction(1), "req/s": Fraction(1)},
}
"""Exact, so that 2300 ms is the same limit as 2.3 s."""
_NAMED_UNITS = {"s": "s", "ms": "ms", "us": "us", "tokens": "tokens", "tok_s": "tok/s", "req_s": "req/s"}
_SAMPLED = (Kind.SAMPLES, Kind.DEPENDENT)
_LEAST_CONFIDENCE = 0.5


class Op(StrEnum):
    """How the metric must compare with the number."""

    AT_MOST = "<="
    AT_LEAST = ">="
    BELOW = "<"
    ABOVE = ">"
    EQUAL = "=="

    def holds(self, value: float, limit: float) -> bool:
        """Whether a value meets the limit."""
        return {
            Op.AT_MOST: value <= limit,
            Op.AT_LEAST: value >= limit,
            Op.BELOW: value < limit,
            Op.ABOVE: value > limit,
            Op.EQUAL: value == limit,
        }[self]

    @property
    def wants_low(self) -> bool:
        """Whether smaller values meet it."""
        return self in (Op.AT_MOST, Op.BELOW)


class Stat(StrEnum):
    """What of a metric's samples a requirement speaks of."""

    MEAN = "mean"
    P50 = "p50"
    P90 = "p90"
    P95 = "p95"
    P99 = "p99"
    MAX = "max"
    MIN = "min"

    @property
    def quantile(self) -> float | None:
        """0.95 for p95; None for what is no quantile."""
        return int(self.value[1:]) / 100 if self.value[1:].isdigit() else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """One requirement. `limit` is in the metric's own unit; `stat` is None for metrics without samples; `length_tokens`
    None = every measured length; `confidence` None = the gate's own. `conditions`: only statements that hold under all
    of these."""

    text: str
    metric: Metric
    stat: Stat | None
    length_tokens: int | None
    op: Op
    limit: float
    confidence: float | None
    conditions: tuple[tuple[str, str], ...] = ()

    def meant(self, conditions: Mapping[str, str]) -> bool:
        """Whether a statement under these conditions is one of those it speaks of."""
        return all(conditions.get(name) == value for name, value in self.conditions)


def parse_requirement(text: str) -> Requirement:
    """The requirement a text means. UsageError says what cannot be meant and what can."""
    found = _SHAPE.match(text)
    if found is None:
        _refuse(text, "is not a requirement", _EXAMPLES)
    metric, stat, unit = _name(text, found["name"].lower())
    op = Op(_OPS.get(found["op"], found["op"]))
    _check_op(text, metric, op)
    length = None if found["length"] is None else parse_tokens(found["length"])
    if length is not None and not metric.by_length:
        _refuse(text, f"names a length, and {metric.id} is not tied to one", f"leave out '@{found['length']}'")
    return Requirement(
        text=text.strip(),
        metric=metric,
        stat=stat,
        length_tokens=length,
        op=op,
        limit=_limit(text, metric, found["number"], found["unit"], unit),
        confidence=_confidence(text, found["confidence"], bool(found["percent"])),
        conditions=_conditions(text, found["conditions"]),
    )


def check_confidence(confidence: float, where: str) -> None:
    """UsageError for a confidence that turns bounds around (below one half) or that no sample reaches (1)."""
    if not _LEAST_CONFIDENCE <= confidence < 1:
        raise UsageError(
            f"{where}: a confidence of {confidence:g} makes no sense",
            advice=f"use one from {_LEAST_CONFIDENCE} to below 1, such as 0.95",
        )


def _name(text: str, name: str) -> tuple[Metric, Stat | None, str]:
    """``prefill_rate_p50`` → (prefill_rate, p50, no unit)."""
    fits = [metric for metric in METRICS.values() if name == metric.id or name.startswith(f"{metric.id}_")]
    if not fits:
        _refuse(text, f"names no metric: '{name}'", f"choose from {', '.join(sorted(METRICS))}")
    metric = max(fits, key=lambda item: len(item.id))
    rest = name[len(metric.id) + 1 :]
    stat: Stat | None = None
    for candidate in Stat:
        if rest == candidate or rest.startswith(f"{candidate}_"):
            stat, rest = candidate, rest[len(candidate) + 1 :]
    if stat is not None and metric.kind not in _SAMPLED:
        _refuse(text, f"asks for the {stat} of {metric.id}, which has no samples", f"write '{metric.id}' alone")
    if rest and (rest not in _NAMED_UNITS or not _measures(metric, _NAMED_UNITS[rest])):
        known = [name for name, unit in _NAMED_UNITS.items() if _measures(metric, unit)]
        can = f"statistics ({', '.join(Stat)})" if metric.kind in _SAMPLED else "no statistic"
        _refuse(text, f"has '{rest}' behind {metric.id}", f"{metric.id} takes {can} and units ({', '.join(known)})")
    if metric.kind in _SAMPLED and stat is None:
        stat = Stat.MEAN
    return metric, stat, _NAMED_UNITS.get(rest, "")


def _conditions(text: str, words: str | None) -> tuple[tuple[str, str], ...]:
    """``concurrency=4, cache=cold`` → pairs."""
    found: list[tuple[str, str]] = []
    for part in filter(None, (words or "").split(",")):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not (name and equals and value):
            _refuse(text, f"has the condition '{part.strip()}'", "write name=value, such as {concurrency=4,cache=cold}")
        found.append((name, value))
    return tuple(found)


def _measures(metric: Metric, unit: str) -> bool:
    return unit == "tokens" if metric.unit == "tokens" else unit in _UNITS[metric.unit]


def _check_op(text: str, metric: Metric, op: Op) -> None:
    if metric.kind is Kind.REACH and op not in (Op.AT_LEAST, Op.ABOVE):
        _refuse(
            text,
            f"limits {metric.id} from above: it is the longest that was seen to work, and longer may work too",
            f"write '{metric.id} >= …'",
        )
    if op is Op.EQUAL and metric.kind is not Kind.EXACT:
        _refuse(text, f"asks {metric.id} to equal a number, which no measurement does", "use <= or >=")


def _limit(text: str, metric: Metric, number: str, unit: str, named_unit: str) -> float:
    unit = unit if unit in ("M", "Mi") else unit.lower()
    if metric.unit == "tokens":
        return float(parse_tokens(number + ("" if unit in ("tok", "tokens") else unit)))
    if unit and named_unit and unit != named_unit:
        _refuse(text, f"gives two units, {named_unit} and {unit}", "give the unit once")
    factors = _UNITS[metric.unit]
    if (unit or named_unit) not in factors:
        named = [name for name in factors if name]
        _refuse(
            text,
            f"has the unit '{unit}'",
            f"{metric.id} is in {metric.unit}; known units: {', '.join(named) or 'none'}",
        )
    try:
        value = Fraction(number.replace("_", "").replace(",", ""))
    except ValueError:
        _refuse(text, f"has '{number}', which is not a number", _EXAMPLES)
    return float(value * factors[unit or named_unit])


def _confidence(text: str, number: str | None, percent: bool) -> float | None:
    if number is None:
        return None
    confidence = float(number) / 100 if percent else float(number)
    check_confidence(confidence, f"'{text.strip()}'")
    return confidence


def _refuse(text: str, problem: str, advice: str) -> NoReturn:
    raise UsageError(f"'{text.strip()}' {problem}", advice=advice)
