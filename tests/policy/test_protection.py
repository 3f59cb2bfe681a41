"""What the controller protects, over minutes of virtual time against modelled engines (`testing.fleet_run`)."""

from __future__ import annotations

import random

import pytest

from longproof.policy.actions import Refusal
from longproof.policy.admission import INCREMENTAL, MEASURED, UPFRONT, Reservation
from longproof.policy.controller import Controller
from longproof.policy.controller_config import ControllerConfig, QueueRule, ReplicaRule, SloRule, WatermarkRule
from longproof.policy.pools import PoolRule
from longproof.policy.routing import PrefixRouter, RoutingRule
from longproof.testing.controllers import LeastBacklog, S, arrival, replica_rule
from longproof.testing.fleet_run import FleetRun

RUN_SEED = 7


def run_of(*replicas: ReplicaRule, **rules: object) -> FleetRun:
    return FleetRun(Controller(ControllerConfig(replicas=replicas, **rules), LeastBacklog()))  # type: ignore[arg-type]


def quantile(values: list[int], share: float) -> int:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def poisson(rate_per_s: float, count: int) -> list[int]:
    """Arrival times in nanoseconds."""
    source, now, times = random.Random(RUN_SEED), 0.0, []
    for _ in range(count):
        now += source.expovariate(rate_per_s)
        times.append(int(now * S))
    return times


@pytest.mark.parametrize("load", [0.5, 0.9, 1.1, 2.0])
@pytest.mark.parametrize("bound_by", ["prefill", "memory"])
def test_admit_kv_ledger_bounds_ttft_and_refuses_the_rest_when_load_is(bound_by: str, load: float) -> None:  # smg#2378
    if bound_by == "prefill":
        # 16,000 tokens at 20,000 a second take 0.8 s: 1.25 requests a second are all there is
        rate, inputs, outputs = 1.25, 16_000, 200
        rule = replica_rule(capacity_blocks=8_400, block_tokens=16, tokens_per_s=20_000, prefill_window_tokens=16_000)
    else:
        # 2,000 + 2,000 tokens for 20 s of output and 0.1 s of prefill, 20 at once in 80,000 tokens: one a second
        rate, inputs, outputs = 1.0, 2_000, 2_000
        rule = replica_rule(capacity_blocks=5_000, block_tokens=16, tokens_per_s=20_000)
    arrivals = [(at, arrival(f"a{n}", inputs, outputs), outputs) for n, at in enumerate(poisson(rate * load, 300))]
    run = run_of(rule, slo=SloRule(ttft_ns=10 * S), watermark=WatermarkRule(stop=1.0, resume=1.0)).run(arrivals)
    assert run.overfull == []
    served = [o.ttft_ns for o in run.outcomes.values() if o.ttft_ns is not None]
    refused = [o.refusal for o in run.outcomes.values() if o.refusal is not None]
    assert len(served) + len(refused) == 300
    assert quantile(served, 0.99) <= 20 * S  # without early refusal it grows with the queue, to minutes
    assert len(served) >= 0.8 * 300 / max(1.0, load)
    assert all(r.status == 429 and r.retry_after_ns is not None and "expected in" in r.reason for r in refused)
    assert load > 0.5 or not refused


@pytest.mark.parametrize("reservation", [UPFRONT, MEASURED])
def test_no_engine_has_to_preempt_when_giants_come_among_chats(reservation: Reservation) -> None:
    source = random.Random(RUN_SEED)
    arrivals = [
        (int(i * 0.2 * S), arrival(f"chat{i}", source.randint(50, 400), 600), source.randint(20, 200))
        for i in range(600)
    ]
    arrivals += [(int(i * 15 * S), arrival(f"giant{i}", 30_000, 500), 300) for i in range(1, 8)]
    rule = replica_rule(capacity_blocks=2_500, block_tokens=16, tokens_per_s=20_000, reservation=reservation)
    run = run_of(rule, queue=QueueRule(age_bound_ns=10 * S)).run(arrivals)
    assert run.overfull == []
    assert all(o.refusal is None for o in run.outcomes.values())  # giants finish, nobody starves
    assert max(o.waited_ns or 0 for o in run.outcomes.values()) <= 30 * S


@pytest.mark.parametrize(("kept_apart", "least_ms", "most_ms"), [(True, 0, 1_000), (False, 3_000, 10**6)])
def test_chats_are_answered_on_some_replica_when_giants_pile_up_on_all(
    kept_apart: bool, least_ms: int, most_ms: int
) -> None:  # vllm#10235; the second case is the counter-example
    # six giants of 10 s of prefill each meet three replicas; 400 chats of 10 ms come in the first 40 s
    replicas = [replica_rule(f"r{n}", capacity_blocks=80_000, block_tokens=16, tokens_per_s=20_000) for n in range(3)]
    pools = PoolRule(long_from_tokens=32_768 if kept_apart else None)
    arrivals = [(int(i * 0.1 * S), arrival(f"chat{i}", 200, 50), 50) for i in range(400)]
    arrivals += [(int((1 + i) * S), arrival(f"giant{i}", 200_000, 50), 50) for i in range(6)]
    rules = ControllerConfig(replicas=tuple(replicas), queue=QueueRule(age_bound_ns=60 * S, longest_wait_ns=300 * S))
    run = FleetRun(Controller(rules, PrefixRouter(RoutingRule(pools=pools)))).run(arrivals)
    assert all(outcome.first_token_ns is not None for outcome in run.outcomes.values())  # the giants too
    chats = [o.ttft_ns for name, o in run.outcomes.items() if name.startswith("chat") and o.ttft_ns is not None]
    assert least_ms <= quantile(chats, 0.99) / 1e6 <= most_ms


def test_an_engine_has_to_preempt_when_growth_is_not_charged_and_nothing_is_held_back() -> None:
    """The counter-example: what the charge and the marks are for."""
    arrivals = [(0, arrival(f"chat{i}", 1_000, 3_000), 2_000) for i in range(40)]
    rule = replica_rule(capacity_blocks=2_500, block_tokens=16, tokens_per_s=20_000, reservation=INCREMENTAL)
    run = run_of(rule, watermark=WatermarkRule(stop=1.0, resume=1.0)).run(arrivals, until_ns=120 * S)
    assert run.overfull == ["r0"]


def overload(count: int) -> list[tuple[int, object, int]]:
    """Three times what four replicas prefill: many short, some long, as in conversation traces."""
    source = random.Random(RUN_SEED)
    now, arrivals = 0.0, []
    for number in range(count):
        now += source.expovariate(12.0)
        tokens = int(min(100_000, source.lognormvariate(8.6, 1.1)))  # median 5,400, mean about 10,000
        arrivals.append((int(now * S), arrival(f"a{number}", tokens, 50), 50))
    return arrivals


def overloaded(**queue: object) -> FleetRun:
    replicas = [
        replica_rule(f"r{n}", capacity_blocks=200_000, tokens_per_s=10_000, prefill_window_tokens=8_192, block_tokens=1)
        for n in range(4)
    ]
    return run_of(*replicas, queue=QueueRule(**queue)).run(overload(1_500))  # type: ignore[arg-type]


def test_the_median_stays_low_and_the_oldest_wait_is_bounded_under_overload() -> None:
    run = overloaded(age_bound_ns=30 * S, overdue_share=0.25, longest_wait_ns=90 * S)
    ttft = [o.ttft_ns for o in run.outcomes.values() if o.ttft_ns is not None]
    refused = [o.refusal for o in run.outcomes.values() if isinstance(o.refusal, Refusal)]
    waits = [(o.dispatched_ns or o.ended_ns or 0) - o.arrived_ns for o in run.outcomes.values()]
    assert quantile(ttft, 0.5) <= 3 * S
    assert max(waits) <= 91 * S
    assert {r.code for r in refused} <= {"queue_timeout"}
    assert len(ttft) >= 0.8 * 1_500
