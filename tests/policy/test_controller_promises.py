"""The controller: promises, deadlines, budgets, and the claim."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from longproof.policy.actions import Dispatch, Refusal, Wait
from longproof.policy.arrivals import Arrival, Ended, EndKind
from longproof.policy.choice import Choice, ReplicaView
from longproof.policy.claim_gate import OnExcess, ProvenLimits
from longproof.policy.controller_config import (
    KvBudget,
    QueueRule,
    SloRule,
    TenantRule,
)
from longproof.testing.controllers import MS, LeastBacklog, S, arrival, controller_of, replica_rule

DONE = Ended(kind=EndKind.COMPLETED)


def test_an_arrival_is_refused_early_when_its_first_token_would_miss_the_promise() -> None:
    gateway = controller_of(replica_rule(capacity_blocks=100_000), slo=SloRule(ttft_ns=2 * S))
    assert isinstance(gateway.on_arrival(arrival("a", 1_500), 0), Dispatch)
    refused = gateway.on_arrival(arrival("b", 1_000), 0)  # 1.5 s of a's prefill, then 1 s of its own
    assert isinstance(refused, Refusal)
    assert (refused.status, refused.code, refused.limit, refused.actual) == (429, "ttft_slo", 2_000, 2_500)
    assert refused.retry_after_ns == S
    assert isinstance(gateway.on_arrival(arrival("c", 400), 0), Dispatch)
    scaled = SloRule(ttft_ns=S, ttft_ns_per_token=1 * MS)
    assert isinstance(
        controller_of(replica_rule(capacity_blocks=100_000), slo=scaled).on_arrival(arrival("d", 50_000), 0), Dispatch
    )


def test_predictions_follow_the_engine_when_its_rate_was_only_assumed() -> None:
    rule = replica_rule(capacity_blocks=100_000, tokens_per_s=10_000, learn_prefill=True)
    gateway = controller_of(rule, slo=SloRule(ttft_ns=4 * S))
    for number in range(3):  # 1,000 tokens take 5 s, not 0.1 s
        assert isinstance(gateway.on_arrival(arrival(f"a{number}", 1_000), number * 10 * S), Dispatch)
        gateway.on_first_token(f"a{number}", (number * 10 + 5) * S)
        gateway.on_finish(f"a{number}", DONE, (number * 10 + 6) * S)
    refused = gateway.on_arrival(arrival("b", 1_000), 40 * S)
    assert isinstance(refused, Refusal)
    assert (refused.code, refused.actual) == ("ttft_slo", 5_000)


def test_a_deadline_is_refused_early_when_it_cannot_be_met_and_ends_a_wait_when_it_passes() -> None:
    gateway = controller_of()
    gateway.on_arrival(arrival("a", 100), 0)
    early = gateway.on_arrival(arrival("b", 90, deadline_ns=50 * MS), 0)
    assert isinstance(early, Refusal)
    assert early.code == "deadline_unreachable"
    assert isinstance(gateway.on_arrival(arrival("c", 90, deadline_ns=30 * S), 0), Wait)
    assert gateway.on_tick(30 * S - 1) == []
    (late,) = gateway.on_tick(30 * S)
    assert isinstance(late, Refusal)
    assert (late.id, late.status, late.code, late.limit) == ("c", 503, "deadline_passed", 30_000)
    assert late.retry_after_ns is not None


def test_nobody_waits_longer_than_the_longest_wait() -> None:
    gateway = controller_of(queue=QueueRule(longest_wait_ns=60 * S))
    gateway.on_arrival(arrival("a", 100), 0)
    gateway.on_arrival(arrival("b", 90), 0)
    (refused,) = gateway.on_tick(60 * S)
    assert isinstance(refused, Refusal)
    assert (refused.status, refused.code, refused.limit, refused.actual) == (503, "queue_timeout", 60_000, 60_000)
    assert gateway.on_finish("a", DONE, 61 * S) == []


def test_the_longest_wait_ends_it_when_its_time_came_while_an_engine_had_it() -> None:
    gateway = controller_of(queue=QueueRule(longest_wait_ns=60 * S))
    gateway.on_arrival(arrival("a", 100), 0)
    assert isinstance(gateway.on_arrival(arrival("b", 90), 0), Wait)
    (sent,) = gateway.on_finish("a", DONE, 10 * S)
    assert isinstance(sent, Dispatch)
    assert gateway.on_tick(70 * S) == []  # it does not wait
    assert gateway.on_refused_by_engine("b", S, 80 * S) == []  # now it does again
    (refused,) = gateway.on_tick(80 * S)
    assert isinstance(refused, Refusal)
    assert (refused.id, refused.code) == ("b", "queue_timeout")


def test_a_tenant_is_refused_when_its_kv_budget_is_spent_and_told_when_it_fills() -> None:
    budget = KvBudget(token_seconds_per_s=10, burst_token_seconds=200)
    gateway = controller_of(tenants=(TenantRule(name="t", budget=budget),))
    # 50 tokens for 0.05 s: next to nothing is expected, but it stays for 5 s
    assert isinstance(gateway.on_arrival(arrival("a", 50), 0), Dispatch)
    refused = gateway.on_arrival(arrival("b", 50), 5 * S)  # 200 - 5 · (50 - 10) = 0 left
    assert isinstance(refused, Refusal)
    assert (refused.status, refused.code, refused.unit) == (429, "tenant_kv_budget", "token-seconds")
    assert refused.retry_after_ns == S
    assert isinstance(gateway.on_arrival(arrival("c", 50, tenant="other"), 5 * S), Dispatch)
    gateway.on_finish("a", DONE, 5 * S)
    assert isinstance(gateway.on_arrival(arrival("d", 50), 6 * S), Dispatch)


def test_what_never_fits_is_told_so_when_it_would_also_be_turned_away_for_now() -> None:
    budget = KvBudget(token_seconds_per_s=1, burst_token_seconds=1)
    gateway = controller_of(
        replica_rule(capacity_blocks=500),
        tenants=(TenantRule(name="t", budget=budget),),
        queue=QueueRule(most_waiting=1),
    )
    gateway.on_arrival(arrival("a", 400, tenant="u"), 0)
    gateway.on_arrival(arrival("b", 400, tenant="u"), 0)  # waits, and the queue is full

    def code(wanted: Arrival) -> str:
        refused = gateway.on_arrival(wanted, S)
        assert isinstance(refused, Refusal)
        assert (refused.retry_after_ns is None) == (refused.status == 400)
        return refused.code

    assert code(arrival("c", 100, tenant="u")) == "queue_full"
    assert code(arrival("d", 600, tenant="u")) == "context_length_exceeded"
    estimated = replace(arrival("e", 600, tenant="u", exact=False, blocks=(1,)), by_text=8)
    assert code(estimated) == "queue_full"  # it may be as short as 360
    assert code(replace(estimated, id="f", input_tokens=900)) == "context_length_exceeded"
    assert code(arrival("g", 600, tenant="u", exact=False)) == "queue_full"  # a bound says nothing
    gateway.cancel("b", 2 * S)
    assert isinstance(gateway.on_arrival(arrival("h", 50), 2 * S), Dispatch)  # 50 tokens for 0.05 s: all there is
    assert code(arrival("i", 50)) == "tenant_kv_budget"
    assert code(arrival("j", 600)) == "context_length_exceeded"


def test_a_budget_expects_the_true_length_when_a_prompt_was_counted() -> None:
    # 4,000 tokens stay 4 s: 16,000 token-seconds, of a bucket of 20,000; counted it is 1,000 for 1 s: 1,000
    budget = KvBudget(token_seconds_per_s=1, burst_token_seconds=20_000)
    gateway = controller_of(replica_rule(capacity_blocks=10_000), tenants=(TenantRule(name="t", budget=budget),))
    bound = gateway.on_arrival(arrival("a", 4_000, exact=False), 0)
    assert isinstance(bound, Wait)
    refused = gateway.on_arrival(arrival("b", 4_000, exact=False), 0)
    assert isinstance(refused, Refusal)
    assert refused.limit == 4_000
    (sent,) = gateway.on_counted("a", 1_000, (), 0)
    assert isinstance(sent, Dispatch)
    assert isinstance(gateway.on_arrival(arrival("c", 4_000, exact=False), 0), Wait)


def test_retry_after_comes_from_the_drain_rate_when_the_queue_is_full() -> None:  # router#281
    gateway = controller_of(replica_rule(capacity_blocks=100), queue=QueueRule(most_waiting=1))
    for number in range(41):  # one request of 25 every ten seconds leaves: 2.5 blocks a second
        gateway.on_arrival(arrival(f"a{number}", 25), number * 10 * S)
        if number >= 4:
            gateway.on_finish(f"a{number - 4}", DONE, number * 10 * S)
    refused = gateway.on_arrival(arrival("late", 25), 400 * S)
    while not isinstance(refused, Refusal):
        refused = gateway.on_arrival(arrival(f"late{refused.id}", 25), 400 * S)
    assert refused.retry_after_ns is not None
    assert 7 * S <= refused.retry_after_ns <= 13 * S  # the next 25 blocks in about ten seconds


class HalfCached(LeastBacklog):
    """Half of everything is cached, as far as it knows."""

    def choose(self, arrival: Arrival, views: Sequence[ReplicaView], now_ns: int) -> Choice:
        choice = super().choose(arrival, views, now_ns)
        assert choice.best is not None
        half = arrival.input_tokens // 2
        best = replace(choice.best, cached_tokens=half, uncached_tokens=arrival.input_tokens - half)
        return replace(choice, best=best)


def test_a_cold_request_is_refused_when_its_model_asks_for_a_cache_hit() -> None:  # vllm#24256
    gateway = controller_of(router=HalfCached(), slo=SloRule(min_hit={"m": 0.6}))
    refused = gateway.on_arrival(arrival("a", 50), 0)
    assert isinstance(refused, Refusal)
    assert (refused.status, refused.code, refused.limit, refused.actual) == (429, "cache_hit_floor", 30, 25)
    assert refused.retry_after_ns == S
    warm = controller_of(router=HalfCached(), slo=SloRule(min_hit={"m": 0.5, "other": 0.9}))
    sent = warm.on_arrival(arrival("a", 50), 0)
    assert isinstance(sent, Dispatch)
    assert (sent.cached_tokens, sent.uncached_tokens) == (25, 25)


def test_the_claim_binds_before_the_capacity_does() -> None:
    proven = {"m": ProvenLimits(model="m", admitted_tokens=50)}
    refused = controller_of(proven=proven).on_arrival(arrival("a", 40, 11), 0)
    assert isinstance(refused, Refusal)
    assert (refused.status, refused.code, refused.limit, refused.actual) == (400, "beyond_proven_length", 50, 51)


def test_a_warning_goes_with_the_answer_when_excess_is_only_marked() -> None:
    proven = {"m": ProvenLimits(model="m", effective_tokens=5, on_excess=OnExcess.WARN, problem="expired")}
    sent = controller_of(proven=proven).on_arrival(arrival("a"), 0)
    assert isinstance(sent, Dispatch)
    assert [warning.split(":")[0] for warning in sent.warnings] == ["claim-problem", "not-proven"]


def test_only_the_proven_pool_serves_it_when_excess_is_routed() -> None:
    proven = {"m": ProvenLimits(model="m", effective_tokens=5, on_excess=OnExcess.ROUTE, pool="long")}
    gateway = controller_of(replica_rule("r0"), replica_rule("r1", pool="long"), proven=proven)
    sent = [gateway.on_arrival(arrival(name, 90), 0) for name in "ab"]
    assert isinstance(sent[0], Dispatch)
    assert (sent[0].replica, sent[0].pool) == ("r1", "long")
    assert isinstance(sent[1], Wait)  # r0 is idle, and not proven for it
    assert isinstance(gateway.on_arrival(arrival("c", 5), 0), Dispatch)
    nowhere = controller_of(replica_rule("r0"), proven=proven).on_arrival(arrival("a", 90), 0)
    assert isinstance(nowhere, Refusal)
    assert nowhere.status == 400


def test_the_exact_length_is_held_against_the_claim_when_only_a_bound_was_known() -> None:
    proven = {"m": ProvenLimits(model="m", effective_tokens=50)}
    gateway = controller_of(proven=proven, queue=QueueRule(count_from_tokens=1))
    assert isinstance(gateway.on_arrival(arrival("a", 80, exact=False), 0), Wait)
    assert [type(a) for a in gateway.on_counted("a", 50, (), 0)] == [Dispatch]
    gateway.on_arrival(arrival("b", 80, exact=False), 0)
    assert [type(a) for a in gateway.on_counted("b", 51, (), 0)] == [Refusal]
