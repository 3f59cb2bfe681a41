"""Mann-Kendall and Theil-Sen, against scipy.stats."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from longproof.domain.measure import Unknown
from longproof.stats.multiple import holm
from longproof.stats.trend import Slope, mann_kendall, theil_sen

DISTINCT = st.lists(st.integers(-1000, 1000), min_size=3, max_size=25, unique=True)


@given(DISTINCT)
def test_p_is_scipys_exact_one_when_there_are_no_ties(values: list[int]) -> None:
    truth = stats.kendalltau(range(len(values)), values, method="exact", alternative="greater").pvalue
    assert mann_kendall(values) == pytest.approx(truth, rel=1e-9)


def test_p_is_one_in_all_orders_when_five_values_rise() -> None:
    assert mann_kendall([1, 2, 3, 4, 5]) == pytest.approx(1 / 120)


def test_p_allows_for_ties_when_values_repeat() -> None:
    """15 pairs, of which 3 are tied: S = 12. Variance (6·5·17 - 3·2·1·9) / 18 = 456 / 18 = 25.33;
    z = (12 - 1) / 5.033 = 2.1856; p = 0.01442."""
    assert mann_kendall([1, 1, 2, 2, 3, 3]) == pytest.approx(0.01442, abs=1e-5)


def test_nothing_is_known_when_there_are_two_values() -> None:
    assert isinstance(mann_kendall([1, 2]), Unknown)
    assert isinstance(theil_sen([0, 1], [1, 2]), Unknown)
    assert mann_kendall([4, 4, 4]) == 1.0


@given(st.lists(st.floats(-100, 100).map(lambda x: round(x, 3)), min_size=4, max_size=25, unique=True))
def test_slope_is_scipys_when_points_are_distinct(values: list[float]) -> None:
    truth = stats.theilslopes(values, range(len(values)), 0.95)
    found = theil_sen(range(len(values)), values)
    assert isinstance(found, Slope)
    assert found.value == pytest.approx(truth[0])
    assert found.interval.low == pytest.approx(truth[2])
    assert found.interval.high == pytest.approx(truth[3])


def test_holm_multiplies_the_smallest_by_all_and_keeps_order_when_adjusting() -> None:
    """0.01 × 3, then 0.02 × 2 = 0.04, then 0.9 × 1."""
    assert holm([0.9, 0.01, 0.02]) == pytest.approx((0.9, 0.03, 0.04))
    assert holm([0.02, 0.02]) == pytest.approx((0.04, 0.04))
    assert holm([0.6, 0.7]) == pytest.approx((1.0, 1.0))
    assert holm([]) == ()
