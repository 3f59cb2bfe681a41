"""Brackets of cells with a fixed n, the minimum over families, and the bare point rule."""

from __future__ import annotations

import numpy as np
import pytest

from longproof.stats.fixed_sequence import LengthBracket, LengthCell, fixed_sequence, point_rule, weakest
from longproof.stats.proportion import lower_bound


def cells(*right_of_n: tuple[int, int]) -> list[LengthCell]:
    return [LengthCell(length_tokens=1000 << j, right=right, n=n) for j, (right, n) in enumerate(right_of_n)]


@pytest.mark.parametrize(("right", "n"), [(19, 19), (29, 30), (38, 40), (47, 50), (55, 59), (74, 80), (92, 100)])
def test_so_many_right_certify_085_and_one_fewer_does_not(right: int, n: int) -> None:
    # 0.85^19 = 0.0456 < 0.05 < 0.85^18 = 0.0536; the others follow from the binomial in the same way.
    assert lower_bound(right, n) >= 0.85 > lower_bound(right - 1, n)
    assert fixed_sequence(cells((right, n)), 0.85).certified_tokens == 1000
    assert fixed_sequence(cells((right - 1, n)), 0.85).certified_tokens is None


@pytest.mark.parametrize(("threshold", "n"), [(0.75, 11), (0.80, 14), (0.85, 19), (0.90, 29), (0.95, 59)])
def test_without_a_miss_so_many_answers_certify(threshold: float, n: int) -> None:
    # n is the first with threshold^n <= 0.05
    assert threshold**n <= 0.05 < threshold ** (n - 1)
    assert fixed_sequence(cells((n, n)), threshold).certified_tokens == 1000
    assert fixed_sequence(cells((n - 1, n - 1)), threshold).certified_tokens is None


def test_the_climb_ends_when_a_length_is_not_certified() -> None:
    # 45 of 50 at 2000 does not certify; 50 of 50 beyond it no longer counts; 20 of 50 is refuted.
    found = fixed_sequence(cells((50, 50), (45, 50), (50, 50), (20, 50)), 0.85)
    assert found == LengthBracket(certified_tokens=1000, refuted_tokens=8000)


def test_the_first_refuted_length_is_taken_when_several_are() -> None:
    assert fixed_sequence(cells((50, 50), (10, 50), (0, 50)), 0.85) == LengthBracket(
        certified_tokens=1000, refuted_tokens=2000
    )


def test_less_is_refuted_when_several_families_share_the_error() -> None:
    """0 of 6: the upper bound is 1 - 0.05^(1/6) = 0.39, at 0.05 / 5 it is 1 - 0.01^(1/6) = 0.54."""
    cells = [LengthCell(length_tokens=1_024, right=0, n=6)]
    assert fixed_sequence(cells, 0.5).refuted_tokens == 1_024
    assert fixed_sequence(cells, 0.5, alpha_refuted=0.01).refuted_tokens is None


def test_lengths_that_do_not_ascend_are_refused() -> None:
    with pytest.raises(ValueError, match="ascend"):
        fixed_sequence(list(reversed(cells((1, 1), (1, 1)))), 0.85)


def test_the_weakest_family_decides_when_there_are_several() -> None:
    strong = LengthBracket(certified_tokens=32_000, refuted_tokens=None)
    weak = LengthBracket(certified_tokens=8_000, refuted_tokens=16_000)
    assert weakest([strong, weak]) == weak
    nothing = LengthBracket(certified_tokens=None, refuted_tokens=64_000)
    assert weakest([strong, nothing]) == nothing
    assert weakest([strong]) == strong
    with pytest.raises(ValueError, match="no families"):
        weakest([])


def test_a_bracket_that_contradicts_itself_is_refused() -> None:
    with pytest.raises(ValueError, match="certified to 2,000"):
        LengthBracket(certified_tokens=2_000, refuted_tokens=1_000)


def test_the_minimum_is_over_claimed_in_at_most_five_percent_when_families_differ() -> None:
    # Three families of two lengths, 59 answers a cell. The second length fails in one family, at 0.8499.
    rng = np.random.default_rng(41)
    over = 0
    for _ in range(1500):
        families = [rng.binomial(59, [0.97, share]) for share in (0.97, 0.95, 0.8499)]
        brackets = [fixed_sequence(cells(*((int(k), 59) for k in rights)), 0.85) for rights in families]
        over += weakest(brackets).certified_tokens == 2000
    assert over / 1500 < 0.05


def test_the_point_rule_claims_what_no_test_would() -> None:
    # 9 of 10 is 0.9, and its lower bound is 0.606.
    assert point_rule(cells((10, 10), (9, 10), (8, 10), (10, 10)), 0.85) == 2000
    assert lower_bound(9, 10) == pytest.approx(0.606, abs=1e-3)
    assert point_rule(cells((8, 10)), 0.85) is None
