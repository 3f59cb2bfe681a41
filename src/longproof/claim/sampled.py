"""Statements about samples: a mean, its interval, and the sentence that says both."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from longproof.claim.metrics import METRICS
from longproof.claim.statements import Standing, Statement
from longproof.domain.measure import Interval, Measured, Provenance, Unknown
from longproof.domain.units import format_ns
from longproof.stats import mean

_SIGNED = frozenset({"engine_ttft_gap", "ttft_exponent"})
"""Metrics whose values may be negative."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """One sample of a metric: its value in the metric's unit, and the record it came from."""

    value: float
    key: str


def sampled_statement(
    metric: str,
    samples: Sequence[Sampled],
    *,
    probe: str,
    subject: str,
    at_tokens: int | None,
    conditions: Mapping[str, str],
    why_none: str,
    interval: Interval | Unknown | None = None,
) -> Statement:
    """A metric's mean over samples. `subject` begins the sentence; `why_none` is the reason when there are no samples.

    `interval` None: Student's t over the samples; given where the samples are not independent of each other.
    """
    values = tuple(sample.value for sample in samples)
    found = mean.sample_mean(values)
    unknown = Statement(
        id=f"{probe}.{metric}" if at_tokens is None else f"{probe}.{metric}.{at_tokens}",
        metric=metric,
        text=f"{subject}: not known, {why_none}.",
        standing=Standing.NOT_SHOWN,
        unit=METRICS[metric].unit,
        value=Unknown(reason=why_none),
        n=0,
        at_tokens=at_tokens,
        conditions=dict(conditions),
    )
    if isinstance(found, Unknown):
        return unknown
    spread = _possible(metric, mean.interval(values) if interval is None else interval)
    return replace(
        unknown,
        text=f"{subject}: {show(metric, found)} {describe_spread(metric, len(values), spread)}.",
        standing=Standing.SHOWN,
        value=Measured(value=found, provenance=Provenance.MEASURED, source=METRICS[metric].formula),
        n=len(values),
        interval=spread if isinstance(spread, Interval) else None,
        samples=values,
        evidence=tuple(dict.fromkeys(sample.key for sample in samples)),
    )


def _possible(metric: str, spread: Interval | Unknown) -> Interval | Unknown:
    """The part of an interval that can be: times, rates and shares are not below zero, however few samples Student's t
    had. Cutting there loses no coverage."""
    if isinstance(spread, Unknown) or metric in _SIGNED or spread.low >= 0:
        return spread
    return replace(spread, low=0.0)


def describe_spread(metric: str, n: int, spread: Interval | Unknown) -> str:
    """``(n = 3, 95 % interval 1.1 s to 1.3 s)``, or ``(n = 1)``."""
    if isinstance(spread, Unknown):
        return f"(n = {n})"
    low, high = show(metric, spread.low), show(metric, spread.high)
    return f"(n = {n}, {100 * spread.confidence:g} % interval {low} to {high})"


def show(metric: str, value: float) -> str:
    """A value in its metric's unit, for people: times with three figures, rates, shares and ratios."""
    unit = METRICS[metric].unit
    formats: dict[str, Callable[[float], str]] = {
        "s": lambda seconds: format_ns(seconds * 1e9),
        "tok/s": lambda rate: f"{rate:,.0f} tok/s" if rate >= 100 else f"{rate:.3g} tok/s",
        "fraction": lambda share: f"{100 * share:.3g} %",
    }
    return formats[unit](value) if unit in formats else f"{value:.3g}"
