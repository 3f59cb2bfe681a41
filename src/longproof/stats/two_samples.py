"""Two independent samples: does one lie higher than the other, and by how much? No shape is assumed.

    mann_whitney       how likely ranks so uneven are, were both of one distribution
    ratio_shift        by which factor one lies above the other: the median of all quotients (Hodges and Lehmann 1963 on
                       logarithms), its interval from the ranks (Lehmann, Nonparametrics, 1975, chapter 2)
    quantile_ratio     quotient of one quantile of each, with the bootstrap's own distribution, computed and not drawn:
                       a resample's k-th value is at most the j-th of the sample with P(Binomial(n, j/n) ≥ k)

Mann and Whitney 1947: exact for small samples without ties, else normal with the correction for ties.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtrc, ndtr, ndtri

from longproof.domain.measure import Interval, Unknown
from longproof.stats.ratio import Ratio

_EXACT_PAIRS = 400
_MOST = 1_000
"""Larger samples are thinned evenly over their order: a million quotients say as much as all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTest:
    """`higher` is P(X > Y) + P(X = Y) / 2 as seen: 0.5 when neither lies higher. `p` is two-sided; `p_higher` the
    chance of so much or more when X does not lie higher."""

    higher: float
    p: float
    p_higher: float


def mann_whitney(x: Sequence[float], y: Sequence[float]) -> RankTest | Unknown:
    """Whether `x` lies higher or lower than `y`. Unknown where a side has no samples."""
    if not x or not y:
        return Unknown(reason="n = 0")
    n, m = len(x), len(y)
    joined = np.asarray([*x, *y], dtype=np.float64)
    ranks, ties = _ranks(joined)
    u = float(ranks[:n].sum()) - n * (n + 1) / 2
    if not ties and n * m <= _EXACT_PAIRS:
        counts = _counts(n, m)
        total = sum(counts)
        above = sum(counts[round(u) :]) / total
        below = sum(counts[: round(u) + 1]) / total
    else:
        all_n = n + m
        tied = sum(t**3 - t for t in ties) / (all_n * (all_n - 1))
        spread = math.sqrt(n * m / 12 * (all_n + 1 - tied))
        if spread == 0:
            return RankTest(higher=0.5, p=1.0, p_higher=1.0)
        above = float(ndtr(-(u - n * m / 2 - 0.5) / spread))
        below = float(ndtr((u - n * m / 2 + 0.5) / spread))
    return RankTest(higher=u / (n * m), p=min(1.0, 2 * min(above, below)), p_higher=min(1.0, above))


def ratio_shift(x: Sequence[float], y: Sequence[float], confidence: float = 0.95) -> Ratio | Unknown:
    """By which factor `x` lies above `y`: the median of all x / y, with the interval that the rank test does not
    reject. The interval is Unknown where the samples are too few for one (3 and 3 at 0.95).

    Unknown where a side has no samples. Raises ValueError for a number that is not positive.
    """
    if not x or not y:
        return Unknown(reason="n = 0")
    if min(*x, *y) <= 0:
        raise ValueError("a ratio needs positive numbers")
    above, below = np.log(_thinned(x)), np.log(_thinned(y))
    quotients = np.sort((above[:, None] - below[None, :]).ravel())
    n, m = len(above), len(below)
    outside = _outside(n, m, (1 - confidence) / 2)
    return Ratio(
        value=math.exp(float(np.median(quotients))),
        interval=Unknown(reason=f"n = {n} and {m} are too few for a {100 * confidence:g} % interval")
        if outside is None
        else Interval(
            low=math.exp(float(quotients[outside])),
            high=math.exp(float(quotients[-1 - outside])),
            confidence=confidence,
            method="Hodges-Lehmann",
        ),
        n=min(n, m),
    )


def quantile_ratio(
    x: Sequence[float], y: Sequence[float], q: float, confidence: float = 0.95, *, least: int = 20
) -> Ratio | Unknown:
    """The `q` quantile of `x` over that of `y`, with the percentile bootstrap interval.

    Unknown with fewer than `least` samples on a side: a resample of few knows no tail. Raises ValueError for a number
    that is not positive.
    """
    if min(len(x), len(y)) < least:
        return Unknown(reason=f"n = {len(x)} and {len(y)}: a p{100 * q:g} takes n = {least} on either side")
    if min(*x, *y) <= 0:
        raise ValueError("a ratio needs positive numbers")
    above, below = np.sort(_thinned(x)), np.sort(_thinned(y))
    quotients = np.log(above)[:, None] - np.log(below)[None, :]
    weights = _resampled(len(above), q)[:, None] * _resampled(len(below), q)[None, :]
    order = np.argsort(quotients, axis=None)
    cumulated = np.cumsum(weights.ravel()[order])
    tail = (1 - confidence) / 2
    low, high = (int(np.searchsorted(cumulated, share)) for share in (tail, 1 - tail))
    ordered = quotients.ravel()[order]
    return Ratio(
        value=float(above[_rank(len(above), q) - 1] / below[_rank(len(below), q) - 1]),
        interval=Interval(
            low=math.exp(float(ordered[low])),
            high=math.exp(float(ordered[min(high, len(ordered) - 1)])),
            confidence=confidence,
            method="bootstrap",
        ),
        n=min(len(x), len(y)),
    )


def _rank(n: int, q: float) -> int:
    return max(1, math.ceil(q * n - 1e-12))


def _resampled(n: int, q: float) -> NDArray[np.float64]:
    """P(the resample's quantile is the j-th value), j = 1..n."""
    j = np.arange(0, n + 1, dtype=np.float64)
    reached = np.asarray(bdtrc(_rank(n, q) - 1, n, j / n), dtype=np.float64)
    reached[0], reached[-1] = 0.0, 1.0
    return np.diff(reached)


def _thinned(values: Sequence[float]) -> NDArray[np.float64]:
    ordered = np.sort(np.asarray(values, dtype=np.float64))
    if len(ordered) <= _MOST:
        return ordered
    return ordered[np.round(np.linspace(0, len(ordered) - 1, _MOST)).astype(np.int64)]


def _ranks(values: NDArray[np.float64]) -> tuple[NDArray[np.float64], list[int]]:
    """Mid-ranks from 1, and the sizes of the groups of equal values."""
    _, inverse, sizes = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(sizes)
    return (ends - (sizes - 1) / 2)[inverse], [int(size) for size in sizes if size > 1]


@lru_cache(maxsize=64)
def _counts(n: int, m: int) -> tuple[int, ...]:
    """In how many of the orders of n + m values U is 0, 1, … n·m (Mann and Whitney's recursion, as a product of
    polynomials: prod (1 - z^(m+i)) / (1 - z^i))."""
    most = n * m
    found = [1] + [0] * most
    for i in range(1, n + 1):
        for at in range(most, m + i - 1, -1):
            found[at] -= found[at - m - i]
        for at in range(i, most + 1):
            found[at] += found[at - i]
    return tuple(found)


def _outside(n: int, m: int, tail: float) -> int | None:
    """How many quotients stay outside on either side of the interval; None = even all of them are too few."""
    if n * m <= _EXACT_PAIRS:
        counts = _counts(n, m)
        total, seen, outside = sum(counts), 0, -1
        while seen + counts[outside + 1] <= tail * total:
            outside += 1
            seen += counts[outside]
        return None if outside < 0 else outside
    spread = math.sqrt(n * m * (n + m + 1) / 12)
    outside = math.floor(n * m / 2 - 0.5 - float(ndtri(1 - tail)) * spread)
    return None if outside < 0 else outside
