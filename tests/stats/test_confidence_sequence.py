"""The anytime interval: worked numbers, its definition, its promise under stopping, and who gets which interval."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import betaln
from scipy.stats import binomtest

from longproof.stats.confidence_sequence import confidence_sequence, share_interval
from longproof.stats.simultaneous import pointwise, simultaneous

TRIALS = st.integers(1, 200).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))


def test_the_interval_is_the_known_one_when_45_of_50_are_right() -> None:
    found = confidence_sequence(45, 50)
    assert (found.low, found.high) == (pytest.approx(0.7135, abs=1e-4), pytest.approx(0.9842, abs=1e-4))


@given(TRIALS, st.sampled_from([0.8, 0.95]))
def test_ends_have_lost_by_exactly_one_over_alpha(trials: tuple[int, int], confidence: float) -> None:
    k, n = trials
    found = confidence_sequence(k, n, confidence)
    mixture = float(betaln(k + 0.5, n - k + 0.5) - betaln(0.5, 0.5))
    for end in {found.low, found.high} - {0.0, 1.0}:
        ratio = mixture - k * math.log(end) - (n - k) * math.log1p(-end)
        assert ratio == pytest.approx(math.log(1 / (1 - confidence)), abs=1e-6)
    assert found.low <= k / n <= found.high


def test_28_right_pass_085_when_five_percent_lie_on_one_side() -> None:
    assert confidence_sequence(28, 28, 0.9).low > 0.85 > confidence_sequence(27, 27, 0.9).low
    assert confidence_sequence(28, 28).high == 1.0
    assert confidence_sequence(0, 5).low == 0.0


def test_the_truth_is_never_left_in_95_percent_of_runs_when_one_watches_for_it() -> None:
    # Ends depend on (k, n) alone: looked up for each of 300 answers in 1,500 runs. A fixed-n interval fails this.
    rng = np.random.default_rng(51)
    n_most, truth = 300, 0.85
    left = np.zeros((n_most + 1, n_most + 1), dtype=bool)
    naive = np.zeros_like(left)
    for n in range(1, n_most + 1):
        k = np.arange(n + 1)
        log_ratio = betaln(k + 0.5, n - k + 0.5) - betaln(0.5, 0.5) - k * math.log(truth) - (n - k) * math.log1p(-truth)
        left[n, : n + 1] = log_ratio >= math.log(20)
        half = 1.96 * np.sqrt((k / n) * (1 - k / n) / n)
        naive[n, : n + 1] = (np.abs(k / n - truth) > half) & (n >= 20)
    for k, n in ((45, 50), (30, 50), (99, 100)):
        found = confidence_sequence(k, n)
        assert left[n, k] == (not found.low <= truth <= found.high)
    right = np.cumsum(rng.random((1500, n_most)) < truth, axis=1)
    steps = np.arange(1, n_most + 1)
    assert left[steps, right].any(axis=1).mean() <= 0.05
    assert naive[steps, right].any(axis=1).mean() > 0.2


def test_the_interval_follows_how_the_asking_ended() -> None:
    exact = binomtest(45, 50).proportion_ci(0.95, "exact")
    planned = share_interval(45, 50, planned_n=50)
    assert planned.method == "Clopper-Pearson"
    assert planned.low == pytest.approx(exact.low)
    for planned_n in (None, 60):
        stopped = share_interval(45, 50, planned_n=planned_n)
        assert stopped.method == "beta-binomial confidence sequence"
        assert stopped.low < planned.low
    with pytest.raises(ValueError, match="50 answers where 40"):
        share_interval(45, 50, planned_n=40)


@pytest.mark.parametrize(("k", "n", "confidence"), [(1, 0, 0.9), (2, 1, 0.9), (-1, 4, 0.9), (1, 2, 1.0)])
def test_impossible_counts_are_refused(k: int, n: int, confidence: float) -> None:
    with pytest.raises(ValueError, match=r"right of|confidence"):
        confidence_sequence(k, n, confidence)


def test_bands_widen_when_they_must_hold_together() -> None:
    cells = [(19, 20), (15, 20), (5, 20)]
    alone = [binomtest(k, n).proportion_ci(0.95, "wilson") for k, n in cells]
    assert [found.low for found in pointwise(cells)] == pytest.approx([truth.low for truth in alone])
    # Three at 95 % together: each at 1 - 0.05 / 3
    together = simultaneous(cells, stopped_early=False)
    exact = [binomtest(k, n).proportion_ci(1 - 0.05 / 3, "exact") for k, n in cells]
    assert [found.low for found in together] == pytest.approx([truth.low for truth in exact])
    assert all(a.low < b.low for a, b in zip(simultaneous(cells, stopped_early=True), together, strict=True))
    assert simultaneous([], stopped_early=True) == ()
