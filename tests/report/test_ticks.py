"""Marks of an axis."""

from __future__ import annotations

import math
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from longproof.report import ticks

positive = st.floats(min_value=1e-4, max_value=1e6)


@given(positive, st.floats(min_value=1, max_value=1e6))
def test_logarithmic_has_a_few_marks_near_the_data_when_any_span_is_given(low: float, stretch: float) -> None:
    marks = ticks.logarithmic(low, low * stretch)
    assert 1 <= len(marks) <= 12
    assert all(low / 1.3 <= mark <= low * stretch * 1.4 for mark in marks)
    assert marks == sorted(set(marks))


@given(positive)
def test_linear_begins_at_zero_and_reaches_the_top_when_scaled(top: float) -> None:
    marks = ticks.linear(top)
    steps = {round((b - a) / marks[1], 6) for a, b in pairwise(marks)}
    assert marks[0] == 0
    assert 3 <= len(marks) <= 8
    assert marks[-1] >= top * 0.95
    assert steps == {1.0}


@given(st.integers(min_value=1, max_value=5_000))
def test_whole_gives_at_most_nine_marks_within_when_counting(count: int) -> None:
    marks = ticks.whole(count)
    assert marks[0] == 1
    assert marks[-1] <= count
    assert len(marks) <= 9


@given(st.sets(st.integers(min_value=1, max_value=2_000_000), min_size=2, max_size=40))
def test_thinned_labels_never_touch_when_lengths_are_dense(lengths: set[int]) -> None:
    given_lengths = sorted(lengths)
    kept = ticks.thinned(given_lengths, width_pt=254, digit_pt=6.72)
    span = math.log(given_lengths[-1] / given_lengths[0])
    assert kept[-1] == given_lengths[-1]
    assert set(kept) <= lengths
    for left, right in pairwise(kept):
        distance = math.log(right / left) / span * 254 * 0.89
        assert distance >= (len(f"{left:,}") + len(f"{right:,}")) * 6.72 / 2 * 0.75  # a comma takes half a digit


@given(st.integers(min_value=-10_000_000, max_value=10_000_000))
def test_signed_log_keeps_order_and_sign_when_applied(distance: int) -> None:
    assert ticks.signed_log(distance) < ticks.signed_log(distance + 1)
    assert ticks.signed_log(-distance) == -ticks.signed_log(distance)


def test_signed_log_tells_one_from_a_thousand_when_drawn() -> None:
    # 0 → 0, 1 → 1, 10 → 2, 1,000 → 4
    assert [ticks.signed_log(x) for x in (0, 1, 10, 1000, -10)] == [0, 1, 2, 4, -2]


def test_distances_reach_out_on_both_sides_when_the_search_did() -> None:
    assert ticks.distances(-150, 1) == [-100, -10, -1, 0, 1]


@given(st.integers(min_value=-10_000_000, max_value=0), st.integers(min_value=0, max_value=10_000_000))
def test_distances_are_at_most_four_a_side_when_far(low: int, high: int) -> None:
    marks = ticks.distances(low, high)
    assert sum(mark < 0 for mark in marks) <= 4
    assert sum(mark > 0 for mark in marks) <= 4
    assert 0 in marks


def test_distances_leave_out_the_smallest_when_the_search_went_far() -> None:
    # powers 1 … 100,000 are six: every second one, counted from the outside in
    assert ticks.distances(-999_999, 0) == [-100_000, -1_000, -10, 0, 1]


def test_marks_lie_within_when_the_axis_does_not_begin_at_zero() -> None:
    assert ticks.between(4.4, 6.3) == [4.5, 5.0, 5.5, 6.0]  # 1.9 / 5 = 0.38, the next round step is 0.5
    assert ticks.between(-0.3, 0.3) == [-0.2, 0.0, 0.2]  # 0.6 / 5 = 0.12, the next round step is 0.2
    assert ticks.between(3.0, 3.0) == [3.0]


@given(st.floats(min_value=-1e6, max_value=1e6), positive)
def test_marks_are_few_when_any_span_is_given(low: float, span: float) -> None:
    assert len(ticks.between(low, low + span)) <= 7
