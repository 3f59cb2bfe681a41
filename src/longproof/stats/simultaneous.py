"""Bands that hold at all points of a plot at once."""

from __future__ import annotations

from collections.abc import Sequence

from longproof.domain.measure import Interval
from longproof.stats.confidence_sequence import confidence_sequence
from longproof.stats.proportion import clopper_pearson, wilson


def pointwise(cells: Sequence[tuple[int, int]], confidence: float = 0.95) -> tuple[Interval, ...]:
    """A Wilson interval for each (right, n) alone: what a plot shows where n was fixed in advance."""
    return tuple(wilson(right, n, confidence) for right, n in cells)


def simultaneous(
    cells: Sequence[tuple[int, int]], confidence: float = 0.95, *, stopped_early: bool
) -> tuple[Interval, ...]:
    """Intervals that all hold together: the error is divided by their number (Bonferroni).

    Clopper-Pearson where every n was fixed in advance, confidence sequences where a cell stopped on its own result.
    """
    if not cells:
        return ()
    each = 1 - (1 - confidence) / len(cells)
    interval = confidence_sequence if stopped_early else clopper_pearson
    return tuple(interval(right, n, each) for right, n in cells)
