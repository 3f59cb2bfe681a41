"""Haystacks whose questions share their luck."""

from __future__ import annotations

import numpy as np
import pytest

from longproof.domain.measure import Interval, Unknown
from longproof.stats.clusters import (
    bootstrap_mean,
    clustered_interval,
    design_effect,
    effective_n,
    haystack_means,
    intraclass,
)
from longproof.stats.proportion import clopper_pearson


def alike(rng: np.random.Generator, haystacks: int, questions: int, share: float, likeness: float) -> list[list[float]]:
    strength = 1 / likeness - 1
    own = rng.beta(share * strength, (1 - share) * strength, haystacks)
    return [[float(a) for a in rng.random(questions) < p] for p in own]


def test_three_questions_count_as_1_8_when_alike_by_a_third() -> None:
    # 1 + (3 - 1) * 0.33 = 1.66; 3 / 1.66 = 1.81
    groups = [[1.0, 1.0, 0.0]] * 10
    assert design_effect(groups, 0.33) == pytest.approx(1.66)
    assert effective_n(groups, 0.33) == pytest.approx(10 * 1.81, abs=0.05)


def test_likeness_is_found_when_it_was_put_in() -> None:
    found = intraclass(alike(np.random.default_rng(91), 3000, 3, 0.7, 0.33))
    assert not isinstance(found, Unknown)
    assert found == pytest.approx(0.33, abs=0.04)


def test_likeness_is_exact_when_worked_by_hand() -> None:
    # Means 1 and 0.5, grand mean 0.75: between = 2 * 2 * 0.25^2 / 1 = 0.25; within = 0.5 / 2 = 0.25: no likeness
    assert intraclass([[1.0, 1.0], [1.0, 0.0]]) == pytest.approx(0.0)
    # Means 1 and 0: between = 2 * 2 * 0.5^2 = 1, within = 0: entirely alike
    assert intraclass([[1.0, 1.0], [0.0, 0.0]]) == pytest.approx(1.0)


def test_likeness_is_unknown_when_nothing_can_show_it() -> None:
    for groups in ([[1.0, 0.0]], [[1.0], [0.0]], [[1.0, 1.0], [1.0, 1.0]]):
        assert isinstance(intraclass(groups), Unknown)
    assert design_effect([[1.0, 1.0], [1.0, 1.0]]) == 2.0  # unknown counts as entirely alike
    assert design_effect([[1.0], [0.0]]) == 1.0  # one question a haystack


def test_an_effect_never_helps_when_haystacks_are_unlike() -> None:
    assert design_effect([[1.0, 0.0]] * 8) == 1.0


def test_the_interval_is_clopper_pearson_when_no_haystack_is_shared() -> None:
    found, exact = clustered_interval([[1.0]] * 18 + [[0.0]] * 2), clopper_pearson(18, 20)
    assert (found.low, found.high) == (pytest.approx(exact.low), pytest.approx(exact.high))


@pytest.mark.parametrize("method", ["effective n", "bootstrap"])
def test_intervals_cover_when_questions_share_haystacks(method: str) -> None:
    # 60 haystacks of three, alike by 0.33; the interval that ignores it covers in about 87 %.
    rng = np.random.default_rng(92)
    covered, ignored, runs = 0, 0, 400
    for _ in range(runs):
        groups = alike(rng, 60, 3, 0.7, 0.33)
        found = clustered_interval(groups) if method == "effective n" else bootstrap_mean(groups, rng, draws=400)
        assert isinstance(found, Interval)
        covered += found.low <= 0.7 <= found.high
        naive = clopper_pearson(int(sum(map(sum, groups))), 180)
        ignored += naive.low <= 0.7 <= naive.high
    # Three standard errors of 0.95 at n = 400 are 3.3 %.
    assert covered / runs > 0.915
    assert covered > ignored


def test_a_bootstrap_of_few_haystacks_is_refused() -> None:
    assert isinstance(bootstrap_mean([[1.0, 0.0]] * 9, np.random.default_rng(0)), Unknown)


def test_means_stand_for_haystacks() -> None:
    assert haystack_means([[1.0, 0.0], [1.0]]) == (0.5, 1.0)
    with pytest.raises(ValueError, match="haystack"):
        haystack_means([[]])
