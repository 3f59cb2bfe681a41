"""One ratio behind several cells: each cell has its own level, and all share what a change does and how much they vary.

Per cell the difference of mean logarithms; over cells their mean, with the variance pooled from all cells (a two-way
layout with equal variances). Three samples on each side of one cell say little; four such cells say much more.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from scipy.special import stdtrit

from longproof.domain.measure import Interval, Unknown
from longproof.stats.ratio import Ratio

Cell = tuple[Sequence[float], Sequence[float]]
"""Numerators and denominators, all positive."""


def pooled_ratio(cells: Sequence[Cell], confidence: float = 0.95) -> Ratio | Unknown:
    """The ratio that all cells share, with its interval. Cells where a side is empty are left out; Unknown without any.

    The interval is Unknown where no side of any cell has two samples. Raises ValueError for a number that is not
    positive.
    """
    if any(value <= 0 for cell in cells for side in cell for value in side):
        raise ValueError("a ratio takes positive numbers")
    logs = [([math.log(x) for x in above], [math.log(x) for x in below]) for above, below in cells if above and below]
    if not logs:
        return Unknown(reason="n = 0")
    centre = statistics.fmean(statistics.fmean(above) - statistics.fmean(below) for above, below in logs)
    sides = [side for cell in logs for side in cell]
    freedom = sum(len(side) - 1 for side in sides)
    n = sum(min(len(above), len(below)) for above, below in logs)
    if freedom == 0:
        return Ratio(value=math.exp(centre), interval=Unknown(reason=f"n = {n}"), n=n)
    variance = sum(sum((x - statistics.fmean(side)) ** 2 for x in side) for side in sides) / freedom
    spread = math.sqrt(variance * sum(1 / len(side) for side in sides)) / len(logs)
    half = float(stdtrit(freedom, (1 + confidence) / 2)) * spread
    interval = Interval(
        low=math.exp(centre - half), high=math.exp(centre + half), confidence=confidence, method="pooled t on logs"
    )
    return Ratio(value=math.exp(centre), interval=interval, n=n)
