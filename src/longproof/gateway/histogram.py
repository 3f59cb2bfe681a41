"""A histogram of durations: a few hundred nanoseconds per sample."""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate

BOUNDS_S = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.015,
    0.02,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
    120.0,
    300.0,
    600.0,
)
"""Upper bounds: from one engine step to a prefill of a million tokens."""


class Histogram:
    """Counts by upper bound, and a sum. A sample equal to a bound counts to it, as Prometheus has it."""

    __slots__ = ("_counts", "sum_ns")

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS_S) + 1)
        self.sum_ns = 0

    def add(self, ns: int) -> None:
        """One sample; a negative one counts as 0."""
        ns = max(0, ns)
        self._counts[bisect_left(BOUNDS_S, ns / 1e9)] += 1
        self.sum_ns += ns

    def cumulative(self) -> list[tuple[str, float]]:
        """(bound as text, samples up to it), the last one "+Inf"."""
        names = [*(str(bound) for bound in BOUNDS_S), "+Inf"]
        return [(name, float(count)) for name, count in zip(names, accumulate(self._counts), strict=True)]
