"""What a sample says about the mean behind it: Student's t, which assumes nearly normal samples where n is small."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from scipy.special import stdtrit

from longproof.domain.measure import Interval, Unknown

_MOST_SAMPLES = 100_000


def sample_mean(samples: Sequence[float]) -> float | Unknown:
    """The mean. Unknown without samples."""
    return statistics.fmean(samples) if samples else Unknown(reason="n = 0")


def interval(samples: Sequence[float], confidence: float = 0.95) -> Interval | Unknown:
    """The two-sided t interval. Unknown for fewer than two samples: one has no spread."""
    half = _half_width(samples, (1 + confidence) / 2)
    if isinstance(half, Unknown):
        return half
    centre = statistics.fmean(samples)
    return Interval(low=centre - half, high=centre + half, confidence=confidence, method="Student t")


def upper_bound(samples: Sequence[float], confidence: float = 0.95) -> float | Unknown:
    """The mean is at most this, with `confidence`. Unknown for fewer than two samples."""
    half = _half_width(samples, confidence)
    return half if isinstance(half, Unknown) else statistics.fmean(samples) + half


def lower_bound(samples: Sequence[float], confidence: float = 0.95) -> float | Unknown:
    """The mean is at least this, with `confidence`. Unknown for fewer than two samples."""
    half = _half_width(samples, confidence)
    return half if isinstance(half, Unknown) else statistics.fmean(samples) - half


def samples_to_decide(samples: Sequence[float], limit: float, confidence: float = 0.95) -> int | Unknown:
    """About how many samples of this mean and spread put the whole bound on one side of `limit`.

    Unknown for fewer than two samples, for a mean that lies on the limit, and beyond 100,000.
    """
    if len(samples) < 2:
        return Unknown(reason=f"n = {len(samples)}: no spread is known yet")
    distance = abs(statistics.fmean(samples) - limit)
    deviation = statistics.stdev(samples)
    low, high = len(samples), _MOST_SAMPLES
    if not _clears(high, distance, deviation, confidence):
        return Unknown(reason=f"the mean is too close to the limit for {_MOST_SAMPLES:,} samples to tell")
    while low < high:
        middle = (low + high) // 2
        if _clears(middle, distance, deviation, confidence):
            high = middle
        else:
            low = middle + 1
    return high


def _clears(n: int, distance: float, deviation: float, confidence: float) -> bool:
    return float(stdtrit(n - 1, confidence)) * deviation / math.sqrt(n) < distance


def _half_width(samples: Sequence[float], one_sided: float) -> float | Unknown:
    n = len(samples)
    if n < 2:
        return Unknown(reason=f"n = {n}")
    return float(stdtrit(n - 1, one_sided)) * statistics.stdev(samples) / math.sqrt(n)
