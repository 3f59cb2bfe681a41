"""The collector keeps out of a load's way, and is as it was afterwards."""

from __future__ import annotations

import gc

import pytest

from longproof.asking.steady import steady


class Ring:
    def __init__(self) -> None:
        self.me = self


def test_whole_heap_is_not_walked_while_inside() -> None:
    walked: list[int] = []

    def watch(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            walked.append(info["generation"])

    with steady():
        gc.callbacks.append(watch)
        kept = [Ring() for _ in range(100_000)]  # lets the usual thresholds walk the heap several times
        gc.callbacks.remove(watch)
    assert len(kept) == 100_000
    assert walked.count(0) > 20
    assert 2 not in walked


def test_collector_is_as_it_was_when_it_is_over() -> None:
    usual = gc.get_threshold()
    with steady():
        assert gc.get_freeze_count() > 0
        with steady():
            pass
        assert gc.get_freeze_count() > 0  # the inner one leaves the outer one in force
    assert gc.get_threshold() == usual
    with pytest.raises(ZeroDivisionError), steady():
        raise ZeroDivisionError
    assert gc.get_threshold() == usual
    assert gc.get_freeze_count() == 0
