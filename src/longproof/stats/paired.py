"""Pairs: does one side take longer than the other, by how many times, and how sure is that?"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.special import stdtr

from longproof.domain.measure import Interval, Unknown
from longproof.stats.ratio import Ratio, paired_ratio

LEAST_PAIRS = 3
"""Below that a t test has next to no freedom, and one odd pair decides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedTest:
    """`ratio` is the geometric mean of first / second; `p_value` the two-sided chance of such a ratio or a stronger one
    when there is no difference (t test on the logarithms)."""

    ratio: Ratio
    interval: Interval
    p_value: float


def paired_test(pairs: Sequence[tuple[float, float]], confidence: float = 0.95) -> PairedTest | Unknown:
    """Unknown for fewer than three pairs. Raises ValueError for a number that is not positive."""
    found = paired_ratio(pairs, confidence)
    if isinstance(found, Unknown) or isinstance(found.interval, Unknown) or found.n < LEAST_PAIRS:
        return Unknown(reason=f"n = {len(pairs)}: a comparison takes {LEAST_PAIRS} pairs")
    logs = [math.log(first) - math.log(second) for first, second in pairs]
    centre, spread = statistics.fmean(logs), statistics.stdev(logs)
    if spread == 0:
        p = 1.0 if centre == 0 else 0.0
    else:
        t = abs(centre) / (spread / math.sqrt(len(logs)))
        p = 2 * float(stdtr(len(logs) - 1, -t))
    return PairedTest(ratio=found, interval=found.interval, p_value=p)
