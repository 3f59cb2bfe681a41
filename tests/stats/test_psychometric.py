"""The estimated effective length: near the truth with many answers, open where nothing was seen, right in coverage."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.optimize import minimize

from longproof.stats.psychometric import estimate, length_quantiles

LENGTHS = tuple(1000 << j for j in range(8))
OCTAVES = np.log2(LENGTHS)


def curve(at: float, spread: float, lapse: float, floor: float = 0.0, threshold: float = 0.85) -> np.ndarray:
    centre = at - spread * math.log((1 - lapse - threshold) / (threshold - floor))
    return floor + (1 - lapse - floor) / (1 + np.exp((OCTAVES - centre) / spread))


def test_the_estimate_is_the_truth_when_answers_are_many() -> None:
    share = curve(math.log2(22_000), 0.6, 0.02)
    found = estimate(LENGTHS, share * 20_000, [20_000] * 8, threshold=0.85)
    assert found.tokens == pytest.approx(22_000, rel=0.05)
    assert found.low_tokens is not None
    assert found.high_tokens is not None
    assert found.low_tokens < 22_000 < found.high_tokens < 1.2 * found.low_tokens


def test_the_estimate_is_near_the_most_likely_curve() -> None:
    # The most likely logistic curve with lapse, found by scipy, crosses where the estimate says, within its spread.
    rng = np.random.default_rng(81)
    right = rng.binomial(200, curve(math.log2(9_000), 0.8, 0.03))

    def misfit(parameters: np.ndarray) -> float:
        at, log_spread, lapse = parameters
        if not 0 <= lapse < 0.145:
            return 1e9
        share = np.clip(curve(at, math.exp(log_spread), lapse), 1e-12, 1 - 1e-12)
        return -float(right @ np.log(share) + (200 - right) @ np.log1p(-share))

    best = minimize(misfit, x0=[13.0, -0.3, 0.02], method="Nelder-Mead", options={"maxiter": 5000}).x
    found = estimate(LENGTHS, right, [200] * 8, threshold=0.85)
    assert found.tokens is not None
    assert math.log2(found.tokens) == pytest.approx(best[0], abs=0.15)


def test_ends_are_open_when_the_curve_leaves_the_lengths() -> None:
    beyond = estimate(LENGTHS, [30] * 8, [30] * 8, threshold=0.85)
    assert (beyond.tokens, beyond.high_tokens, beyond.reaches_longest) == (None, None, True)
    below = estimate(LENGTHS, [5] + [0] * 7, [30] + [10] * 7, threshold=0.85)
    assert (below.tokens, below.low_tokens, below.reaches_longest) == (None, None, False)


def test_the_interval_spans_the_gap_when_a_wall_stands_between_two_lengths() -> None:
    # All right up to 8,000, none of five at 16,000, nothing asked beyond: anywhere in between.
    found = estimate(LENGTHS, [30, 30, 30, 30, 0, 0, 0, 0], [30, 30, 30, 30, 5, 0, 0, 0], threshold=0.85)
    assert found.low_tokens is not None
    assert found.high_tokens is not None
    assert 6_000 < found.low_tokens < 9_500
    assert 13_000 < found.high_tokens < 17_000


def test_chance_lifts_the_floor_when_guesses_count() -> None:
    # One of four by luck: a curve from 0.98 down to 0.25, with the threshold at 0.25 + 0.75 * 0.85 = 0.8875
    share = curve(math.log2(16_000), 0.5, 0.02, floor=0.25, threshold=0.8875)
    found = estimate(LENGTHS, share * 20_000, [20_000] * 8, threshold=0.8875, chance=0.25)
    assert found.tokens == pytest.approx(16_000, rel=0.05)


def test_fewer_effective_answers_widen_the_interval() -> None:
    share = curve(math.log2(9_000), 0.8, 0.02)
    widths = []
    for n in (60, 20):
        found = estimate(LENGTHS, share * n, [n] * 8, threshold=0.85)
        assert found.low_tokens is not None
        assert found.high_tokens is not None
        widths.append(math.log2(found.high_tokens / found.low_tokens))
    assert widths[0] < widths[1]


def test_the_interval_covers_in_about_95_percent_when_the_curve_is_drawn_anew() -> None:
    # 600 curves, 40 answers at each of eight lengths, effective length anywhere from 2k to 64k. Three standard errors
    # of a share of 0.95 at n = 600 are 2.7 %.
    rng = np.random.default_rng(82)
    at = rng.uniform(11, 16, 600)
    spreads, lapses = rng.uniform(0.3, 1.5, 600), rng.uniform(0, 0.06, 600)
    share = np.stack([curve(*one) for one in zip(at, spreads, lapses, strict=True)])
    found = np.log2(
        length_quantiles(
            LENGTHS, rng.binomial(40, share).astype(float), np.full(share.shape, 40.0),
            threshold=0.85, chance=0.0, probabilities=(0.025, 0.975),
        )
    )  # fmt: skip
    covered = float(((found[:, 0] <= at) & (at <= found[:, 1])).mean())
    assert 0.92 < covered < 0.98


@pytest.mark.parametrize("n", [118, 1000])
def test_the_interval_covers_as_well_when_answers_are_many(n: int) -> None:
    # The grid must follow: where it is too coarse, the interval shrinks onto the nearest grid point.
    rng = np.random.default_rng(83)
    at = rng.uniform(11, 16, 200)
    share = np.stack(
        [curve(*one) for one in zip(at, rng.uniform(0.3, 1.5, 200), rng.uniform(0, 0.06, 200), strict=True)]
    )
    found = np.log2(
        length_quantiles(
            LENGTHS, rng.binomial(n, share).astype(float), np.full(share.shape, float(n)),
            threshold=0.85, chance=0.0, probabilities=(0.025, 0.975),
        )
    )  # fmt: skip
    # three standard errors of 0.95 at 200 runs are 4.6 %
    assert float(((found[:, 0] <= at) & (at <= found[:, 1])).mean()) > 0.9


@pytest.mark.parametrize(
    ("right", "n", "threshold", "chance"),
    [([1, 1], [0, 1], 0.85, 0.0), ([0, 0], [0, 0], 0.85, 0.0), ([1, 1], [1, 1], 0.5, 0.5)],
)
def test_impossible_counts_are_refused(right: list[int], n: list[int], threshold: float, chance: float) -> None:
    with pytest.raises(ValueError, match=r"answers|threshold"):
        estimate((1000, 2000), right, n, threshold=threshold, chance=chance)
