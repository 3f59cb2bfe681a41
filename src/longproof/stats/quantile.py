"""Quantiles of a sample, and what a sample says about the quantile behind it.

Bounds are order statistics: they assume independent samples of one distribution, and nothing about its shape.

    samples sorted   x1 ≤ x2 ≤ … ≤ xn
    upper bound      the smallest xk with P(Binomial(n, q) ≤ k-1) ≥ confidence
    lower bound      the largest  xk with P(Binomial(n, q) ≥ k)   ≥ confidence

(David and Nagaraja, Order Statistics, 3rd edition, section 7.1.) With few samples there is no such k. An upper bound
of a 95th percentile at 95 % needs 59 samples, because 0.95^59 is the first power below 0.05.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from scipy.special import bdtr, bdtrc

from longproof.domain.measure import Interval, Unknown

_ROUNDING = 1e-12
"""1 - 0.05 must count as 0.95: probabilities are compared with this slack, far below any confidence anyone asks for."""


def sample_quantile(samples: Sequence[float], q: float) -> float | Unknown:
    """The smallest sample that at least a fraction `q` of all samples do not exceed. Always one of the samples: with n
    = 3 the 95th percentile is the largest of the three. Unknown without samples."""
    if not samples:
        return Unknown(reason="n = 0")
    return sorted(samples)[max(0, math.ceil(q * len(samples) - _ROUNDING) - 1)]


def upper_bound(samples: Sequence[float], q: float, confidence: float = 0.95) -> float | Unknown:
    """The quantile is at most this, with `confidence`. Unknown, with the n it takes, for too few samples."""
    n = len(samples)
    for rank in range(1, n + 1):
        if _at_most(rank - 1, n, q) >= confidence - _ROUNDING:
            return sorted(samples)[rank - 1]
    return Unknown(reason=f"n = {n}: an upper bound of the {_name(q)} takes n = {samples_for_upper(q, confidence)}")


def lower_bound(samples: Sequence[float], q: float, confidence: float = 0.95) -> float | Unknown:
    """The quantile is at least this, with `confidence`. Unknown, with the n it takes, for too few samples."""
    n = len(samples)
    for rank in range(n, 0, -1):
        if _at_least(rank, n, q) >= confidence - _ROUNDING:
            return sorted(samples)[rank - 1]
    return Unknown(reason=f"n = {n}: a lower bound of the {_name(q)} takes n = {samples_for_lower(q, confidence)}")


def interval(samples: Sequence[float], q: float, confidence: float = 0.95) -> Interval | Unknown:
    """The two-sided interval: both one-sided bounds at (1 + confidence) / 2."""
    low = lower_bound(samples, q, (1 + confidence) / 2)
    high = upper_bound(samples, q, (1 + confidence) / 2)
    if isinstance(low, Unknown):
        return low
    if isinstance(high, Unknown):
        return high
    return Interval(low=low, high=high, confidence=confidence, method="order statistics")


def samples_for_upper(q: float, confidence: float = 0.95, *, above: int = 0, at_least: int = 1) -> int:
    """How many samples put the upper bound of the `q` quantile at or below a limit when `above` of them exceed it.

    The smallest such n from `at_least` on; above = 0 gives 59 for q = confidence = 0.95, above = 1 gives 93.
    """
    if not (0 < q < 1 and 0 < confidence < 1):
        raise ValueError(f"neither q = {q} nor confidence = {confidence} may be 0 or 1")
    n = max(at_least, above + 1)
    step = n
    while _at_most(n - above - 1, n, q) < confidence - _ROUNDING:  # gallop, then halve: n may be thousands
        step = n
        n *= 2
    low, high = step, n
    while low < high:
        middle = (low + high) // 2
        if _at_most(middle - above - 1, middle, q) >= confidence - _ROUNDING:
            high = middle
        else:
            low = middle + 1
    return high


def samples_for_lower(q: float, confidence: float = 0.95, *, below: int = 0, at_least: int = 1) -> int:
    """How many samples put the lower bound of the `q` quantile at or above a limit when `below` of them fall short of
    it."""
    return samples_for_upper(1 - q, confidence, above=below, at_least=at_least)


def _at_most(k: int, n: int, q: float) -> float:
    return float(bdtr(k, n, q))


def _at_least(k: int, n: int, q: float) -> float:
    return float(bdtrc(k - 1, n, q))


def _name(q: float) -> str:
    return "median" if q == 0.5 else f"p{q * 100:g}"
