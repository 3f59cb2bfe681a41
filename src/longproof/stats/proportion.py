"""How often something succeeds: intervals for a proportion of independent trials."""

from __future__ import annotations

import math

from scipy.special import betaincinv, ndtri

from longproof.domain.measure import Interval


def clopper_pearson(successes: int, n: int, confidence: float = 0.95) -> Interval:
    """The exact two-sided interval (Clopper and Pearson 1934): covers at least `confidence`, whatever the true
    proportion.

    Raises ValueError unless 0 <= successes <= n, n >= 1 and 0 < confidence < 1.
    """
    _check(successes, n, confidence)
    one_sided = (1 + confidence) / 2
    return Interval(
        low=lower_bound(successes, n, one_sided),
        high=upper_bound(successes, n, one_sided),
        confidence=confidence,
        method="Clopper-Pearson",
    )


def wilson(successes: int, n: int, confidence: float = 0.95) -> Interval:
    """The score interval (Wilson 1927): narrower, and right on average rather than always. Same errors as above."""
    _check(successes, n, confidence)
    z = float(ndtri((1 + confidence) / 2))
    share = successes / n
    scale = 1 + z * z / n
    centre = (share + z * z / (2 * n)) / scale
    half = z / scale * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    low = 0.0 if successes == 0 else centre - half  # exact by algebra; the difference of two floats is not
    high = 1.0 if successes == n else centre + half
    return Interval(low=low, high=high, confidence=confidence, method="Wilson")


def lower_bound(successes: int, n: int, confidence: float = 0.95) -> float:
    """The one-sided Clopper-Pearson bound: the true proportion is at least this, with `confidence`."""
    _check(successes, n, confidence)
    return 0.0 if successes == 0 else float(betaincinv(successes, n - successes + 1, 1 - confidence))


def upper_bound(successes: int, n: int, confidence: float = 0.95) -> float:
    """The one-sided Clopper-Pearson bound: the true proportion is at most this, with `confidence`."""
    _check(successes, n, confidence)
    return 1.0 if successes == n else float(betaincinv(successes + 1, n - successes, confidence))


def _check(successes: int, n: int, confidence: float) -> None:
    if n < 1 or not 0 <= successes <= n:
        raise ValueError(f"{successes} successes of {n} trials")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence {confidence} is not between 0 and 1")
