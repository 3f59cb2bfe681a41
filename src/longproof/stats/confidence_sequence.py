"""Intervals for a share that stay right while one watches and stops when one likes.

    {p : B(k + 1/2, n - k + 1/2) / B(1/2, 1/2)  <  p^k (1 - p)^(n - k) / alpha}

Every p outside has lost to a mixture of all alternatives by a factor of 1 / alpha; by Ville's inequality that happens
to the true p at any time with a probability of alpha at most (Ville 1939; Robbins 1970; Howard et al. 2021). The price
is width: 45 of 50 gives 0.713 to 0.984, where the fixed-n interval says 0.782 to 0.967.

Which interval belongs to which run:

    n fixed in advance and reached       Clopper-Pearson (`proportion`)
    stopped early, for whatever reason   this sequence (two-sided), or `sprt.anytime_bound` where a threshold is tested

`share_interval` chooses by that rule.
"""

from __future__ import annotations

import math

from scipy.optimize import brentq
from scipy.special import betaln, xlog1py, xlogy

from longproof.domain.measure import Interval
from longproof.stats.proportion import clopper_pearson


def confidence_sequence(right: float, n: float, confidence: float = 0.95) -> Interval:
    """The interval after `right` of `n`, valid at every n at once. Fractions of answers are allowed: effective n.

    Raises ValueError unless 0 <= right <= n, n > 0 and 0 < confidence < 1.
    """
    if n <= 0 or not 0 <= right <= n:
        raise ValueError(f"{right} right of {n} answers")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence {confidence} is not between 0 and 1")
    share = right / n
    low = 0.0 if _margin(0.0, right, n, confidence) > 0 or right == 0 else _root(0.0, share, right, n, confidence)
    high = 1.0 if _margin(1.0, right, n, confidence) > 0 or right == n else _root(share, 1.0, right, n, confidence)
    return Interval(low=low, high=high, confidence=confidence, method="beta-binomial confidence sequence")


def share_interval(right: int, n: int, *, planned_n: int | None, confidence: float = 0.95) -> Interval:
    """The interval that fits how the asking ended: Clopper-Pearson where `planned_n`, fixed before the first answer,
    was reached; else the confidence sequence. Raises ValueError where more was asked than planned."""
    if planned_n is not None and n > planned_n:
        raise ValueError(f"{n} answers where {planned_n} were planned")
    return clopper_pearson(right, n, confidence) if n == planned_n else confidence_sequence(right, n, confidence)


def _margin(p: float, right: float, n: float, confidence: float) -> float:
    """Above 0 inside the interval."""
    likelihood = float(xlogy(right, p) + xlog1py(n - right, -p))
    mixture = float(betaln(right + 0.5, n - right + 0.5) - betaln(0.5, 0.5))
    return likelihood - math.log(1 - confidence) - mixture


def _root(low: float, high: float, right: float, n: float, confidence: float) -> float:
    tiny = 1e-15
    return float(brentq(_margin, max(low, tiny), min(high, 1 - tiny), args=(right, n, confidence), xtol=1e-13))
