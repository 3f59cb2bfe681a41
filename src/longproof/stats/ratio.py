"""How many times one thing is another: ratios of positive samples, on the scale of logarithms, where they are
symmetric."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from scipy.special import stdtrit

from longproof.domain.measure import Interval, Unknown
from longproof.stats import mean


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """A ratio of geometric means. `n` counts pairs, or the smaller of two independent samples."""

    value: float
    interval: Interval | Unknown
    n: int


def paired_ratio(pairs: Sequence[tuple[float, float]], confidence: float = 0.95) -> Ratio | Unknown:
    """The geometric mean of numerator / denominator over pairs, with a t interval on the logarithms.

    Unknown without pairs. Raises ValueError for a number that is not positive.
    """
    if not pairs:
        return Unknown(reason="n = 0")
    _check_positive(value for pair in pairs for value in pair)
    logs = [math.log(numerator) - math.log(denominator) for numerator, denominator in pairs]
    found = mean.interval(logs, confidence)
    return Ratio(
        value=math.exp(statistics.fmean(logs)),
        interval=found if isinstance(found, Unknown) else _back(found.low, found.high, confidence, "t on paired logs"),
        n=len(pairs),
    )


def unpaired_ratio(
    numerators: Sequence[float], denominators: Sequence[float], confidence: float = 0.95
) -> Ratio | Unknown:
    """The ratio of the geometric means of two independent samples, with Welch's interval (1947) on the logarithms.

    Unknown where a side has no samples; the interval is Unknown where one has fewer than two. Raises ValueError for a
    number that is not positive.
    """
    if not numerators or not denominators:
        return Unknown(reason="n = 0")
    _check_positive((*numerators, *denominators))
    above, below = [math.log(value) for value in numerators], [math.log(value) for value in denominators]
    centre = statistics.fmean(above) - statistics.fmean(below)
    n = min(len(above), len(below))
    if n < 2:
        return Ratio(value=math.exp(centre), interval=Unknown(reason=f"n = {n}"), n=n)
    half = _welch_half_width(above, below, confidence)
    return Ratio(
        value=math.exp(centre), interval=_back(centre - half, centre + half, confidence, "Welch t on logs"), n=n
    )


def _welch_half_width(first: list[float], second: list[float], confidence: float) -> float:
    parts = [(statistics.variance(side) / len(side), len(side)) for side in (first, second)]
    total = sum(part for part, _ in parts)
    if total == 0:
        return 0.0
    freedom = total**2 / sum(part**2 / (n - 1) for part, n in parts)
    return float(stdtrit(freedom, (1 + confidence) / 2)) * math.sqrt(total)


def _back(low: float, high: float, confidence: float, method: str) -> Interval:
    return Interval(low=math.exp(low), high=math.exp(high), confidence=confidence, method=method)


def _check_positive(values: Iterable[float]) -> None:
    for value in values:
        if not value > 0:
            raise ValueError(f"{value} is not positive: a ratio of it has no logarithm")
