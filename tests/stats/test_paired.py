"""Paired tests on the scale of logarithms, against scipy.stats."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from longproof.domain.measure import Unknown
from longproof.stats.paired import PairedTest, paired_test

POSITIVE = st.floats(0.01, 100).map(lambda x: round(x, 3))
PAIRS = st.lists(st.tuples(POSITIVE, POSITIVE), min_size=3, max_size=15).filter(
    lambda pairs: len({round(a / b, 6) for a, b in pairs}) > 1
)


@given(PAIRS)
def test_p_is_scipys_when_ratios_spread(pairs: list[tuple[float, float]]) -> None:
    truth = stats.ttest_rel([math.log(a) for a, _ in pairs], [math.log(b) for _, b in pairs]).pvalue
    found = paired_test(pairs)
    assert isinstance(found, PairedTest)
    assert found.p_value == pytest.approx(truth, rel=1e-6, abs=1e-12)


def test_equal_ratios_decide_when_there_is_no_spread() -> None:
    same, half = paired_test([(1.0, 1.0)] * 3), paired_test([(1.0, 2.0)] * 3)
    assert isinstance(same, PairedTest)
    assert isinstance(half, PairedTest)
    assert (same.p_value, half.p_value) == (1.0, 0.0)
    assert half.ratio.value == 0.5


def test_two_pairs_decide_nothing() -> None:
    assert isinstance(paired_test([(1.0, 2.0), (1.0, 2.0)]), Unknown)
