"""Ratios on the scale of logarithms, against scipy.stats and worked numbers."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from longproof.domain.measure import Unknown
from longproof.stats.ratio import Ratio, paired_ratio, unpaired_ratio

POSITIVE = st.floats(1e-3, 1e3).map(lambda x: round(x, 4))


def test_paired_ratio_is_geometric_when_ratios_differ() -> None:
    # 1/2, 1/8: the geometric mean is 1/4; logs -0.693, -2.079, t(0.975, 1) = 12.7062, s/sqrt(2) = 0.6931
    found = paired_ratio([(1.0, 2.0), (1.0, 8.0)])
    assert isinstance(found, Ratio)
    assert found.value == pytest.approx(0.25)
    assert found.n == 2
    assert not isinstance(found.interval, Unknown)
    assert found.interval.low == pytest.approx(0.25 * math.exp(-12.7062 * math.log(2)), rel=1e-4)
    assert found.interval.high == pytest.approx(0.25 * math.exp(12.7062 * math.log(2)), rel=1e-4)


SPREAD = st.lists(POSITIVE, min_size=2, max_size=20).filter(lambda s: max(s) > 1.01 * min(s))


@given(SPREAD, SPREAD)
def test_unpaired_ratio_equals_welch_of_scipy_when_samples_spread(above: list[float], below: list[float]) -> None:
    logs = [math.log(x) for x in above], [math.log(x) for x in below]
    truth = stats.ttest_ind(*logs, equal_var=False).confidence_interval(0.95)
    found = unpaired_ratio(above, below)
    assert isinstance(found, Ratio)
    assert not isinstance(found.interval, Unknown)
    # The bounds of one sample of two can lie hundreds of e-folds out, beyond floats: then there is nothing to compare.
    for ours, theirs in ((found.interval.low, truth.low), (found.interval.high, truth.high)):
        if 0 < ours < math.inf:
            assert math.log(ours) == pytest.approx(theirs, rel=1e-6, abs=1e-6)


def test_interval_is_a_point_when_samples_are_equal() -> None:
    found = unpaired_ratio([2.0, 2.0], [8.0, 8.0])
    assert isinstance(found, Ratio)
    assert not isinstance(found.interval, Unknown)
    assert found.interval.low == found.interval.high == pytest.approx(0.25)


def test_interval_is_unknown_when_one_sample() -> None:
    single = paired_ratio([(1.0, 4.0)])
    assert single == Ratio(value=0.25, interval=Unknown(reason="n = 1"), n=1)
    assert unpaired_ratio([1.0], [4.0, 4.0]) == Ratio(value=0.25, interval=Unknown(reason="n = 1"), n=1)
    assert paired_ratio([]) == Unknown(reason="n = 0")
    assert unpaired_ratio([], [1.0]) == Unknown(reason="n = 0")


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan])
def test_value_error_when_a_sample_has_no_logarithm(bad: float) -> None:
    with pytest.raises(ValueError, match="not positive"):
        paired_ratio([(bad, 1.0)])
    with pytest.raises(ValueError, match="not positive"):
        unpaired_ratio([1.0, 2.0], [1.0, bad])
