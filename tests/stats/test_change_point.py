"""Rises in a series: found where they are, at the level they are told at, and not made of a series' own memory."""

from __future__ import annotations

import math

import numpy as np
import pytest

from longproof.domain.measure import Unknown
from longproof.stats.change_point import LEAST_VALUES, Rise, rise


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def noise(generator: np.random.Generator, n: int, *, memory: float = 0.0, spread: float = 0.1) -> np.ndarray:
    series = generator.normal(0, spread, n)
    for at in range(1, n):
        series[at] += memory * series[at - 1]
    return np.exp(series)


def found(values: list[float], seed: int = 0) -> Rise:
    answer = rise(values, rng=rng(seed))
    assert isinstance(answer, Rise)
    return answer


def test_a_step_is_found_where_it_is_when_the_second_half_is_higher() -> None:
    values = [1.0, 1.1, 0.9, 1.05, 0.95, 1.02, 0.98, 1.01, 2.0, 2.1, 1.9, 2.05, 1.95, 2.02, 1.98, 2.01]
    answer = found(values)
    assert (answer.at, answer.kind) == (8, "step")
    assert answer.before == pytest.approx(1.005)  # median of 0.9 … 1.1: between 1.0 and 1.01
    assert answer.after == pytest.approx(2.005)
    assert answer.p_value <= 0.001


def test_a_steady_rise_is_a_trend_when_no_split_explains_more() -> None:
    answer = found([1 + 0.1 * i for i in range(18)])
    assert answer.kind == "trend"
    assert answer.p_value <= 0.001


def test_one_sided_p_is_that_of_all_orders_when_the_step_is_clean() -> None:
    """Five of ten values are higher. Of C(10, 5) = 252 places for them only one puts all behind (the shuffles that are
    as large for the trend too are among those near it), so p is at least 1/252 and of that size."""
    answer = found([1.0] * 5 + [2.0] * 5)
    assert 1 / 252 * 0.8 < answer.p_value < 0.02


def test_nothing_rises_when_the_series_falls() -> None:
    assert found([2.0 - 0.05 * i for i in range(16)]).p_value > 0.9


def test_one_wild_value_decides_nothing_when_the_rest_is_level() -> None:
    generator = rng(5)
    values = list(noise(generator, 16, spread=0.02))
    values[11] = 50.0
    assert found(values).p_value > 0.05


def test_level_series_is_chance_when_all_values_are_equal() -> None:
    assert found([3.0] * 12).p_value == 1.0


def test_too_few_values_are_unknown() -> None:
    assert isinstance(rise([1.0] * (LEAST_VALUES - 1), rng=rng()), Unknown)


def test_same_seed_gives_the_same_answer() -> None:
    values = list(noise(rng(1), 20))
    assert found(values, 7) == found(values, 7)


@pytest.mark.parametrize(("memory", "most"), [(0.0, 0.04), (0.3, 0.06)])
def test_false_alarms_stay_near_the_level_when_neighbours_resemble_each_other(memory: float, most: float) -> None:
    """200 honest series, level 1 %: two are expected without memory; the bounds leave what 200 draws can vary by
    (P(more than 8 of 200 at 1 %) < 0.001), and for a memory of 0.3 the size that the correction leaves (about 2 %)."""
    generator = rng(11)
    alarms = sum(found(list(noise(generator, 18, memory=memory)), seed).p_value <= 0.01 for seed in range(200))
    assert alarms / 200 <= most


def test_a_rise_of_half_is_found_nearly_always_when_values_spread_by_a_tenth() -> None:
    generator = rng(3)
    hits = 0
    for seed in range(40):
        values = noise(generator, 18)
        values[9:] *= 1.5
        hits += found(list(values), seed).p_value <= 0.005
    assert hits >= 36


def test_memory_is_seen_when_a_series_has_much() -> None:
    generator = rng(2)
    assert found(list(noise(generator, 40, memory=0.8))).memory > 0.3
    assert not math.isnan(found([1.0] * 12).memory)
