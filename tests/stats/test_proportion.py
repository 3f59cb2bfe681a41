"""Intervals for proportions, against scipy.stats, which computes them another way, and against their own promise."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, binomtest

from longproof.stats.proportion import clopper_pearson, lower_bound, upper_bound, wilson

TRIALS = st.integers(1, 200).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))


@given(TRIALS, st.sampled_from([0.8, 0.9, 0.95, 0.99]))
def test_intervals_equal_scipy_when_any_trials(trials: tuple[int, int], confidence: float) -> None:
    successes, n = trials
    for ours, method in ((clopper_pearson, "exact"), (wilson, "wilson")):
        found = ours(successes, n, confidence)
        truth = binomtest(successes, n).proportion_ci(confidence_level=confidence, method=method)
        assert found.low == pytest.approx(truth.low, abs=1e-12)
        assert found.high == pytest.approx(truth.high, abs=1e-12)
        assert found.confidence == confidence


def test_lower_bound_is_known_root_when_everything_succeeds() -> None:
    # n of n: the bound is the p with p^n = 0.05. 0.05^(1/3) = 0.3684; 59 of 59 is the first to exceed 0.95.
    assert lower_bound(3, 3) == pytest.approx(0.368403, abs=1e-6)
    assert lower_bound(58, 58) < 0.95 < lower_bound(59, 59)
    assert upper_bound(0, 3) == pytest.approx(1 - 0.368403, abs=1e-6)


def test_interval_is_whole_range_when_one_trial_and_confidence_high() -> None:
    # one success: p is at least 0.025 (two-sided 95 %), at most 1
    found = clopper_pearson(1, 1)
    assert (found.low, found.high) == (pytest.approx(0.025), 1.0)


@pytest.mark.parametrize("p", [0.02, 0.3, 0.5, 0.9, 0.99])
@pytest.mark.parametrize("n", [1, 5, 40])
def test_coverage_is_at_least_confidence_when_summed_over_all_outcomes(p: float, n: int) -> None:
    covered = sum(binom.pmf(k, n, p) for k in range(n + 1) if _holds(k, n, p))
    assert covered >= 0.95 - 1e-9


def _holds(k: int, n: int, p: float) -> bool:
    found = clopper_pearson(k, n)
    return found.low <= p <= found.high


@pytest.mark.parametrize(("successes", "n", "confidence"), [(0, 0, 0.95), (2, 1, 0.95), (-1, 5, 0.95), (1, 2, 1.0)])
def test_value_error_when_trials_make_no_sense(successes: int, n: int, confidence: float) -> None:
    with pytest.raises(ValueError, match=r"trials|confidence"):
        clopper_pearson(successes, n, confidence)
