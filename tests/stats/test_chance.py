"""Correction for chance, both ends of an interval, and Youden's J."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longproof.stats.chance import corrected, corrected_interval, raised, youden
from longproof.stats.proportion import clopper_pearson


def test_a_guesser_scores_zero_and_a_solver_one() -> None:
    assert corrected(0.25, 0.25) == 0
    assert corrected(1.0, 0.25) == 1
    assert corrected(0.1, 0.25) == pytest.approx(-0.2)  # (0.1 - 0.25) / 0.75


@given(st.floats(0, 1), st.floats(0, 0.95))
def test_raising_undoes_correcting(share: float, chance: float) -> None:
    assert raised(corrected(share, chance), chance) == pytest.approx(share, abs=1e-9)


def test_both_ends_are_corrected() -> None:
    plain = clopper_pearson(15, 20)
    found = corrected_interval(plain, 0.5)
    assert found.low == pytest.approx(2 * plain.low - 1)
    assert found.high == pytest.approx(2 * plain.high - 1)
    assert found.method == "Clopper-Pearson, corrected for chance 0.5"


@pytest.mark.parametrize("chance", [-0.1, 1.0])
def test_an_impossible_chance_is_refused(chance: float) -> None:
    with pytest.raises(ValueError, match="chance"):
        corrected(0.5, chance)


def test_yes_sayers_and_no_sayers_have_no_j() -> None:
    # Right on every present and no absent item, or the other way round: 1 + 0 - 1 = 0.
    for present, absent in ((20, 0), (0, 20)):
        found = youden(present, 20, absent, 20)
        assert found.value == 0
        assert found.interval.low < 0 < found.interval.high
    assert youden(20, 20, 20, 20).value == 1
    assert youden(20, 20, 20, 20).interval.high == 1


def test_a_mean_over_twins_corrected_by_a_half_is_j() -> None:
    # 18 of 20 present and 12 of 20 absent: J = 0.9 + 0.6 - 1 = 0.5; the mean score is 0.75, (0.75 - 0.5) / 0.5 = 0.5
    assert youden(18, 20, 12, 20).value == pytest.approx(0.5)
    assert corrected((18 + 12) / 40, 0.5) == pytest.approx(0.5)


def test_the_interval_of_j_covers_in_about_95_percent_of_samples() -> None:
    rng = np.random.default_rng(61)
    truth = 0.9 + 0.7 - 1
    hits = 0
    for present, absent in zip(rng.binomial(30, 0.9, 2000), rng.binomial(30, 0.7, 2000), strict=True):
        found = youden(int(present), 30, int(absent), 30).interval
        hits += found.low <= truth <= found.high
    assert 0.935 < hits / 2000 < 0.975
