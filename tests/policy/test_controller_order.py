"""The controller: who goes next, and that nobody starves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from longproof.policy.actions import Dispatch, Refusal, Wait
from longproof.policy.arrivals import Arrival, Ended, EndKind
from longproof.policy.choice import Choice, ReplicaView
from longproof.policy.controller_config import (
    QueueRule,
    ReplicaRule,
    SloRule,
    TenantRule,
)
from longproof.testing.controllers import MS, LeastBacklog, S, arrival, controller_of, replica_rule

DONE = Ended(kind=EndKind.COMPLETED)


def test_the_shortest_goes_first_when_all_are_fresh() -> None:
    gateway = controller_of()
    gateway.on_arrival(arrival("a", 100), 0)
    for name, tokens in (("long", 90), ("short", 20), ("middle", 50)):
        gateway.on_arrival(arrival(name, tokens), 1)
    sent = gateway.on_finish("a", DONE, S)
    assert [a.id for a in sent] == ["short", "middle"]


def test_a_giant_gets_a_replica_emptied_for_it_when_shorts_never_stop() -> None:  # vllm#10235, extension#1861
    gateway = controller_of(queue=QueueRule(age_bound_ns=10 * S))
    gateway.on_arrival(arrival("s0", 10), 0)
    gateway.on_arrival(arrival("giant", 95), 0)
    now, started, number = 0, None, 0
    while now < 60 * S and started is None:
        now += S // 2
        number += 1
        gateway.on_arrival(arrival(f"s{number}", 10), now)
        sent = gateway.on_finish(f"s{number - 1}", DONE, now) + gateway.on_tick(now)
        if any(a.id == "giant" for a in sent):
            started = now
    assert started is not None
    assert started <= 12 * S  # the bound, and the time its shorts took to leave


class Fickle(LeastBacklog):
    """Sends giants nowhere while `closed`."""

    closed = False

    def choose(self, arrival: Arrival, views: Sequence[ReplicaView], now_ns: int) -> Choice:
        choice = super().choose(arrival, views, now_ns)
        return replace(choice, replica=None) if self.closed and arrival.input_tokens > 50 else choice


def test_an_emptied_replica_is_given_back_when_the_router_will_not_use_it_after_all() -> None:
    router = Fickle()
    gateway = controller_of(router=router, queue=QueueRule(age_bound_ns=10 * S))
    gateway.on_arrival(arrival("s", 10), 0)
    gateway.on_arrival(arrival("giant", 95), 0)
    gateway.on_tick(10 * S)
    assert gateway.snapshot(10 * S).replicas[0].emptying_for == "giant"
    assert isinstance(gateway.on_arrival(arrival("t", 10), 11 * S), Wait)  # there is room, but it is spoken for
    router.closed = True
    sent = gateway.on_finish("s", DONE, 12 * S) + gateway.on_tick(13 * S)
    assert [a.id for a in sent] == ["t"]
    assert gateway.snapshot(13 * S).replicas[0].emptying_for is None


def test_a_late_short_passes_late_giants_that_may_go_nowhere() -> None:
    router = Fickle()
    gateway = controller_of(router=router, queue=QueueRule(age_bound_ns=S))
    gateway.on_arrival(arrival("a", 100), 0)
    for number in range(20):
        gateway.on_arrival(arrival(f"g{number}", 60), 1)
    gateway.on_arrival(arrival("short", 30), 2)
    router.closed = True
    gateway.on_tick(2 * S)
    assert [a.id for a in gateway.on_finish("a", DONE, 3 * S)] == ["short"]


def test_shorts_are_not_starved_when_giants_queue_up() -> None:
    gateway = controller_of(replica_rule(tokens_per_s=10), queue=QueueRule(age_bound_ns=5 * S, overdue_share=0.5))
    gateway.on_arrival(arrival("g0", 100), 0)
    for number in range(1, 6):
        gateway.on_arrival(arrival(f"g{number}", 100), 0)
    now, giants, shorts, running = 0, 0, 0, ["g0"]
    for step in range(40):
        now += 10 * S
        gateway.on_arrival(arrival(f"s{step}", 50), now)  # half a giant's work each
        sent = [a.id for r in running for a in gateway.on_finish(r, DONE, now) if isinstance(a, Dispatch)]
        sent += [a.id for a in gateway.on_tick(now) if isinstance(a, Dispatch)]
        giants += sum(name[0] == "g" for name in sent)
        shorts += sum(name[0] == "s" for name in sent)
        running = sent or running
        if giants == 5:
            break
    assert giants == 5
    assert shorts >= 4  # about as much work for the one as for the other


def test_a_low_priority_is_served_in_the_end_when_high_ones_never_stop() -> None:  # extension#1861
    gateway = controller_of(queue=QueueRule(age_bound_ns=10 * S))
    gateway.on_arrival(arrival("h0", 100), 0)
    gateway.on_arrival(arrival("low", 100, priority=9), 0)
    for number in range(1, 40):
        now = number * S
        gateway.on_arrival(arrival(f"h{number}", 100), now)
        sent = gateway.on_finish(f"h{number - 1}", DONE, now)
        if [a.id for a in sent] == ["low"]:
            assert now <= 11 * S
            return
        assert [a.id for a in sent] == [f"h{number}"]
    pytest.fail("it was never served")


def test_a_flood_does_not_delay_another_tenant_when_it_has_had_its_share() -> None:
    gateway = controller_of(replica_rule(capacity_blocks=20))
    for number in range(50):
        gateway.on_arrival(arrival(f"f{number}", 10, tenant="flood"), 0)
    gateway.on_arrival(arrival("mine", 10, tenant="modest"), S)
    served = [a.id for n in (0, 1) for a in gateway.on_finish(f"f{n}", DONE, S)]
    assert "mine" in served  # among the next two, not behind the 48 that were there before it


def test_service_is_corrected_when_it_is_known_what_a_request_took() -> None:
    gateway = controller_of(replica_rule(capacity_blocks=1_000))
    gateway.on_arrival(arrival("a", 500, 400), 0)
    assert gateway.snapshot(0).tenants[0].served_ns == S // 2  # 500 tokens of prefill at 1,000 a second
    gateway.on_finish("a", Ended(kind=EndKind.COMPLETED, output_tokens=300, cached_tokens=200), S)
    # 300 uncached, and 300 of output that count twice
    assert gateway.snapshot(S).tenants[0].served_ns == 900 * MS
    gateway.on_arrival(arrival("b", 500), S)
    gateway.on_refused_by_engine("b", 9 * S, S)
    assert gateway.snapshot(S).tenants[0].served_ns == 900 * MS  # what an engine refused was no service


def test_a_tenant_that_was_away_has_saved_nothing_up() -> None:
    gateway = controller_of(replica_rule(capacity_blocks=100))
    gateway.on_arrival(arrival("old", 10, tenant="away"), 0)
    gateway.on_finish("old", DONE, 0)
    for number in range(100):  # ten seconds of service for the other meanwhile
        gateway.on_arrival(arrival(f"x{number}", 100, tenant="busy"), number)
        gateway.on_finish(f"x{number}", DONE, number)
    gateway.on_arrival(arrival("full", 100, tenant="busy"), S)
    for number in range(10):
        gateway.on_arrival(arrival(f"a{number}", 100, tenant="away"), S)
        gateway.on_arrival(arrival(f"b{number}", 100, tenant="busy"), S)
    order, last = "", "full"
    for _ in range(8):
        ((last),) = [a.id for a in gateway.on_finish(last, DONE, 2 * S)]
        order += last[0]
    assert sorted(order) == sorted("aaaabbbb")


def test_a_tenant_runs_no_more_than_it_may_while_others_pass() -> None:
    gateway = controller_of(tenants=(TenantRule(name="t", most_running=1),))
    gateway.on_arrival(arrival("a"), 0)
    waits = gateway.on_arrival(arrival("b"), 0)
    assert isinstance(waits, Wait)
    assert waits.reason == "its tenant runs as many requests as it may"
    assert isinstance(gateway.on_arrival(arrival("c", tenant="other"), 0), Dispatch)
    assert [a.id for a in gateway.on_finish("a", DONE, S)] == ["b"]


def test_arrivals_are_refused_at_once_when_as_many_wait_as_may() -> None:
    gateway = controller_of(queue=QueueRule(most_waiting=2, most_waiting_per_tenant=1))
    gateway.on_arrival(arrival("a", 100), 0)
    gateway.on_arrival(arrival("b", 100, tenant="x"), 0)
    own = gateway.on_arrival(arrival("c", 100, tenant="x"), 0)
    assert isinstance(own, Refusal)
    assert (own.status, own.code, own.limit) == (429, "tenant_queue_full", 1)
    gateway.on_arrival(arrival("d", 100, tenant="y"), 0)
    full = gateway.on_arrival(arrival("e", 100, tenant="z"), 0)
    assert isinstance(full, Refusal)
    assert (full.code, full.limit, full.actual) == ("queue_full", 2, 3)
    assert full.retry_after_ns is not None
    assert full.retry_after_ns >= S


def test_a_long_prefill_waits_when_it_would_slow_running_streams_beyond_the_promise() -> None:  # vllm#541
    base = replica_rule(capacity_blocks=10_000)
    rule = ReplicaRule(
        name="r0",
        models=("m",),
        pools=base.pools,
        admission=base.admission,
        prefill=base.prefill,  # 1,000 tokens a second: a step of 100 takes 100 ms
        decode_ns_per_token=10 * MS,
        block_tokens=1,
        step_tokens=100,
    )
    gateway = controller_of(rule, slo=SloRule(itl_ns=50 * MS), queue=QueueRule(age_bound_ns=10 * S))
    gateway.on_arrival(arrival("chat", 20, 100), 0)
    gateway.on_first_token("chat", 20 * MS)
    giant = gateway.on_arrival(arrival("giant", 5_000), S)
    assert isinstance(giant, Wait)
    assert "running streams" in giant.reason
    assert isinstance(gateway.on_arrival(arrival("short", 80), S), Dispatch)
    gateway.on_finish("short", DONE, 2 * S)
    assert gateway.on_tick(5 * S) == []
    assert gateway.on_tick(11 * S + 1) == []  # overdue: its replica is emptied of streams
    assert isinstance(gateway.on_arrival(arrival("later", 80), 12 * S), Wait)
    # the promise bends after as long again: nobody waits for ever
    assert [a.id for a in gateway.on_tick(21 * S + 1)] == ["giant"]


def test_a_prefill_window_keeps_the_order_here_when_the_engine_is_behind() -> None:
    gateway = controller_of(replica_rule(capacity_blocks=10_000, prefill_window_tokens=100))
    gateway.on_arrival(arrival("a", 150), 0)
    gateway.on_arrival(arrival("long", 500), 0)
    gateway.on_arrival(arrival("short", 10), 0)
    assert [a.id for a in gateway.on_first_token("a", S)] == ["short", "long"]
