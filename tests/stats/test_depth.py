"""Slopes over depth and breaks at a distance."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import expit
from scipy.stats import norm

from longproof.domain.measure import Unknown
from longproof.stats.depth import Break, DepthTrend, depth_trend, distance_break


def test_the_slope_is_firths_when_found_by_search() -> None:
    # The penalised likelihood adds half the log determinant of the information.
    rng = np.random.default_rng(101)
    depth = rng.random(60)
    right = rng.random(60) < expit(0.5 + 2 * depth)
    columns = np.column_stack([depth, np.ones(60)])

    def penalised(beta: np.ndarray) -> float:
        share = expit(columns @ beta)
        information = columns.T @ (columns * (share * (1 - share))[:, None])
        fit = np.sum(np.where(right, np.log(share), np.log1p(-share)))
        return -float(fit + 0.5 * np.linalg.slogdet(information)[1])

    best = minimize(penalised, x0=[0.0, 0.0], method="Nelder-Mead", options={"xatol": 1e-8, "fatol": 1e-10}).x
    found = depth_trend(list(depth), list(right))
    assert isinstance(found, DepthTrend)
    assert found.slope == pytest.approx(best[0], abs=1e-4)
    assert found.interval.low < found.slope < found.interval.high


def test_the_slope_exists_when_all_heads_are_lost_and_all_tails_found() -> None:
    found = depth_trend([i / 20 for i in range(20)], [i >= 10 for i in range(20)])
    assert isinstance(found, DepthTrend)
    assert np.isfinite(found.slope)
    assert found.slope > 0
    assert found.p_value < 0.001


def test_the_score_test_is_the_permutation_z() -> None:
    # Depths 0, 1, 2, 3 with the last two right: sum of (depth - 1.5) over right = 0.5 + 1.5 = 2;
    # variance = 5 * 1 / 3 (squared depths times squared answers over n - 1); z = 2 / sqrt(5 / 3) = 1.549
    found = depth_trend([0.0, 1.0, 2.0, 3.0], [False, False, True, True])
    assert isinstance(found, DepthTrend)
    assert found.p_value == pytest.approx(2 * norm.sf(2 / (5 / 3) ** 0.5))


def test_alarms_are_five_percent_when_depth_does_not_matter() -> None:
    rng = np.random.default_rng(102)
    alarms = [
        found.p_value < 0.05
        for row, depth in zip(rng.random((1000, 40)) < 0.7, rng.random((1000, 40)), strict=True)
        if isinstance(found := depth_trend(list(depth), list(row)), DepthTrend)
    ]
    assert 0.03 < np.mean(alarms) < 0.07


def test_levels_of_lengths_are_no_slope_when_they_are_groups() -> None:
    # Short prompts: right 19 of 20, asked at the tail; long ones 10 of 20 at the head. Within each, no slope.
    depth = [0.8, 0.9] * 10 + [0.1, 0.2] * 10
    right = [i != 3 for i in range(20)] + [i % 4 < 2 for i in range(20)]
    pooled, grouped = depth_trend(depth, right), depth_trend(depth, right, [1] * 20 + [2] * 20)
    assert isinstance(pooled, DepthTrend)
    assert isinstance(grouped, DepthTrend)
    assert pooled.p_value < 0.01
    assert grouped.p_value > 0.3


def test_the_trend_is_unknown_when_nothing_varies() -> None:
    assert isinstance(depth_trend([0.1, 0.9], [True, True]), Unknown)
    with pytest.raises(ValueError, match="differ in number"):
        depth_trend([0.1], [True, False])


def window(rng: np.random.Generator, size: int, lapse: float = 0.03) -> tuple[list[int], list[bool], list[int]]:
    lengths = np.repeat([2048, 4096, 8192, 16384], 25)
    distance = np.maximum(1, (rng.random(100) * lengths).astype(int))
    right = (distance <= size) & (rng.random(100) >= lapse)
    return [int(d) for d in distance], [bool(r) for r in right], [int(n) for n in lengths]


def test_a_window_is_named_when_only_the_last_4096_tokens_are_found() -> None:
    rng = np.random.default_rng(103)
    found = [distance_break(*window(rng, 4096)) for _ in range(50)]
    named = [f for f in found if isinstance(f, Break) and f.looks_like_window()]
    assert len(named) > 40
    assert all(f.power_of_two == 4096 and f.found_within_tokens <= 4096 <= f.lost_from_tokens for f in named)


def test_no_window_is_named_when_the_break_is_no_power_of_two() -> None:
    rng = np.random.default_rng(104)
    found = [distance_break(*window(rng, 3000)) for _ in range(50)]
    assert all(isinstance(f, Break) and f.p_value < 0.01 for f in found)
    assert sum(isinstance(f, Break) and f.looks_like_window() for f in found) < 5


def test_no_window_is_named_when_accuracy_falls_with_length_alone() -> None:
    rng = np.random.default_rng(105)
    named = 0
    for _ in range(100):
        distance, _, lengths = window(rng, 4096)
        right = [bool(r) for r in rng.random(100) < np.interp(np.log2(lengths), [11, 14], [0.98, 0.3])]
        found = distance_break(distance, right, lengths)
        named += isinstance(found, Break) and found.looks_like_window()
    assert named == 0


@pytest.mark.parametrize(
    ("distance", "right"),
    [([1] * 12, [True, False] * 6), (list(range(12)), [True] * 12), ([1, 2], [True, False]),
     (list(range(1, 13)), [False] * 6 + [True] * 6)],
)  # fmt: skip
def test_a_break_is_unknown_when_nothing_can_show_it(distance: list[int], right: list[bool]) -> None:
    assert isinstance(distance_break(distance, right), Unknown)
