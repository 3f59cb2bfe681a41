"""What a statement says about the number a requirement speaks of: its estimate, and the one-sided bounds around it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from longproof.claim.metric import Kind
from longproof.claim.metrics import METRICS
from longproof.claim.requirement import Op, Stat
from longproof.claim.statements import Statement
from longproof.domain.measure import Unknown
from longproof.stats import mean, proportion, quantile

_LEAST_REPEATS = 3
_MOST_REPEATS = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The number is at least `low` and at most `high`, each with the one-sided confidence that was asked for.

    `what` names it in words (``p95``, ``mean``, empty where the metric is one number); `inferred` is false where the
    bounds are the number itself: counted, reported, or an extreme of the samples that were taken.
    """

    estimate: float
    low: float | Unknown
    high: float | Unknown
    what: str
    inferred: bool


def bounds_of(statement: Statement, stat: Stat | None, confidence: float) -> Bounds | Unknown:
    """The bounds a statement supports. Unknown, with the reason, where it holds no number."""
    kind = METRICS[statement.metric].kind
    if statement.samples and (kind is Kind.SAMPLES or stat in (Stat.MAX, Stat.MIN)):
        return _of_samples(statement.samples, stat or Stat.MEAN, confidence)
    if statement.samples and kind is Kind.RATIO:
        return _of_ratios(statement.samples, confidence)
    if isinstance(statement.value, Unknown):
        return statement.value
    value = statement.value.value
    if stat not in (None, Stat.MEAN):
        why = "its samples depend on each other" if kind is Kind.DEPENDENT else "no samples were kept"
        return Unknown(reason=f"the {stat} cannot be bounded: {why}")
    if kind is Kind.EXACT or kind is Kind.REACH:
        return Bounds(estimate=value, low=value, high=value, what="", inferred=False)
    if kind is Kind.PROPORTION:
        return _of_trials(value, statement.n, confidence)
    return _of_interval(statement, value, "" if stat is None else stat.value, confidence)


def repeats_to_decide(
    statement: Statement, stat: Stat | None, op: Op, limit: float, confidence: float, found: Bounds
) -> int | None:
    """About how many samples would decide, if the rest are like those taken. None where no number is foreseeable."""
    if METRICS[statement.metric].kind is Kind.PROPORTION:
        return _trials_to_decide(statement.n, found.estimate, limit, confidence)
    if stat is not None and stat.quantile is not None:
        return _for_quantile(statement.samples, stat.quantile, op, limit, confidence, found.estimate)
    samples, kind = statement.samples, METRICS[statement.metric].kind
    if kind in (Kind.DEPENDENT, Kind.ESTIMATE):
        return None
    if kind is Kind.RATIO:
        if limit <= 0:
            return None
        samples, limit = tuple(math.log(value) for value in samples), math.log(limit)
    if len(samples) < 2:
        return _LEAST_REPEATS
    more = mean.samples_to_decide(samples, limit, confidence)
    return None if isinstance(more, Unknown) else max(more, len(samples) + 1)


def _for_quantile(
    samples: tuple[float, ...], q: float, op: Op, limit: float, confidence: float, estimate: float
) -> int:
    """The bound that is on its way to the limit decides: the upper one when the estimate lies below."""
    more = len(samples) + 1
    if op.wants_low == op.holds(estimate, limit):
        above = sum(not op.holds(value, limit) if op.wants_low else op.holds(value, limit) for value in samples)
        return quantile.samples_for_upper(q, confidence, above=above, at_least=more)
    below = sum(op.holds(value, limit) if op.wants_low else not op.holds(value, limit) for value in samples)
    return quantile.samples_for_lower(q, confidence, below=below, at_least=more)


def _of_samples(samples: tuple[float, ...], stat: Stat, confidence: float) -> Bounds:
    if stat in (Stat.MAX, Stat.MIN):
        extreme = max(samples) if stat is Stat.MAX else min(samples)
        return Bounds(estimate=extreme, low=extreme, high=extreme, what=stat.value, inferred=False)
    q = stat.quantile
    if q is None:
        estimate = mean.sample_mean(samples)
        low, high = mean.lower_bound(samples, confidence), mean.upper_bound(samples, confidence)
    else:
        estimate = quantile.sample_quantile(samples, q)
        low, high = quantile.lower_bound(samples, q, confidence), quantile.upper_bound(samples, q, confidence)
    assert not isinstance(estimate, Unknown)  # there are samples
    return Bounds(estimate=estimate, low=low, high=high, what=stat.value, inferred=True)


def _of_ratios(ratios: tuple[float, ...], confidence: float) -> Bounds:
    logs = [math.log(value) for value in ratios]
    low, high = mean.lower_bound(logs, confidence), mean.upper_bound(logs, confidence)
    return Bounds(
        estimate=math.exp(math.fsum(logs) / len(logs)),
        low=low if isinstance(low, Unknown) else math.exp(low),
        high=high if isinstance(high, Unknown) else math.exp(high),
        what="geometric mean",
        inferred=True,
    )


def _of_trials(share: float, n: int, confidence: float) -> Bounds | Unknown:
    if n < 1:
        return Unknown(reason="n = 0")
    successes = round(share * n)
    return Bounds(
        estimate=share,
        low=proportion.lower_bound(successes, n, confidence),
        high=proportion.upper_bound(successes, n, confidence),
        what="",
        inferred=True,
    )


def _of_interval(statement: Statement, value: float, what: str, confidence: float) -> Bounds:
    """Without samples the statement's own interval serves, where its one-sided confidence is enough."""
    interval = statement.interval
    if interval is None or (1 + interval.confidence) / 2 < confidence:
        reason = (
            f"n = {statement.n}" if interval is None else f"its interval has a confidence of {interval.confidence:g}"
        )
        return Bounds(
            estimate=value, low=Unknown(reason=reason), high=Unknown(reason=reason), what="mean", inferred=True
        )
    return Bounds(estimate=value, low=interval.low, high=interval.high, what=what, inferred=True)


def _trials_to_decide(n: int, share: float, limit: float, confidence: float) -> int | None:
    """Trials until a bound around this same share of successes clears the limit, to within one part in twenty."""
    while (n := n + max(1, n // 20)) < _MOST_REPEATS:
        successes = round(share * n)
        low = proportion.lower_bound(successes, n, confidence)
        high = proportion.upper_bound(successes, n, confidence)
        if low > limit or high < limit or low == limit <= share:
            return n
    return None
