"""The ratio behind several cells: worked by hand, against scipy for one cell, and its coverage by simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats

from longproof.domain.measure import Interval, Unknown
from longproof.stats.pooled import pooled_ratio
from longproof.stats.ratio import Ratio


def found(*cells: tuple[list[float], list[float]], confidence: float = 0.95) -> Ratio:
    ratio = pooled_ratio(cells, confidence)
    assert isinstance(ratio, Ratio)
    return ratio


def test_cells_count_alike_when_their_levels_differ() -> None:
    """2 and 8 times: sqrt(16) = 4, whatever the level of each cell is."""
    assert found(([2.0], [1.0]), ([8000.0], [1000.0])).value == pytest.approx(4)


def test_it_is_students_interval_when_there_is_one_cell() -> None:
    above, below = [3.0, 4.0, 5.5], [1.0, 1.4, 2.2]
    ratio = found((above, below), confidence=0.99)
    wanted = scipy.stats.ttest_ind(np.log(above), np.log(below)).confidence_interval(0.99)
    assert isinstance(ratio.interval, Interval)
    assert (math.log(ratio.interval.low), math.log(ratio.interval.high)) == pytest.approx((wanted.low, wanted.high))


def test_the_true_ratio_is_covered_as_often_as_said_when_cells_vary_alike() -> None:
    """4 cells of 3 and 3 samples, sigma 0.3, a true ratio of 1.3: 95 % of 4,000, within four standard errors."""
    rng = np.random.default_rng(5)
    covered = 0
    for _ in range(4_000):
        levels = rng.uniform(0.01, 10, 4)
        cells = [
            ((level * 1.3 * rng.lognormal(0, 0.3, 3)).tolist(), (level * rng.lognormal(0, 0.3, 3)).tolist())
            for level in levels
        ]
        interval = found(*cells).interval
        assert isinstance(interval, Interval)
        covered += interval.low <= 1.3 <= interval.high
    assert covered / 4_000 == pytest.approx(0.95, abs=4 * math.sqrt(0.95 * 0.05 / 4_000))


def test_there_is_no_interval_when_no_side_has_two_samples() -> None:
    assert isinstance(found(([2.0], [1.0])).interval, Unknown)


def test_it_is_unknown_when_no_cell_has_both_sides() -> None:
    assert isinstance(pooled_ratio([([], [1.0])]), Unknown)


def test_numbers_must_be_positive_when_they_are_compared() -> None:
    with pytest.raises(ValueError, match="positive"):
        pooled_ratio([([0.0], [1.0])])
