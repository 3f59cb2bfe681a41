"""The t interval, against scipy.stats and its own promise."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from longproof.domain.measure import Unknown
from longproof.stats.mean import interval, lower_bound, sample_mean, samples_to_decide, upper_bound

SAMPLES = st.lists(st.floats(-1e6, 1e6).map(lambda x: round(x, 3)), min_size=2, max_size=40)


@given(SAMPLES.filter(lambda s: len(set(s)) > 1), st.sampled_from([0.8, 0.95, 0.99]))
def test_interval_equals_scipy_when_samples_spread(samples: list[float], confidence: float) -> None:
    found = interval(samples, confidence)
    truth = stats.ttest_1samp(samples, 0).confidence_interval(confidence)
    assert not isinstance(found, Unknown)
    assert (found.low, found.high) == (
        pytest.approx(truth.low, rel=1e-6, abs=1e-6),
        pytest.approx(truth.high, rel=1e-6, abs=1e-6),
    )
    one_sided = stats.ttest_1samp(samples, 0, alternative="less").confidence_interval(confidence)
    assert upper_bound(samples, confidence) == pytest.approx(one_sided.high, rel=1e-6, abs=1e-6)


def test_bounds_are_known_when_three_samples() -> None:
    # mean 2, s = 1, t(0.95, 2) = 2.91999: 2 ± 2.91999 / sqrt(3) = 2 ± 1.68586
    assert upper_bound([1.0, 2.0, 3.0]) == pytest.approx(3.68586, abs=1e-5)
    assert lower_bound([1.0, 2.0, 3.0]) == pytest.approx(0.31414, abs=1e-5)


def test_unknown_when_too_few_samples() -> None:
    assert interval([1.0]) == Unknown(reason="n = 1")
    assert upper_bound([1.0]) == Unknown(reason="n = 1")
    assert lower_bound([]) == Unknown(reason="n = 0")
    assert sample_mean([]) == Unknown(reason="n = 0")
    assert sample_mean([1.0, 4.0]) == 2.5


def test_samples_to_decide_is_known_when_mean_and_spread_are() -> None:
    # mean 2, s = 1, limit 3: t(0.95, n-1)/sqrt(n) < 1. n = 4: 2.3534/2 = 1.177; n = 5: 2.1318/2.2361 = 0.953.
    assert samples_to_decide([1.0, 2.0, 3.0], 3.0) == 5
    assert samples_to_decide([1.0, 2.0, 3.0], 1.0) == 5  # the other side: the same distance
    assert isinstance(samples_to_decide([1.0, 2.0, 3.0], 2.0), Unknown)
    assert isinstance(samples_to_decide([1.0], 2.0), Unknown)


def test_coverage_holds_when_simulated() -> None:
    rng = random.Random("mean coverage")
    rounds = 2_000
    draws = [[rng.gauss(5.0, 2.0) for _ in range(5)] for _ in range(rounds)]
    above = sum(upper_bound(samples) >= 5.0 for samples in draws)  # type: ignore[operator]
    # Exactly 95 % for normal samples; 3 standard errors of 2,000 rounds are 1.5 %.
    assert 0.935 * rounds <= above <= 0.965 * rounds
