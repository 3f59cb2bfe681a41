"""The monotone fit against scipy's, where it crosses, and its interval."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import isotonic_regression

from longproof.stats.isotonic import bootstrap, crossing, non_increasing

CELLS = st.lists(st.tuples(st.floats(0, 1), st.integers(1, 50)), min_size=1, max_size=9)


@given(CELLS)
def test_the_fit_equals_scipy(cells: list[tuple[float, int]]) -> None:
    means, weights = np.array([m for m, _ in cells]), np.array([float(w) for _, w in cells])
    truth = isotonic_regression(means, weights=weights, increasing=False).x
    assert non_increasing(means, weights) == pytest.approx(truth, abs=1e-9)


def test_many_fits_at_once_equal_single_ones() -> None:
    rng = np.random.default_rng(71)
    means, weights = rng.random((5, 7)), rng.integers(1, 9, (5, 7)).astype(float)
    together = non_increasing(means, weights)
    assert together == pytest.approx(np.stack([non_increasing(m, w) for m, w in zip(means, weights, strict=True)]))


def test_a_violation_is_pooled_when_accuracy_rises() -> None:
    # 0.8 of 10 and 1.0 of 30 pool to (8 + 30) / 40 = 0.95
    assert non_increasing(np.array([0.8, 1.0, 0.5]), np.array([10.0, 30.0, 10.0])) == pytest.approx([0.95, 0.95, 0.5])


def test_the_crossing_lies_on_the_straight_line() -> None:
    octaves = np.array([10.0, 11.0, 12.0])
    # From 1.0 to 0.6 within an octave: 0.85 at 0.15 / 0.4 = 0.375 of it
    assert crossing(octaves, np.array([1.0, 1.0, 0.6]), 0.85) == pytest.approx(11.375)
    assert crossing(octaves, np.array([0.8, 0.7, 0.6]), 0.85) == -np.inf
    assert crossing(octaves, np.array([1.0, 0.9, 0.85]), 0.85) == np.inf


def test_the_interval_runs_from_length_to_length_when_a_wall_is_met() -> None:
    found = bootstrap([(1000, [1.0] * 30), (2000, [1.0] * 30), (4000, [0.0] * 5)], 0.85, np.random.default_rng(72))
    assert (found.low_tokens, found.high_tokens) == (2000, 4000)
    assert found.tokens == pytest.approx(2000 * 2**0.15)
    assert not found.reaches_longest


def test_ends_are_open_when_the_curve_does_not_cross() -> None:
    rng = np.random.default_rng(73)
    above = bootstrap([(1000, [1.0] * 9), (2000, [1.0] * 9)], 0.85, rng)
    assert (above.tokens, above.low_tokens, above.high_tokens, above.reaches_longest) == (None, 2000, None, True)
    below = bootstrap([(1000, [0.0] * 9), (2000, [0.0] * 9)], 0.85, rng)
    assert (below.tokens, below.low_tokens, below.high_tokens, below.reaches_longest) == (None, None, 1000, False)


def test_the_same_seed_gives_the_same_interval() -> None:
    scores = [(1000, [1.0] * 18 + [0.0] * 2), (2000, [1.0] * 15 + [0.0] * 5), (4000, [1.0] * 9 + [0.0] * 11)]
    assert bootstrap(scores, 0.85, np.random.default_rng(74)) == bootstrap(scores, 0.85, np.random.default_rng(74))


@pytest.mark.parametrize("scores", [[], [(1000, [])], [(2000, [1.0]), (1000, [1.0])]])
def test_missing_or_disordered_scores_are_refused(scores: list[tuple[int, list[float]]]) -> None:
    with pytest.raises(ValueError, match="ascend"):
        bootstrap(scores, 0.85, np.random.default_rng(0))
