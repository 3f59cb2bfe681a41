"""How fast a ledger empties, and what clients are told of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longproof.policy.drain import MOST_RETRY_NS, Drain, retry_after_ns

S = 1_000_000_000


def test_the_rate_is_what_is_held_over_how_long_it_is_held() -> None:
    drain = Drain()
    for second in range(200):
        drain.released(30, 20 * S, second * S)
    # 600 held for 20 s each: 30 come free a second, 300 in ten
    assert drain.blocks_per_s(600, 199 * S, 0) == pytest.approx(30)
    assert drain.wait_ns(300, 600, 199 * S, 0) == pytest.approx(10 * S)


def test_quiet_times_do_not_make_it_slower_when_stays_are_short() -> None:
    drain = Drain()
    drain.released(100, 2 * S, 0)
    assert drain.blocks_per_s(800, S, 0) == pytest.approx(400)


def test_long_stays_count_by_what_they_hold() -> None:
    drain = Drain()
    for _ in range(99):
        drain.released(1, S, 0)
    drain.released(901, 100 * S, 0)  # one giant holds nine tenths of it all
    assert drain.stay_ns(0, 0) == pytest.approx(90.2 * S, rel=0.01)


def test_the_guess_stands_in_when_nothing_was_released() -> None:
    assert Drain().wait_ns(50, 100, 5 * S, 8 * S) == 4 * S
    assert Drain().blocks_per_s(100, 5 * S, 8 * S) == pytest.approx(12.5)


def test_the_wait_grows_when_releases_stop() -> None:
    drain = Drain()
    drain.released(10, 2 * S, 100 * S)
    assert drain.wait_ns(50, 100, 101 * S, 0) == S
    assert drain.wait_ns(50, 100, 140 * S, 0) == 20 * S


def test_old_stays_are_forgotten_when_new_ones_differ() -> None:
    drain = Drain()
    drain.released(100, 60 * S, 0)
    for second in range(300):
        drain.released(10, S, second * S)
    assert drain.stay_ns(299 * S, 0) == pytest.approx(S, rel=0.1)


@given(wait=st.one_of(st.none(), st.integers(-(10**12), 10**14)))
def test_retry_after_is_whole_seconds_and_at_least_one_for_any_wait(wait: int | None) -> None:
    told = retry_after_ns(wait)
    assert told % S == 0
    assert S <= told <= 300 * S
    assert wait is None or told >= min(wait, 300 * S)


@given(
    steps=st.lists(st.tuples(st.integers(0, 30 * S), st.integers(0, 10_000), st.integers(0, 600 * S)), max_size=30),
    blocks=st.integers(-5, 10_000),
    held=st.integers(0, 10_000),
)
def test_a_wait_is_never_negative_nor_without_end(steps: list[tuple[int, int, int]], blocks: int, held: int) -> None:
    drain, now = Drain(), 0
    for wait_ns, released, stay_ns in steps:
        now += wait_ns
        drain.released(released, stay_ns, now)
    wait = drain.wait_ns(blocks, held, now, S)
    assert 0 <= wait <= MOST_RETRY_NS
    assert drain.wait_ns(blocks + 1, held, now, S) >= wait
