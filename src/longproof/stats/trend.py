"""Whether a series rises, and how fast: Mann-Kendall's test and Theil and Sen's slope, which no single value can bend.

Sources: Mann 1945; Kendall, Rank Correlation Methods (the distribution of S without ties by recurrence, its variance
with ties); Sen 1968 (the interval of the slope).
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.special import ndtr, ndtri

from longproof.domain.measure import Interval, Unknown

_LEAST = 3
_EXACT_UP_TO = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Slope:
    """The median of the slopes between all pairs of points, in units of value per unit of position."""

    value: float
    interval: Interval


def mann_kendall(values: Sequence[float]) -> float | Unknown:
    """One-sided p-value of "the series rises" against "its order is chance". Exact without ties up to 60 values, else
    by the normal approximation with the variance that ties leave. Unknown for fewer than three values."""
    n = len(values)
    if n < _LEAST:
        return Unknown(reason=f"n = {n}: a trend takes n = {_LEAST}")
    score = sum(_sign(values[j] - values[i]) for i in range(n) for j in range(i + 1, n))
    tied = [count for count in Counter(values).values() if count > 1]
    if not tied and n <= _EXACT_UP_TO:
        return _exact(n, score)
    variance = _score_variance(n, tied)
    if variance == 0:
        return 1.0
    return float(ndtr(-(score - 1) / math.sqrt(variance)))


def theil_sen(positions: Sequence[float], values: Sequence[float], confidence: float = 0.95) -> Slope | Unknown:
    """The slope and its interval, which assumes independent values. Unknown for fewer than three distinct positions.

    Raises ValueError for sequences of different lengths.
    """
    if len(positions) != len(values):
        raise ValueError(f"{len(positions)} positions and {len(values)} values")
    n = len(values)
    slopes = sorted(
        (values[j] - values[i]) / (positions[j] - positions[i])
        for i in range(n)
        for j in range(i + 1, n)
        if positions[j] != positions[i]
    )
    if len(set(positions)) < _LEAST:
        return Unknown(reason=f"n = {len(set(positions))}: a slope with an interval takes n = {_LEAST}")
    ties = [count for count in Counter(values).values() if count > 1]
    half = float(ndtri((1 + confidence) / 2)) * math.sqrt(_score_variance(n, ties))
    low = max(0, round((len(slopes) - half) / 2) - 1)
    high = min(len(slopes) - 1, round((len(slopes) + half) / 2))
    return Slope(
        value=statistics.median(slopes),
        interval=Interval(low=slopes[low], high=slopes[high], confidence=confidence, method="Theil-Sen"),
    )


def _score_variance(n: int, tied: Sequence[int]) -> float:
    whole = n * (n - 1) * (2 * n + 5)
    return (whole - sum(t * (t - 1) * (2 * t + 5) for t in tied)) / 18


def _exact(n: int, score: int) -> float:
    """P(S >= score): S = pairs - 2 × inversions, and orders of n by inversions are counted by recurrence."""
    pairs = n * (n - 1) // 2
    ways = [1]
    for items in range(2, n + 1):
        longer = [0] * (len(ways) + items - 1)
        for inversions, count in enumerate(ways):
            for more in range(items):
                longer[inversions + more] += count
        ways = longer
    most_inversions = (pairs - score) // 2
    return sum(ways[: most_inversions + 1]) / math.factorial(n)


def _sign(value: float) -> int:
    return (value > 0) - (value < 0)
