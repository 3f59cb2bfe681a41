"""Betting against a bar and Wald's test: worked numbers, consistency, and the promise under optional stopping."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longproof.stats.design import asking_order
from longproof.stats.sprt import Outcome, Side, Sprt, anytime_bound, bettors, log_evidence, pooled, steps

ENOUGH = math.log(20)
SCORES = st.lists(st.sampled_from([0.0, 1.0, 1 / 3]), max_size=60)


def ever_shown(scores: np.ndarray, bar: float) -> float:
    """The share of rows of (runs, answers) that ever certify `bar` at 5 %."""
    return float((pooled(bettors(scores, bar, Side.ABOVE)).max(axis=1) >= ENOUGH).mean())


def test_twenty_five_right_certify_when_the_bar_is_085() -> None:
    # Per right answer 1 - s + s / 0.85: 1.15 for s = 0.85, 1.0971 for s = 0.55.
    # (1.15^24 + 1.0971^24) / 2 = (28.6 + 9.2) / 2 = 18.9 < 20 <= (1.15^25 + 1.0971^25) / 2 = (32.9 + 10.1) / 2 = 21.5
    assert math.exp(log_evidence([1.0] * 24, 0.85)) == pytest.approx(18.9, abs=0.1)
    assert math.exp(log_evidence([1.0] * 25, 0.85)) == pytest.approx(21.5, abs=0.1)


@pytest.mark.parametrize(("wrong", "n"), [(0, 25), (1, 38), (2, 51), (3, 64)])
def test_so_many_answers_certify_when_the_first_are_wrong(wrong: int, n: int) -> None:
    # Wrong answers leave 0.15 and 0.45 of the two wealths: each costs 13 more right ones.
    for extra, shown in ((-1, False), (0, True)):
        answers = [0.0] * wrong + [1.0] * (n - wrong + extra)
        assert (log_evidence(answers, 0.85) >= ENOUGH) is shown
        assert (anytime_bound(answers, Side.ABOVE) >= 0.85) is shown


def test_a_bet_is_a_likelihood_ratio_when_answers_are_right_or_wrong() -> None:
    # A stake of 0.85 against 0.85 backs 1 - 0.15 * 0.15 = 0.9775: ratios 0.9775 / 0.85 and 0.0225 / 0.15.
    right, wrong = steps(0.85, Side.ABOVE)
    assert right[0] == pytest.approx(0.9775 / 0.85)
    assert wrong[0] == pytest.approx(0.0225 / 0.15)


@given(SCORES, st.floats(0.05, 0.95))
def test_a_bound_passes_a_bar_when_the_evidence_suffices(scores: list[float], bar: float) -> None:
    for side in Side:
        bound, evidence = anytime_bound(scores, side), log_evidence(scores, bar, side)
        if abs(evidence - ENOUGH) > 1e-6:
            assert ((bound > bar) if side is Side.ABOVE else (bound < bar)) == (evidence > ENOUGH)


@given(SCORES)
def test_bounds_surround_when_everything_is_seen(scores: list[float]) -> None:
    assert 0 <= anytime_bound(scores, Side.ABOVE, 0.025) <= anytime_bound(scores, Side.BELOW, 0.025) <= 1


@pytest.mark.parametrize("bar", [0.5, 0.85, 0.925])
def test_wealth_is_not_expected_to_grow_when_the_share_is_the_bar(bar: float) -> None:
    for side in Side:
        right, wrong = steps(bar, side)
        assert bar * right + (1 - bar) * wrong == pytest.approx(1.0)


def test_errors_stay_below_alpha_when_one_looks_after_every_answer() -> None:
    # 4,000 runs of 600 answers at exactly the bar: 5 % plus three standard errors of 0.34 % is 6 %.
    rng = np.random.default_rng(11)
    assert ever_shown((rng.random((4000, 600)) < 0.85).astype(float), 0.85) < 0.06


def test_errors_stay_below_alpha_when_haystacks_share_their_luck() -> None:
    # Three questions per haystack, the haystack's own share Beta(1.7, 0.3): mean 0.85, alike by 1 / 3.
    rng = np.random.default_rng(12)
    scores = rng.binomial(3, rng.beta(1.7, 0.3, size=(4000, 300))) / 3
    assert scores.mean() == pytest.approx(0.85, abs=0.005)
    assert ever_shown(scores, 0.85) < 0.06


def test_errors_stay_below_alpha_when_depth_decides_and_the_order_is_drawn() -> None:
    # Depths are strata: the head's 30 % are right half of the time, the rest always. Mean 0.3 * 0.5 + 0.7 = 0.85.
    rng = np.random.default_rng(13)
    order = np.stack([asking_order(120, rng) for _ in range(3000)])
    scores = (rng.random(order.shape) < np.where(order < 36, 0.5, 1.0)).astype(float)
    assert ever_shown(scores, 0.85) < 0.05
    # Asked from the tail on, the first 84 are all right, and every run is taken in: the order must be drawn.
    assert ever_shown(np.where(np.arange(120) < 84, 1.0, scores), 0.85) == 1.0


def test_errors_stay_below_alpha_when_depths_are_spread_evenly() -> None:
    # Depths go round by the golden ratio from a random start; the head's 30 % are right half of the time: mean 0.85.
    rng = np.random.default_rng(15)
    depth = (rng.random(3000)[:, None] + np.arange(120) * 0.618034) % 1
    scores = (rng.random(depth.shape) < np.where(depth < 0.3, 0.5, 1.0)).astype(float)
    assert scores.mean() == pytest.approx(0.85, abs=0.005)
    assert ever_shown(scores, 0.85) < 0.05


def test_an_impossible_bar_is_refused() -> None:
    with pytest.raises(ValueError, match="bar of 1"):
        steps(1.0, Side.ABOVE)


def test_walds_steps_and_ends_are_known_numbers() -> None:
    # ln(.90 / .75) = .182, ln(.10 / .25) = -.916; ln(.95 / .85) = .111, ln(.05 / .15) = -1.099; ends at ln 19 = 2.944
    first, second = Sprt(low=0.75, high=0.90), Sprt(low=0.85, high=0.95)
    assert first.right_adds == pytest.approx(0.1823, abs=1e-4)
    assert first.wrong_adds == pytest.approx(-0.9163, abs=1e-4)
    assert second.right_adds == pytest.approx(0.1112, abs=1e-4)
    assert second.wrong_adds == pytest.approx(-1.0986, abs=1e-4)
    assert second.first_outcome([True] * 40) == (Outcome.HIGH, 27)  # 2.944 / .1112 = 26.5
    assert second.first_outcome([False] * 40) == (Outcome.LOW, 3)  # 2.944 / 1.0986 = 2.7
    assert second.first_outcome([True] * 20) == (Outcome.OPEN, 20)
    assert Sprt(low=0.85, high=0.95, cap=20).outcome(20, 20) is Outcome.CAPPED


def test_wald_takes_the_known_mean_number_of_answers_when_simulated() -> None:
    # From 0.75 against 0.90: about 40 answers at a share of 0.90 and 18 at 0.99, and at most 5 % wrong ends.
    rng = np.random.default_rng(14)
    test = Sprt(low=0.75, high=0.90)
    for share, mean in ((0.90, 40.0), (0.99, 18.0)):
        ends = [test.first_outcome([bool(a) for a in row < share]) for row in rng.random((1500, 600))]
        assert np.mean([n for _, n in ends]) == pytest.approx(mean, rel=0.08)
        assert np.mean([outcome is Outcome.LOW for outcome, _ in ends]) < 0.06


@pytest.mark.parametrize("shares", [(0.9, 0.8), (0.0, 0.5), (0.5, 1.0)])
def test_wald_refuses_shares_that_do_not_rise(shares: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="not 0 <"):
        Sprt(low=shares[0], high=shares[1])
