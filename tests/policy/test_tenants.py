"""Budgets of KV token-seconds: filled by time, emptied by what is held, never spent twice."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longproof.policy.admission import AdmissionRule
from longproof.policy.controller_config import ControllerConfig, KvBudget, ReplicaRule, TenantRule
from longproof.policy.ledger import Pool
from longproof.policy.peers import FleetUse, SpentElsewhere, TenantUse, summed
from longproof.policy.prefill_cost import PrefillCost
from longproof.policy.tenants import Tenant, Tenants

S = 1_000_000_000


def budgeted(rate: float = 100, burst: float = 1_000) -> Tenant:
    return Tenant(
        TenantRule(name="t", budget=KvBudget(token_seconds_per_s=rate, burst_token_seconds=burst)), _since_ns=None
    )


def test_holding_tokens_empties_the_budget_and_time_fills_it() -> None:
    tenant = budgeted()
    tenant.hold(300, 0)
    assert tenant.left_token_ns(2 * S) == (1_000 - 2 * (300 - 100)) * S
    tenant.hold(-300, 2 * S)
    assert tenant.left_token_ns(3 * S) == 700 * S
    assert tenant.left_token_ns(100 * S) == 1_000 * S  # never above the bucket


def test_one_balance_is_not_spent_twice_when_requests_come_at_once() -> None:
    tenant = budgeted()
    assert tenant.budget_wait_ns(600 * S, 0) == 0
    tenant.expect(600 * S)
    # 400 are left of 1,000 and 600 are wanted: 200 more at 100 a second
    assert tenant.budget_wait_ns(600 * S, 0) == 2 * S
    assert tenant.budget_wait_ns(400 * S, 0) == 0


def test_what_is_used_is_counted_once_when_it_was_expected() -> None:
    tenant = budgeted(rate=50)
    tenant.expect(500 * S)
    tenant.hold(250, 0)
    # after 1 s: 1,000 - 250 + 50 are left, 250 of the 500 expected are still to come
    assert tenant.available_token_ns(S) == (800 - 250) * S
    tenant.hold(-250, S)
    tenant.settle(500 * S, 250 * S, S)
    assert tenant.available_token_ns(S) == 800 * S


def test_a_debt_is_paid_back_first_when_a_request_stayed_longer_than_expected() -> None:
    tenant = budgeted()
    tenant.hold(1_000, 0)
    tenant.hold(-1_000, 3 * S)  # 3,000 used and 300 filled, of a bucket of 1,000
    assert tenant.left_token_ns(3 * S) == -1_700 * S
    assert tenant.budget_wait_ns(S, 3 * S) == pytest.approx(17.01 * S)


def test_two_gateways_keep_one_balance_when_each_tells_what_it_spent() -> None:
    one, two = budgeted(), budgeted()
    one.hold(300, 0)
    told = one.use(2 * S)  # 600 spent and 200 filled, of 1,000
    assert told == TenantUse(spent_token_ms=600_000, expected_token_ms=0, left_token_ms=600_000)
    two.peers_told(told, 2 * S)
    assert two.left_token_ns(2 * S) == 600 * S  # new here: it begins with the balance of the others
    one.hold(-300, 3 * S)
    told = one.use(3 * S)
    assert told is not None
    two.peers_told(told, 3 * S)
    assert two.left_token_ns(3 * S) == one.left_token_ns(3 * S) == 400 * S
    two.hold(100, 3 * S)
    told = two.use(5 * S)
    assert told == TenantUse(spent_token_ms=200_000, expected_token_ms=0, left_token_ms=400_000)
    one.peers_told(told, 5 * S)
    one.peers_told(told, 5 * S)  # told twice, taken once
    assert two.left_token_ns(5 * S) == one.left_token_ns(5 * S) == 400 * S


def test_what_is_expected_elsewhere_is_not_available_here() -> None:
    one, two = budgeted(), budgeted()
    two.hold(0, 0)
    one.expect(700 * S)
    told = one.use(0)
    assert told is not None
    two.peers_told(told, 0)
    assert two.available_token_ns(0) == 300 * S
    assert two.budget_wait_ns(500 * S, 0) == 2 * S
    one.hold(200, 0)
    one.hold(-200, S)
    one.settle(700 * S, 200 * S, S)
    told = one.use(S)
    assert told is not None
    two.peers_told(told, S)
    assert two.available_token_ns(S) == two.left_token_ns(S) == 800 * S  # 1,000 and full, less 200


def test_what_others_spent_only_rises_when_gateways_come_and_go() -> None:
    def says(spent: int) -> FleetUse:
        return FleetUse(tenants={"t": TenantUse(spent_token_ms=spent)})

    spent = SpentElsewhere()

    def total(*there: FleetUse) -> int:
        return spent.put_into(summed(there)).tenants["t"].spent_token_ms

    spent.heard("a", says(500))
    assert total(says(500)) == 0  # what it spent before we met is in the balance it has
    spent.heard("a", says(700))
    spent.heard("b", FleetUse())
    spent.heard("b", says(50))
    assert total(says(700), says(50)) == 250
    assert total() == 250  # both have gone
    spent.heard("a", says(700))
    spent.heard("a", says(710))
    assert total(says(710)) == 260


def test_a_request_larger_than_the_bucket_passes_when_the_bucket_is_full() -> None:
    assert budgeted().budget_wait_ns(5_000 * S, 0) == 0


def test_nothing_is_limited_when_there_is_no_budget() -> None:
    tenant = Tenant(TenantRule(name="t"))
    tenant.hold(10**9, 0)
    assert tenant.budget_wait_ns(10**18, 10 * S) == 0
    assert tenant.left_token_ns(10 * S) is None


@given(
    steps=st.lists(st.tuples(st.integers(0, 5 * S), st.integers(0, 400)), max_size=20),
    rate=st.integers(1, 500),
    looks=st.lists(st.integers(0, 100 * S), max_size=5),
)
def test_the_balance_is_filled_less_held_and_looking_changes_nothing(
    steps: list[tuple[int, int]], rate: int, looks: list[int]
) -> None:
    tenant, watched = budgeted(rate=rate), budgeted(rate=rate)
    tenant.hold(0, 0)
    watched.hold(0, 0)
    now, left = 0, 1_000 * S
    for wait_ns, tokens in steps:
        for look in looks:
            watched.left_token_ns(now + look)
            watched.available_token_ns(now + look)
        now += wait_ns
        left = min(1_000 * S, left + (rate - tenant.held_tokens) * wait_ns)
        tenant.hold(tokens - tenant.held_tokens, now)
        watched.hold(tokens - watched.held_tokens, now)
    assert tenant.left_token_ns(now) == watched.left_token_ns(now) == left


def test_nobody_saves_up_service_when_it_has_been_away() -> None:
    rule = ReplicaRule(
        name="r",
        models=("m",),
        pools=(Pool(stage="kv", capacity_blocks=1),),
        admission=AdmissionRule(limit_tokens=None),
        prefill=PrefillCost.at_rate(1),
    )
    tenants = Tenants(ControllerConfig(replicas=(rule,), tenants=(TenantRule(name="vip", weight=4.0),)))
    busy, away = tenants.of("busy"), tenants.of("away")
    tenants.enter(busy)
    busy.serve(100 * S)
    tenants.enter(away)
    assert away.virtual_ns == 100 * S  # level with the least served of those at work
    assert tenants.of("vip").rule.weight == 4.0
    assert tenants.of("anybody").rule.weight == 1.0
