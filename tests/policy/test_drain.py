"""How fast a ledger empties, and what clients are told of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longproof.policy.drain import Drain, retry_after_ns

S = 1_000_000_000


def test_the_rate_is_what_was_released_per_second_when_it_is_steady() -> None:
    drain = Drain()
    for second in range(200):
        drain.released(30, second * S)
    assert drain.blocks_per_s(200 * S) == pytest.approx(30, rel=0.05)
    assert drain.wait_ns(300, 200 * S, 0) == pytest.approx(10 * S, rel=0.05)


def test_the_guess_stands_in_when_nothing_was_released() -> None:
    assert Drain().wait_ns(300, 5 * S, 7 * S) == 7 * S
    assert Drain().blocks_per_s(5 * S) is None


def test_the_wait_grows_when_releases_stop() -> None:
    drain = Drain()
    for second in range(60):
        drain.released(30, second * S)
    assert drain.wait_ns(300, 120 * S, 0) > 3 * drain.wait_ns(300, 60 * S, 0)


@given(wait=st.one_of(st.none(), st.integers(-(10**12), 10**14)))
def test_retry_after_is_whole_seconds_and_at_least_one_for_any_wait(wait: int | None) -> None:
    told = retry_after_ns(wait)
    assert told % S == 0
    assert S <= told <= 300 * S
    assert wait is None or told >= min(wait, 300 * S)


@given(steps=st.lists(st.tuples(st.integers(0, 30 * S), st.integers(0, 10_000)), max_size=30))
def test_the_rate_is_never_negative_nor_more_than_all_at_once(steps: list[tuple[int, int]]) -> None:
    drain, now, total = Drain(), 0, 0
    for wait_ns, blocks in steps:
        now += wait_ns
        total += blocks
        drain.released(blocks, now)
    rate = drain.blocks_per_s(now + S)
    assert rate is None or 0 <= rate <= total / 0.97  # seen for at least one second
