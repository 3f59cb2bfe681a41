"""What is kept of what the control could do."""

from __future__ import annotations

import pytest

from longproof.stats.proportion import clopper_pearson
from longproof.stats.retention import retained, retention


def test_only_items_with_a_passed_control_count() -> None:
    control = [1.0, 0.0, 1.0, None, 1.0, 0.5]
    full = [1.0, 1.0, 0.0, 1.0, None, 1.0]
    assert retained(control, full) == (1.0, 0.0)


def test_pairs_are_counted_when_some_are_missing() -> None:
    found = retention([True, True, False, None, True], [True, False, True, True, None], planned_n=2)
    assert (found.asked, found.passed, found.kept, found.gained) == (3, 2, 1, 1)
    assert found.interval == clopper_pearson(1, 2)


def test_the_interval_allows_for_stopping_when_no_n_was_planned() -> None:
    stopped = retention([True] * 30, [True] * 27 + [False] * 3, planned_n=None)
    planned = retention([True] * 30, [True] * 27 + [False] * 3, planned_n=30)
    assert stopped.interval is not None
    assert planned.interval is not None
    assert stopped.interval.low < planned.interval.low


def test_there_is_no_interval_when_no_control_passed() -> None:
    assert retention([False, False], [True, False], planned_n=None).interval is None


def test_items_must_be_aligned() -> None:
    with pytest.raises(ValueError, match="longer"):
        retained([1.0], [1.0, 0.0])
