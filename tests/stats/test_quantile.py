"""Quantile bounds: known ranks, scipy's own order-statistic interval, and coverage by seeded simulation."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import quantile_test

from longproof.domain.measure import Interval, Unknown
from longproof.stats.quantile import (
    interval,
    lower_bound,
    sample_quantile,
    samples_for_lower,
    samples_for_upper,
    upper_bound,
)


def test_sample_quantile_is_one_of_the_samples_when_n_is_small() -> None:
    # p95 of three: ceil(0.95 * 3) = 3, the largest; the median ceil(1.5) = 2, the middle one; of 20, p95 is the 19th
    assert sample_quantile([3.0, 1.0, 2.0], 0.95) == 3.0
    assert sample_quantile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert sample_quantile([float(i) for i in range(1, 21)], 0.95) == 19.0
    assert sample_quantile([float(i) for i in range(1, 26)], 0.56) == 14.0  # 0.56 * 25 is 14.000000000000002 in floats
    assert sample_quantile([], 0.5) == Unknown(reason="n = 0")


def test_upper_bound_takes_59_samples_when_p95_at_95_percent() -> None:
    # 0.95^58 = 0.0510 > 0.05 >= 0.95^59 = 0.0485
    assert upper_bound([1.0] * 58, 0.95) == Unknown(reason="n = 58: an upper bound of the p95 takes n = 59")
    assert upper_bound([float(i) for i in range(59)], 0.95) == 58.0
    assert upper_bound([float(i) for i in range(93)], 0.95) == 91.0  # from 93 on the second largest will do
    assert samples_for_upper(0.95) == 59
    assert samples_for_upper(0.95, above=1) == 93
    assert samples_for_upper(0.5) == 5  # 0.5^5 = 0.031
    assert samples_for_lower(0.5) == 5
    assert samples_for_upper(0.99) == 299  # 0.99^299 = 0.0496
    assert samples_for_upper(0.95, at_least=70) == 70


def test_lower_bound_is_known_rank_when_few_samples() -> None:
    # One sample above the p95 happens to 5 % of samples: with n = 1 the sample itself is a lower bound at exactly 95 %.
    assert lower_bound([7.0], 0.95) == 7.0
    # Of three, P(at least 2 are <= p95) = 0.95^3 + 3 * 0.95^2 * 0.05 = 0.993 and P(all 3 are) = 0.857: the bound is
    # the second.
    assert lower_bound([1.0, 2.0, 3.0], 0.95) == 2.0
    assert lower_bound([1.0, 2.0], 0.5) == Unknown(reason="n = 2: a lower bound of the median takes n = 5")


# n = 1 is left out: there the probability of the p95's lower bound is exactly 0.95, and scipy rounds it down.
@given(st.lists(st.floats(0, 100), min_size=2, max_size=150), st.sampled_from([0.5, 0.9, 0.95, 0.99]))
def test_bounds_equal_scipy_when_any_sample(samples: list[float], q: float) -> None:
    upper = quantile_test(samples, p=q, alternative="less").confidence_interval(0.95).high
    lower = quantile_test(samples, p=q, alternative="greater").confidence_interval(0.95).low
    for found, truth in ((upper_bound(samples, q), upper), (lower_bound(samples, q), lower)):
        if np.isfinite(truth):
            assert found == truth
        else:
            assert isinstance(found, Unknown)


@pytest.mark.parametrize(("q", "n"), [(0.5, 9), (0.9, 30), (0.95, 60)])
def test_one_sided_coverage_holds_when_simulated(q: float, n: int) -> None:
    rng = random.Random(f"quantile {q} {n}")
    truth = -np.log1p(-q)  # quantile of the unit exponential
    rounds = 2_000
    draws = [[rng.expovariate(1.0) for _ in range(n)] for _ in range(rounds)]
    above = sum(upper_bound(samples, q) >= truth for samples in draws)  # type: ignore[operator]
    below = sum(lower_bound(samples, q) <= truth for samples in draws)  # type: ignore[operator]
    # At least 95 % by construction; 3 standard errors of 2,000 rounds are 1.5 %.
    assert above >= 0.935 * rounds
    assert below >= 0.935 * rounds


def test_interval_uses_both_tails_when_two_sided() -> None:
    # n = 9, median, 95 %: P(Binomial(9, 1/2) <= 1) = 10/512 = 0.0195 <= 0.025, P(<= 2) = 46/512 = 0.09: ranks 2 and 8
    samples = [float(i) for i in range(1, 10)]
    assert interval(samples, 0.5) == Interval(low=2.0, high=8.0, confidence=0.95, method="order statistics")
    assert isinstance(interval(samples[:5], 0.5), Unknown)  # 0.5^5 = 0.031 > 0.025


@pytest.mark.parametrize("q", [0.0, 1.0])
def test_value_error_when_quantile_is_an_extreme(q: float) -> None:
    with pytest.raises(ValueError, match="may be 0 or 1"):
        samples_for_upper(q)
