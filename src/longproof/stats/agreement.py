"""The same items asked twice: cold and warm, two endpoints, or simply again."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.optimize import brentq
from scipy.special import bdtr, ndtri

from longproof.domain.measure import Interval
from longproof.stats.proportion import clopper_pearson


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """How often both were right, only the first, only the second, neither."""

    both: int
    only_first: int
    only_second: int
    neither: int

    @property
    def n(self) -> int:
        """How many items were asked twice."""
        return self.both + self.only_first + self.only_second + self.neither

    @property
    def difference(self) -> float:
        """The share right of the second minus that of the first."""
        return (self.only_second - self.only_first) / self.n


def count_pairs(first: Sequence[bool | None], second: Sequence[bool | None]) -> Pairs:
    """Counts items that have both answers; the sequences are aligned by item. Raises ValueError where none has."""
    pairs = [(a, b) for a, b in zip(first, second, strict=True) if a is not None and b is not None]
    if not pairs:
        raise ValueError("no item has both answers")
    both = sum(a and b for a, b in pairs)
    only_first = sum(a and not b for a, b in pairs)
    only_second = sum(b and not a for a, b in pairs)
    return Pairs(
        both=both, only_first=only_first, only_second=only_second, neither=len(pairs) - both - only_first - only_second
    )


def worse(pairs: Pairs) -> float:
    """The p-value of "the second is not worse than the first": small where accuracy fell.

    Exact McNemar test, one-sided: of the items that differ, half should have changed to right (McNemar 1947). Cold as
    first and warm as second asks whether a prefix hit costs accuracy. 1 where nothing differs.
    """
    return _at_most(pairs.only_second, pairs.only_first + pairs.only_second)


def different(pairs: Pairs) -> float:
    """The p-value of "equally often right": exact McNemar test, two-sided."""
    fewer = min(pairs.only_first, pairs.only_second)
    return min(1.0, 2 * _at_most(fewer, pairs.only_first + pairs.only_second))


def _at_most(k: int, n: int) -> float:
    return float(bdtr(k, n, 0.5)) if n else 1.0


def paired_difference(pairs: Pairs, confidence: float = 0.95) -> Interval:
    """The interval of `pairs.difference` by Tango's score method (1998): the differences that a score test would not
    reject. Good at small n and at differences of 0 or 1, where the textbook interval has no width.

    Raises ValueError without pairs.
    """
    if pairs.n < 1:
        raise ValueError("no pairs")
    z = float(ndtri((1 + confidence) / 2))
    d, edge = pairs.difference, 1 - 1e-12
    low = -1.0 if d <= -1 else _tango_root(pairs, z, -edge, d)
    high = 1.0 if d >= 1 else _tango_root(pairs, -z, d, edge)
    return Interval(low=low, high=high, confidence=confidence, method="Tango score")


def _tango_root(pairs: Pairs, wanted: float, low: float, high: float) -> float:
    def gap(delta: float) -> float:
        return _tango(pairs, delta) - wanted

    if gap(low) * gap(high) > 0:  # the score never gets that far: the end of the scale is the bound
        return low if wanted > 0 else high
    return float(brentq(gap, low, high, xtol=1e-12))


def _tango(pairs: Pairs, delta: float) -> float:
    """The score statistic of a true difference `delta`; falls in delta, 0 at the difference seen."""
    b, c, n = pairs.only_second, pairs.only_first, pairs.n
    # The share of "only first" that is most likely if the difference is delta: the root of Tango's quadratic.
    linear = -b - c + (2 * n - b + c) * delta
    constant = -c * delta * (1 - delta)
    share = (math.sqrt(max(0.0, linear * linear - 8 * n * constant)) - linear) / (4 * n)
    variance = n * (2 * share + delta * (1 - delta))
    top = b - c - n * delta
    if variance <= 0:
        return 0.0 if top == 0 else math.copysign(math.inf, top)
    return top / math.sqrt(variance)


@dataclass(frozen=True, slots=True, kw_only=True)
class FlipRate:
    """How often asking again changed the verdict on an item; the interval is for a number of items fixed in advance."""

    flipped: int
    n: int
    interval: Interval

    @property
    def rate(self) -> float:
        """The share of items whose verdict changed."""
        return self.flipped / self.n


def flip_rate(first: Sequence[bool | None], again: Sequence[bool | None], confidence: float = 0.95) -> FlipRate:
    """Compares the verdicts of the same items asked twice in the same way: noise of decoding, batching and load."""
    pairs = count_pairs(first, again)
    flipped = pairs.only_first + pairs.only_second
    return FlipRate(flipped=flipped, n=pairs.n, interval=clopper_pearson(flipped, pairs.n, confidence))
