"""The search for the largest good number."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longproof.stats.bisection import Bracket, next_question


def _search(bracket: Bracket, low: int, high: int, resolution: int, boundary: int) -> tuple[Bracket, int]:
    asked = 0
    while (number := bracket.next_question(low, high, resolution)) is not None:
        assert low <= number <= high
        bracket = bracket.answered(number, good=number <= boundary)
        asked += 1
    return bracket, asked


@given(st.integers(1, 10_000), st.integers(0, 1_000_000), st.integers(1, 5_000), st.data())
def test_search_ends_at_the_boundary_when_the_server_is_monotone(
    low: int, width: int, resolution: int, data: st.DataObject
) -> None:
    high = low + width
    boundary = data.draw(st.integers(low - 1, high + 10))
    found, asked = _search(Bracket(), low, high, resolution, boundary)
    if boundary >= high:
        assert (found.good, asked) == (high, 1)
    elif boundary < low:
        assert found.good is None
        assert found.bad == low
    else:
        assert found.good is not None
        assert found.bad is not None
        assert found.good <= boundary < found.bad
        assert found.bad - found.good <= resolution
    assert asked <= 2 + max(0, math.ceil(math.log2(max(1, width) / resolution)) + 1)


def test_questions_are_top_bottom_halves_when_nothing_is_known() -> None:
    bracket = Bracket()
    asked: list[int] = []
    while (number := bracket.next_question(0, 100, 10)) is not None:
        asked.append(number)
        bracket = bracket.answered(number, good=number <= 63)
    assert asked == [100, 0, 50, 75, 62, 68]  # 62 good, 68 bad: 6 apart
    assert bracket == Bracket(good=62, bad=68)


def test_search_stops_when_answers_contradict() -> None:
    bracket = Bracket().answered(100, good=False).answered(120, good=True)
    assert bracket.contradictory
    assert bracket.next_question(0, 200) is None


def test_next_question_is_none_when_resolved() -> None:
    assert next_question(7, 8) is None
    assert next_question(7, 9) == 8
    assert next_question(0, 100, 100) is None


@pytest.mark.parametrize(("low", "high", "resolution"), [(5, 5, 1), (6, 5, 1), (1, 9, 0)])
def test_value_error_when_question_makes_no_sense(low: int, high: int, resolution: int) -> None:
    with pytest.raises(ValueError, match=r"below|resolution"):
        next_question(low, high, resolution)
