"""Admission by slots and KV tokens."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longproof.testing.fake_pool import OverCapacity, Pool, PoolRefusal, Ticket


def pool(policy: OverCapacity = OverCapacity.QUEUE, *, slots: int = 4) -> Pool:
    return Pool(slots=slots, capacity_tokens=100, over_capacity=policy)


def admitted(*tickets: Ticket) -> list[bool]:
    return [ticket.admitted.is_set() for ticket in tickets]


def test_second_request_waits_when_the_pool_is_full_and_runs_when_the_first_leaves() -> None:
    under_test = pool()
    first, second = under_test.enter(60), under_test.enter(60)
    assert admitted(first, second) == [True, False]
    assert (under_test.running, under_test.waiting, under_test.used_tokens) == (1, 1, 60)
    under_test.leave(first)
    assert admitted(second) == [True]


def test_request_waits_when_no_slot_is_free() -> None:
    under_test = pool(OverCapacity.REFUSE, slots=1)
    first, second = under_test.enter(10), under_test.enter(10)
    under_test.leave(first)
    assert admitted(second) == [True]


def test_requests_behind_it_wait_too_when_one_can_never_run_in_a_queue() -> None:
    under_test = pool(OverCapacity.QUEUE)
    too_large, small = under_test.enter(101), under_test.enter(10)
    assert admitted(too_large, small) == [False, False]
    under_test.leave(too_large)
    assert admitted(small) == [True]


def test_others_pass_when_one_hangs() -> None:
    under_test = pool(OverCapacity.HANG)
    too_large, small = under_test.enter(101), under_test.enter(10)
    assert admitted(too_large, small) == [False, True]
    assert under_test.waiting == 1


def test_refusal_says_whether_it_could_ever_run() -> None:
    under_test = pool(OverCapacity.REFUSE)
    under_test.enter(60)
    for need, ever in ((101, False), (41, True)):
        with pytest.raises(PoolRefusal) as refused:
            under_test.enter(need)
        assert refused.value.ever is ever
        assert refused.value.free_tokens == 40


@given(st.lists(st.integers(min_value=1, max_value=120), max_size=20), st.randoms(use_true_random=False))
def test_used_never_exceeds_capacity_and_all_that_fit_run_in_the_end(needs: list[int], rng: random.Random) -> None:
    under_test = pool(OverCapacity.HANG)
    tickets = [under_test.enter(need) for need in needs]
    left: set[Ticket] = set()
    while under_test.running:
        assert under_test.used_tokens <= under_test.capacity_tokens
        assert under_test.running <= under_test.slots
        leaving = rng.choice([ticket for ticket in tickets if ticket.admitted.is_set() and ticket not in left])
        left.add(leaving)
        under_test.leave(leaving)
    assert [ticket.admitted.is_set() for ticket in tickets] == [need <= 100 for need in needs]
