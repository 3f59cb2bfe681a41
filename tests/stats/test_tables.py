"""Two by two tables, against scipy.stats and by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from longproof.stats.tables import fisher_higher, mcnemar

TRIALS = st.integers(0, 15).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))


@given(TRIALS, TRIALS)
def test_fisher_is_scipys_when_one_group_succeeds_more(first: tuple[int, int], second: tuple[int, int]) -> None:
    (a, n), (b, m) = first, second
    truth = stats.fisher_exact([[a, n - a], [b, m - b]], alternative="greater").pvalue
    assert fisher_higher(a, n, b, m) == pytest.approx(truth, rel=1e-9)


def test_fisher_counts_tables_when_none_of_five_and_all_of_five_succeed() -> None:
    """One of C(10, 5) = 252 ways."""
    assert fisher_higher(5, 5, 0, 5) == pytest.approx(1 / 252)
    assert fisher_higher(0, 5, 5, 5) == 1.0


@given(st.integers(0, 20), st.integers(0, 20))
def test_mcnemar_is_a_sign_test_when_pairs_differ(first: int, second: int) -> None:
    if first + second:
        assert mcnemar(first, second) == pytest.approx(stats.binomtest(first, first + second).pvalue)
    else:
        assert mcnemar(first, second) == 1.0


def test_impossible_counts_are_refused() -> None:
    with pytest.raises(ValueError, match="3 successes of 2"):
        fisher_higher(3, 2, 0, 1)
    with pytest.raises(ValueError, match="-1"):
        mcnemar(-1, 2)
