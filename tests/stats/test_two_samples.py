"""Two samples against scipy, worked numbers, and how often intervals hold what they promise."""

from __future__ import annotations

import math
import random

import pytest
from scipy import stats

from longproof.domain.measure import Interval, Unknown
from longproof.stats.ratio import Ratio
from longproof.stats.two_samples import RankTest, mann_whitney, quantile_ratio, ratio_shift


def ranked(x: list[float], y: list[float]) -> RankTest:
    found = mann_whitney(x, y)
    assert isinstance(found, RankTest)
    return found


def shifted(x: list[float], y: list[float], confidence: float = 0.95) -> Ratio:
    found = ratio_shift(x, y, confidence)
    assert isinstance(found, Ratio)
    return found


@pytest.mark.parametrize("sizes", [(3, 4), (8, 7), (20, 20), (40, 25)])
def test_p_values_are_scipys_when_nothing_is_tied(sizes: tuple[int, int]) -> None:
    rng = random.Random(sum(sizes))
    x = [rng.gauss(0.4, 1) for _ in range(sizes[0])]
    y = [rng.gauss(0, 1) for _ in range(sizes[1])]
    method = "exact" if sizes[0] * sizes[1] <= 400 else "asymptotic"
    both = stats.mannwhitneyu(x, y, alternative="two-sided", method=method)
    up = stats.mannwhitneyu(x, y, alternative="greater", method=method)
    found = ranked(x, y)
    assert found.p == pytest.approx(both.pvalue, rel=1e-9)
    assert found.p_higher == pytest.approx(up.pvalue, rel=1e-9)
    assert found.higher == pytest.approx(both.statistic / (sizes[0] * sizes[1]))


def test_p_values_are_scipys_when_values_are_tied() -> None:
    x, y = [1.0, 2, 2, 3, 3, 3], [2.0, 3, 4, 4, 5]
    assert ranked(x, y).p == pytest.approx(stats.mannwhitneyu(x, y, method="asymptotic").pvalue, rel=1e-9)


def test_nothing_is_said_when_all_values_are_equal() -> None:
    assert ranked([1.0] * 5, [1.0] * 5).p == 1.0


def test_the_shift_is_the_median_quotient_when_worked_by_hand() -> None:
    """Quotients of (2, 4, 8) and (1, 2): 2, 4, 8, 1, 2, 4; sorted 1 2 2 4 4 8; the middle between 2 and 4 on logs is
    sqrt(8). The most uneven of the 10 orders alone has 10 %: too much for either side of a 95 % interval."""
    found = shifted([2.0, 4.0, 8.0], [1.0, 2.0])
    assert found.value == pytest.approx(math.sqrt(8))
    assert isinstance(found.interval, Unknown)


def test_the_interval_is_the_rank_tests_when_samples_are_small() -> None:
    """4 and 4: P(U = 0) = 1/70 = 1.43 % ≤ 2.5 % and P(U ≤ 1) = 2/70 is above: no quotient stays
    outside, so the bounds are the smallest quotient and the largest."""
    found = shifted([10.0, 11, 12, 13], [1.0, 1.1, 1.2, 1.3])
    assert isinstance(found.interval, Interval)
    assert found.interval.low == pytest.approx(10 / 1.3)
    assert found.interval.high == pytest.approx(13 / 1.0)


def test_shift_intervals_hold_the_truth_when_drawn_many_times() -> None:
    """1,000 draws, truth 2: a 95 % interval misses at most 5 % of the time; 6.9 % is three deviations above that."""
    rng = random.Random(3)
    missed = 0
    for _ in range(1000):
        x = [2 * rng.lognormvariate(0, 0.5) for _ in range(12)]
        y = [rng.lognormvariate(0, 0.5) for _ in range(15)]
        spread = shifted(x, y).interval
        assert isinstance(spread, Interval)
        missed += not spread.low <= 2 <= spread.high
    assert missed <= 69


def test_quantile_bounds_hold_the_truth_when_drawn_many_times() -> None:
    """The p95 of the one is three times that of the other. The percentile bootstrap of a tail is known to be a little
    short: its lower bound at 99 % must not fail more often than 3 % of the time, far from what a finding rests on."""
    rng = random.Random(4)
    failed = 0
    for _ in range(400):
        x = [3 * rng.lognormvariate(0, 0.4) for _ in range(40)]
        y = [rng.lognormvariate(0, 0.4) for _ in range(60)]
        found = quantile_ratio(x, y, 0.95, 0.98)
        assert isinstance(found, Ratio)
        assert isinstance(found.interval, Interval)
        failed += found.interval.low > 3
    assert failed <= 12


def test_the_bootstrap_is_that_of_drawing_when_drawn_often() -> None:
    rng = random.Random(5)
    x = [rng.lognormvariate(0, 0.5) for _ in range(30)]
    y = [rng.lognormvariate(0, 0.5) for _ in range(25)]

    def p90(sample: list[float]) -> float:
        return sorted(sample)[math.ceil(0.9 * len(sample)) - 1]

    drawn = sorted(p90(rng.choices(x, k=30)) / p90(rng.choices(y, k=25)) for _ in range(20_000))
    found = quantile_ratio(x, y, 0.9, 0.9)
    assert isinstance(found, Ratio)
    assert isinstance(found.interval, Interval)
    assert found.value == pytest.approx(p90(x) / p90(y))
    assert drawn[800] <= found.interval.low <= drawn[1200]
    assert drawn[18_800] <= found.interval.high <= drawn[19_200]


def test_no_tail_is_told_when_samples_are_few() -> None:
    assert isinstance(quantile_ratio([1.0] * 19, [1.0] * 50, 0.95), Unknown)


def test_large_samples_are_thinned_and_say_the_same_when_compared() -> None:
    rng = random.Random(6)
    x = [1.5 * rng.lognormvariate(0, 0.3) for _ in range(5000)]
    y = [rng.lognormvariate(0, 0.3) for _ in range(5000)]
    assert shifted(x, y).value == pytest.approx(1.5, rel=0.03)
