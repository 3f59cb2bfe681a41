"""One cell: exact error and power, the same rule by path and by table, and what may be under way at once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from longproof.stats.cell import (
    CERTIFIED,
    OPEN,
    REFUTED,
    UNDECIDED,
    CellTest,
    code_table,
    decide,
    fewest_more,
    operating,
)

TEST = CellTest(bar=0.85, alpha_above=0.05, alpha_below=0.05 / 9, cap=118)
ANSWERS = st.lists(st.booleans(), min_size=1, max_size=118)


def decided(test: CellTest, answers: list[float]) -> tuple[int, int]:
    code, after = decide(test, np.array([answers], dtype=float), np.array([len(answers)]))
    return int(code[0]), int(after[0])


@pytest.mark.parametrize("bar", [0.5, 0.75, 0.85, 0.925])
def test_errors_are_below_alpha_exactly_when_the_share_is_the_bar(bar: float) -> None:
    at_bar = operating(CellTest(bar=bar, alpha_above=0.05, alpha_below=0.01, cap=118), bar)
    assert at_bar.certified <= 0.05
    assert at_bar.refuted <= 0.01
    assert at_bar.certified + at_bar.refuted + at_bar.undecided == pytest.approx(1)


@pytest.mark.parametrize("share", [0.2, 0.5, 0.7, 0.8, 0.85, 0.9, 0.93, 0.95, 0.97, 0.99])
def test_fewer_answers_are_taken_than_59_whatever_the_share(share: float) -> None:
    assert operating(TEST, share).mean_answers < 59


def test_power_exceeds_that_of_59_answers_when_the_share_is_095() -> None:
    # 59 answers certify with 55 right or more: P(Binomial(59, 0.95) >= 55) = 0.828
    fixed = float(binom.sf(54, 59, 0.95))
    assert fixed == pytest.approx(0.828, abs=1e-3)
    assert operating(TEST, 0.95).certified > fixed


def test_exact_chances_agree_with_a_simulation() -> None:
    rng = np.random.default_rng(21)
    exact = operating(TEST, 0.93)
    codes, after = decide(TEST, (rng.random((4000, 118)) < 0.93).astype(float), np.full(4000, 118))
    # three standard errors of a share at n = 4000 are at most 0.024
    assert (codes == CERTIFIED).mean() == pytest.approx(exact.certified, abs=0.024)
    assert (codes == UNDECIDED).mean() == pytest.approx(exact.undecided, abs=0.024)
    assert after.mean() == pytest.approx(exact.mean_answers, rel=0.04)


@given(ANSWERS)
def test_the_table_says_the_same_as_the_path(answers: list[bool]) -> None:
    table = code_table(TEST)
    right = np.cumsum(answers)
    codes = [int(table[n, right[n - 1]]) for n in range(1, len(answers) + 1)]
    first = next((i for i, code in enumerate(codes) if code != OPEN), None)
    expected = (OPEN, len(answers)) if first is None else (codes[first], first + 1)
    assert decided(TEST, [float(a) for a in answers]) == expected


@given(ANSWERS, ANSWERS)
def test_a_decision_stays_when_more_answers_come(answers: list[bool], more: list[bool]) -> None:
    before = decided(TEST, [float(a) for a in answers])
    if before[0] != OPEN:
        assert decided(TEST, [float(a) for a in (answers + more)[:118]]) == before


def test_four_wrong_answers_refute_when_nothing_is_right() -> None:
    # Stakes 0.7 and 0.25 at odds of 1 / 0.15: per wrong answer 0.3 + 4.667 = 4.967 and 0.75 + 1.667 = 2.417.
    # (4.967^3 + 2.417^3) / 2 = 68 < 180 = 9 / 0.05 <= (4.967^4 + 2.417^4) / 2 = 321
    assert decided(TEST, [0.0] * 3) == (OPEN, 3)
    assert decided(TEST, [0.0] * 10) == (REFUTED, 4)


def test_a_hopeless_cell_is_given_up_when_it_hovers_at_the_bar() -> None:
    # Every seventh answer is wrong: 0.857 for ever. Neither bettor gets anywhere; the cap is 118.
    code, after = decided(TEST, [0.0 if i % 7 == 3 else 1.0 for i in range(118)])
    assert code == UNDECIDED
    assert 20 <= after < 118


def test_a_cell_can_only_be_refuted_when_the_climb_is_over() -> None:
    looking = CellTest(bar=0.85, alpha_above=0.05, alpha_below=0.05 / 9, cap=118, may_certify=False)
    assert decided(looking, [1.0] * 118)[0] == UNDECIDED
    assert decided(looking, [0.0] * 118) == (REFUTED, 4)


def test_as_many_may_be_under_way_as_the_fewest_that_decide() -> None:
    assert fewest_more(TEST, []) == 4  # four wrong ones refute
    assert fewest_more(TEST, [1.0] * 24) == 1  # the 25th right one certifies
    assert fewest_more(TEST, [1.0] * 118) == 0
    looking = CellTest(bar=0.85, alpha_above=0.05, alpha_below=0.05 / 9, cap=118, may_certify=False)
    assert fewest_more(looking, [1.0] * 24) > 4


def test_what_stands_behind_the_asked_answers_does_not_matter() -> None:
    scores = np.array([[1.0] * 10 + [np.nan] * 30])
    code, after = decide(TEST, scores, np.array([10]))
    assert (int(code[0]), int(after[0])) == (OPEN, 10)


@pytest.mark.parametrize("wrong", [{"bar": 1.0}, {"alpha_above": 0.0}, {"alpha_below": 1.0}, {"cap": 0}])
def test_an_impossible_test_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"bar|errors|cap"):
        CellTest(**({"bar": 0.85, "alpha_above": 0.05, "alpha_below": 0.05, "cap": 10} | wrong))  # type: ignore[arg-type]
