"""The controller, one behaviour at a time. Replicas here have blocks of one token, so that tokens are blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from longproof.domain.events import EngineSample
from longproof.domain.fleet import ReplicaState
from longproof.domain.kv_event import KvCleared
from longproof.policy.actions import Dispatch, Refusal, Wait
from longproof.policy.admission import INCREMENTAL, MEASURED
from longproof.policy.arrivals import Arrival, Ended, EndKind
from longproof.policy.choice import Choice, ReplicaView
from longproof.policy.claim_gate import OnExcess, ProvenLimits
from longproof.policy.controller import Controller
from longproof.policy.controller_config import (
    BreakerRule,
    ControllerConfig,
    KvBudget,
    QueueRule,
    ReplicaRule,
    SloRule,
    TenantRule,
    WatermarkRule,
)
from longproof.testing.controllers import MS, LeastBacklog, S, arrival, replica_rule

DONE = Ended(kind=EndKind.COMPLETED)
ALL = WatermarkRule(stop=1.0, resume=1.0)


def controller(*replicas: ReplicaRule, router: LeastBacklog | None = None, **rules: object) -> Controller:
    config = ControllerConfig(replicas=replicas or (replica_rule(),), **{"watermark": ALL, **rules})  # type: ignore[arg-type]
    return Controller(config, router or LeastBacklog())


def held(gateway: Controller, replica: int = 0) -> int:
    return gateway.snapshot(0).replicas[replica].stages[0].held_blocks


# ── room ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_request_is_sent_at_once_when_there_is_room() -> None:
    gateway = controller()
    sent = gateway.on_arrival(arrival("a", 60, 30), 0)
    assert isinstance(sent, Dispatch)
    assert (sent.replica, sent.input_tokens, sent.attempt, sent.waited_ns) == ("r0", 60, 1, 0)
    assert sent.scores[0].replica == "r0"
    assert held(gateway) == 90


def test_a_request_waits_and_is_sent_when_room_comes_free() -> None:
    gateway = controller()
    gateway.on_arrival(arrival("a", 60, 30), 0)
    waits = gateway.on_arrival(arrival("b", 20), S)
    assert isinstance(waits, Wait)
    assert (waits.ahead, waits.count) == (0, False)
    assert waits.wait_ns is not None
    (sent,) = gateway.on_finish("a", DONE, 3 * S)
    assert isinstance(sent, Dispatch)
    assert (sent.id, sent.waited_ns) == ("b", 2 * S)
    assert held(gateway) == 20


def test_output_is_charged_as_it_grows_when_the_engine_reserves_as_it_goes() -> None:
    gateway = controller(replica_rule(reservation=INCREMENTAL))
    gateway.on_arrival(arrival("a", 60, 30), 0)
    assert held(gateway) == 60
    gateway.on_output("a", 25, S)
    assert held(gateway) == 85
    gateway.on_output("a", 20, S)  # an older report
    assert held(gateway) == 85


def test_ledger_charges_output_growth_when_outputs_were_measured() -> None:  # unsloth#10301
    gateway = controller(replica_rule(capacity_blocks=1_000, reservation=MEASURED))
    for number in range(16):
        assert isinstance(gateway.on_arrival(arrival(f"w{number}", 10, 900), 0), Dispatch | Wait)
        gateway.on_output(f"w{number}", 40, S)
        gateway.on_finish(f"w{number}", Ended(kind=EndKind.COMPLETED, output_tokens=40), S)
    # four long chats of 200 tokens that may produce 900 and do produce 40: 4 · 240 of 1,000
    chats = [gateway.on_arrival(arrival(f"c{number}", 200, 700), 2 * S) for number in range(5)]
    assert [type(chat) for chat in chats] == [Dispatch] * 4 + [Wait]
    assert held(gateway) == 960
    for number in range(4):  # one grows beyond what was expected, within what is free
        gateway.on_output(f"c{number}", 50, 3 * S)
    assert held(gateway) == 1_000
    assert gateway.snapshot(3 * S).counters.growth_shortages == 0
    gateway.on_output("c0", 60, 4 * S)
    assert gateway.snapshot(4 * S).counters.growth_shortages == 1


def test_nothing_new_enters_before_the_low_mark_when_growth_passed_the_high_one() -> None:
    gateway = controller(replica_rule(reservation=INCREMENTAL), watermark=WatermarkRule(stop=0.8, resume=0.5))
    gateway.on_arrival(arrival("a", 40, 50), 0)
    gateway.on_arrival(arrival("b", 35, 50), 0)
    gateway.on_output("a", 10, S)  # 85 > 80
    assert gateway.snapshot(S).replicas[0].stages[0].stopped
    assert isinstance(gateway.on_arrival(arrival("c", 1), S), Wait)
    assert gateway.on_finish("b", DONE, 2 * S) != []  # 50 held: at the low mark c goes in
    gateway.on_finish("c", DONE, 2 * S)
    gateway.on_output("a", 45, 3 * S)  # 85 again
    gateway.on_arrival(arrival("d", 1), 3 * S)
    assert gateway.on_tick(4 * S) == []  # stays out however long it waits at 85


def test_shared_pool_is_counted_once_when_slots_share_it() -> None:  # lemonade#3276
    # four slots over one cache of 1,000 cells, each advertised with all of it
    gateway = controller(replica_rule(capacity_blocks=1_000, limit_tokens=1_000, slots=4))
    answers = [gateway.on_arrival(arrival(f"a{number}", 400, 100), 0) for number in range(3)]
    assert [type(answer) for answer in answers] == [Dispatch, Dispatch, Wait]  # 2 · 500 fill it
    small = controller(replica_rule(capacity_blocks=1_000, slots=4))
    answers = [small.on_arrival(arrival(f"a{number}", 10), 0) for number in range(5)]
    assert [type(answer) for answer in answers] == [Dispatch] * 4 + [Wait]  # places run out first


def test_shared_prefix_pages_are_counted_once_and_pinned_while_referenced() -> None:  # mstar#307
    names = tuple(range(1, 51))
    gateway = controller(replica_rule(capacity_blocks=100))
    gateway.on_arrival(arrival("a", 60, blocks=names), 0)
    gateway.on_first_token("a", S)
    assert isinstance(gateway.on_arrival(arrival("b", 70, blocks=names), S), Dispatch)
    gateway.on_first_token("b", S)
    assert held(gateway) == 50 + 10 + 20
    gateway.on_finish("a", DONE, 2 * S)
    assert held(gateway) == 70  # the 50 stay while b refers to them
    assert isinstance(gateway.on_arrival(arrival("c", 40), 2 * S), Wait)  # 30 are free, whatever a cache may hold
    assert gateway.snapshot(S).replicas[0].stages[0].shared_blocks == 50


def test_two_equal_prompts_are_both_charged_when_neither_is_computed() -> None:
    names = tuple(range(1, 51))
    gateway = controller(replica_rule(capacity_blocks=100))
    gateway.on_arrival(arrival("a", 60, blocks=names), 0)
    assert isinstance(gateway.on_arrival(arrival("b", 60, blocks=names), 0), Wait)
    assert [a.id for a in gateway.on_first_token("a", S)] == ["b"]


def test_prefill_stages_are_free_at_the_first_token_when_decode_goes_on_elsewhere() -> None:
    base = replica_rule()
    stages = (base.pools[0], type(base.pools[0])(stage="prefill", capacity_blocks=50))
    pair = ReplicaRule(
        name="pair",
        models=("m",),
        pools=stages,
        admission=base.admission,
        prefill=base.prefill,
        block_tokens=1,
        prefill_stages=("prefill",),
    )
    gateway = controller(pair)
    gateway.on_arrival(arrival("a", 30, 10), 0)
    assert [s.held_blocks for s in gateway.snapshot(0).replicas[0].stages] == [40, 30]
    assert isinstance(gateway.on_arrival(arrival("b", 30, 10), 0), Wait)
    assert [a.id for a in gateway.on_first_token("a", S)] == ["b"]
    gateway.on_output("a", 10, S)
    gateway.on_finish("a", DONE, 2 * S)
    assert [s.held_blocks for s in gateway.snapshot(0).replicas[0].stages] == [40, 30]


def test_room_goes_to_another_model_when_it_shares_the_replica() -> None:
    gateway = controller(replica_rule("r0", models=("m", "n")), replica_rule("r1", models=("n",)))
    gateway.on_arrival(arrival("a", 90), 0)
    gateway.on_arrival(arrival("b", 90, model="n"), 0)
    assert isinstance(gateway.on_arrival(arrival("c", 90, model="n"), 0), Wait)
    assert [(a.id, a.replica) for a in gateway.on_finish("a", DONE, S) if isinstance(a, Dispatch)] == [("c", "r0")]


# ── never ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_request_that_can_never_fit_is_refused_at_once_with_the_binding_limit() -> None:
    gateway = controller(replica_rule("small", capacity_blocks=50), replica_rule("large", capacity_blocks=100))
    refused = gateway.on_arrival(arrival("a", 90, 11), 0)
    assert isinstance(refused, Refusal)
    assert (refused.status, refused.code) == (400, "context_length_exceeded")
    assert (refused.limit, refused.actual, refused.unit) == (100, 101, "tokens")
    assert refused.retry_after_ns is None
    limited = controller(replica_rule(limit_tokens=64)).on_arrival(arrival("a", 60, 5), 0)
    assert isinstance(limited, Refusal)
    assert (limited.limit, limited.actual) == (64, 65)


def test_a_request_goes_only_where_it_fits_when_replicas_differ() -> None:
    gateway = controller(replica_rule("small", capacity_blocks=50), replica_rule("large", capacity_blocks=100))
    sent = [gateway.on_arrival(arrival(name, 51), 0) for name in "ab"]
    assert [type(each) for each in sent] == [Dispatch, Wait]
    assert isinstance(sent[0], Dispatch)
    assert sent[0].replica == "large"


def test_a_request_that_is_meant_for_one_replica_goes_there_or_nowhere() -> None:
    gateway = controller(replica_rule("r0"), replica_rule("r1"))
    meant = replace(arrival("a", 60), only="r1")
    sent = gateway.on_arrival(meant, 0)
    assert isinstance(sent, Dispatch)
    assert sent.replica == "r1"
    assert isinstance(gateway.on_arrival(replace(meant, id="b"), 0), Wait)
    gateway.on_replica("r1", ReplicaState.DOWN, 0)
    for name, only in (("c", "r1"), ("d", "gone")):
        refused = gateway.on_arrival(replace(meant, id=name, only=only), 0)
        assert isinstance(refused, Refusal)
        assert (refused.status, refused.code) == (503, "no_replica")


def test_an_unknown_model_is_not_found() -> None:
    refused = controller().on_arrival(arrival("a", model="nobody"), 0)
    assert isinstance(refused, Refusal)
    assert (refused.status, refused.code) == (404, "model_not_found")


def test_an_id_in_use_is_our_bug() -> None:
    gateway = controller()
    gateway.on_arrival(arrival("a"), 0)
    with pytest.raises(ValueError, match="arrived twice"):
        gateway.on_arrival(arrival("a"), 0)


# ── lengths that are only bounded ─────────────────────────────────────────────────────────────────────────────────────


def test_room_is_reserved_before_tokens_are_counted_when_500_arrive_at_once() -> None:  # vllm#58192
    rules = QueueRule(most_waiting=100, count_from_tokens=10)
    gateway = controller(replica_rule(capacity_blocks=1_000), queue=rules)
    answers = [gateway.on_arrival(arrival(f"a{n}", 50, exact=False), 0) for n in range(500)]
    reserved = [a for a in answers if isinstance(a, Wait) and a.reserved]
    waiting = [a for a in answers if isinstance(a, Wait) and not a.reserved]
    refused = [a for a in answers if isinstance(a, Refusal)]
    # 20 · 50 fill the ledger by their bounds; 20 being counted and 80 in the queue are the 100 that may wait
    assert (len(reserved), len(waiting), len(refused)) == (20, 80, 400)
    assert held(gateway) == 1_000
    assert all(a.code == "queue_full" and a.status == 429 for a in refused)  # nobody counted anything for them
    # each turns out to have 40: the first is sent with its true length, and its 10 go back
    (sent,) = gateway.on_counted("a0", 40, (), S)
    assert (sent.id, held(gateway)) == ("a0", 990)


def test_a_bound_that_does_not_fit_is_counted_before_anything_is_said() -> None:
    gateway = controller(queue=QueueRule(count_from_tokens=10))
    waits = gateway.on_arrival(arrival("a", 400, exact=False), 0)
    assert isinstance(waits, Wait)
    assert (waits.count, waits.reserved, held(gateway)) == (True, False, 0)
    assert [type(a) for a in gateway.on_counted("a", 90, (), S)] == [Dispatch]
    gateway.on_arrival(arrival("b", 400, exact=False), S)
    (refused,) = gateway.on_counted("b", 120, (), S)
    assert isinstance(refused, Refusal)
    assert (refused.code, refused.actual) == ("context_length_exceeded", 120)


def test_nothing_is_counted_when_the_bound_alone_decides() -> None:
    gateway = controller(queue=QueueRule(count_from_tokens=100))
    assert isinstance(gateway.on_arrival(arrival("a", 60, exact=False), 0), Dispatch)
    assert held(gateway) == 60
    gateway.on_counted("a", 35, (), S)  # if somebody counts all the same, the ledger follows
    assert held(gateway) == 35


def test_a_counted_request_keeps_its_place_when_it_waits() -> None:
    gateway = controller(queue=QueueRule(count_from_tokens=10))
    gateway.on_arrival(arrival("a", 100), 0)
    waits = gateway.on_arrival(arrival("b", 100, exact=False), 0)
    assert isinstance(waits, Wait)
    assert (waits.count, waits.reserved) == (True, False)
    gateway.on_arrival(arrival("c", 90), 0)
    assert gateway.on_counted("b", 80, (), S) == []
    assert [a.id for a in gateway.on_finish("a", DONE, 2 * S)] == ["b"]


# ── order and fairness ────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_shortest_goes_first_when_all_are_fresh() -> None:
    gateway = controller()
    gateway.on_arrival(arrival("a", 100), 0)
    for name, tokens in (("long", 90), ("short", 20), ("middle", 50)):
        gateway.on_arrival(arrival(name, tokens), 1)
    sent = gateway.on_finish("a", DONE, S)
    assert [a.id for a in sent] == ["short", "middle"]


def test_a_giant_gets_a_replica_emptied_for_it_when_shorts_never_stop() -> None:  # vllm#10235, extension#1861
    gateway = controller(queue=QueueRule(age_bound_ns=10 * S))
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
    gateway = controller(router=router, queue=QueueRule(age_bound_ns=10 * S))
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
    gateway = controller(router=router, queue=QueueRule(age_bound_ns=S))
    gateway.on_arrival(arrival("a", 100), 0)
    for number in range(20):
        gateway.on_arrival(arrival(f"g{number}", 60), 1)
    gateway.on_arrival(arrival("short", 30), 2)
    router.closed = True
    gateway.on_tick(2 * S)
    assert [a.id for a in gateway.on_finish("a", DONE, 3 * S)] == ["short"]


def test_shorts_are_not_starved_when_giants_queue_up() -> None:
    gateway = controller(replica_rule(tokens_per_s=10), queue=QueueRule(age_bound_ns=5 * S, overdue_share=0.5))
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
    gateway = controller(queue=QueueRule(age_bound_ns=10 * S))
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
    gateway = controller(replica_rule(capacity_blocks=20))
    for number in range(50):
        gateway.on_arrival(arrival(f"f{number}", 10, tenant="flood"), 0)
    gateway.on_arrival(arrival("mine", 10, tenant="modest"), S)
    served = [a.id for n in (0, 1) for a in gateway.on_finish(f"f{n}", DONE, S)]
    assert "mine" in served  # among the next two, not behind the 48 that were there before it


def test_service_is_corrected_when_it_is_known_what_a_request_took() -> None:
    gateway = controller(replica_rule(capacity_blocks=1_000))
    gateway.on_arrival(arrival("a", 500, 400), 0)
    assert gateway.snapshot(0).tenants[0].served_ns == S // 2  # 500 tokens of prefill at 1,000 a second
    gateway.on_finish("a", Ended(kind=EndKind.COMPLETED, output_tokens=300, cached_tokens=200), S)
    # 300 uncached, and 300 of output that count twice
    assert gateway.snapshot(S).tenants[0].served_ns == 900 * MS
    gateway.on_arrival(arrival("b", 500), S)
    gateway.on_refused_by_engine("b", 9 * S, S)
    assert gateway.snapshot(S).tenants[0].served_ns == 900 * MS  # what an engine refused was no service


def test_a_tenant_that_was_away_has_saved_nothing_up() -> None:
    gateway = controller(replica_rule(capacity_blocks=100))
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
    gateway = controller(tenants=(TenantRule(name="t", most_running=1),))
    gateway.on_arrival(arrival("a"), 0)
    waits = gateway.on_arrival(arrival("b"), 0)
    assert isinstance(waits, Wait)
    assert waits.reason == "its tenant runs as many requests as it may"
    assert isinstance(gateway.on_arrival(arrival("c", tenant="other"), 0), Dispatch)
    assert [a.id for a in gateway.on_finish("a", DONE, S)] == ["b"]


def test_arrivals_are_refused_at_once_when_as_many_wait_as_may() -> None:
    gateway = controller(queue=QueueRule(most_waiting=2, most_waiting_per_tenant=1))
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
    gateway = controller(rule, slo=SloRule(itl_ns=50 * MS), queue=QueueRule(age_bound_ns=10 * S))
    gateway.on_arrival(arrival("chat", 20, 100), 0)
    gateway.on_first_token("chat", 20 * MS)
    giant = gateway.on_arrival(arrival("giant", 5_000), S)
    assert isinstance(giant, Wait)
    assert "running streams" in giant.reason
    assert isinstance(gateway.on_arrival(arrival("short", 80), S), Dispatch)
    gateway.on_finish("short", DONE, 2 * S)
    assert gateway.on_tick(5 * S) == []
    assert [a.id for a in gateway.on_tick(11 * S + 1)] == ["giant"]  # the promise bends, nobody waits for ever


def test_a_prefill_window_keeps_the_order_here_when_the_engine_is_behind() -> None:
    gateway = controller(replica_rule(capacity_blocks=10_000, prefill_window_tokens=100))
    gateway.on_arrival(arrival("a", 150), 0)
    gateway.on_arrival(arrival("long", 500), 0)
    gateway.on_arrival(arrival("short", 10), 0)
    assert [a.id for a in gateway.on_first_token("a", S)] == ["short", "long"]


# ── promises, deadlines, budgets ──────────────────────────────────────────────────────────────────────────────────────


def test_an_arrival_is_refused_early_when_its_first_token_would_miss_the_promise() -> None:
    gateway = controller(replica_rule(capacity_blocks=100_000), slo=SloRule(ttft_ns=2 * S))
    assert isinstance(gateway.on_arrival(arrival("a", 1_500), 0), Dispatch)
    refused = gateway.on_arrival(arrival("b", 1_000), 0)  # 1.5 s of a's prefill, then 1 s of its own
    assert isinstance(refused, Refusal)
    assert (refused.status, refused.code, refused.limit, refused.actual) == (429, "ttft_slo", 2_000, 2_500)
    assert refused.retry_after_ns == S
    assert isinstance(gateway.on_arrival(arrival("c", 400), 0), Dispatch)
    scaled = SloRule(ttft_ns=S, ttft_ns_per_token=1 * MS)
    assert isinstance(
        controller(replica_rule(capacity_blocks=100_000), slo=scaled).on_arrival(arrival("d", 50_000), 0), Dispatch
    )


def test_predictions_follow_the_engine_when_its_rate_was_only_assumed() -> None:
    rule = replica_rule(capacity_blocks=100_000, tokens_per_s=10_000, learn_prefill=True)
    gateway = controller(rule, slo=SloRule(ttft_ns=4 * S))
    for number in range(3):  # 1,000 tokens take 5 s, not 0.1 s
        assert isinstance(gateway.on_arrival(arrival(f"a{number}", 1_000), number * 10 * S), Dispatch)
        gateway.on_first_token(f"a{number}", (number * 10 + 5) * S)
        gateway.on_finish(f"a{number}", DONE, (number * 10 + 6) * S)
    refused = gateway.on_arrival(arrival("b", 1_000), 40 * S)
    assert isinstance(refused, Refusal)
    assert (refused.code, refused.actual) == ("ttft_slo", 5_000)


def test_a_deadline_is_refused_early_when_it_cannot_be_met_and_ends_a_wait_when_it_passes() -> None:
    gateway = controller()
    gateway.on_arrival(arrival("a", 100), 0)
    early = gateway.on_arrival(arrival("b", 90, deadline_ns=50 * MS), 0)
    assert isinstance(early, Refusal)
    assert early.code == "deadline_unreachable"
    assert isinstance(gateway.on_arrival(arrival("c", 90, deadline_ns=30 * S), 0), Wait)
    assert gateway.on_tick(30 * S - 1) == []
    (late,) = gateway.on_tick(30 * S)
    assert isinstance(late, Refusal)
    assert (late.id, late.status, late.code) == ("c", 503, "deadline_passed")
    assert late.retry_after_ns is not None


def test_nobody_waits_longer_than_the_longest_wait() -> None:
    gateway = controller(queue=QueueRule(longest_wait_ns=60 * S))
    gateway.on_arrival(arrival("a", 100), 0)
    gateway.on_arrival(arrival("b", 90), 0)
    (refused,) = gateway.on_tick(60 * S)
    assert isinstance(refused, Refusal)
    assert (refused.status, refused.code) == (503, "queue_timeout")
    assert gateway.on_finish("a", DONE, 61 * S) == []


def test_a_tenant_is_refused_when_its_kv_budget_is_spent_and_told_when_it_fills() -> None:
    budget = KvBudget(token_seconds_per_s=10, burst_token_seconds=200)
    gateway = controller(tenants=(TenantRule(name="t", budget=budget),))
    # 50 tokens for 0.05 s: next to nothing is expected, but it stays for 5 s
    assert isinstance(gateway.on_arrival(arrival("a", 50), 0), Dispatch)
    refused = gateway.on_arrival(arrival("b", 50), 5 * S)  # 200 - 5 · (50 - 10) = 0 left
    assert isinstance(refused, Refusal)
    assert (refused.status, refused.code, refused.unit) == (429, "tenant_kv_budget", "token-seconds")
    assert refused.retry_after_ns == S
    assert isinstance(gateway.on_arrival(arrival("c", 50, tenant="other"), 5 * S), Dispatch)
    gateway.on_finish("a", DONE, 5 * S)
    assert isinstance(gateway.on_arrival(arrival("d", 50), 6 * S), Dispatch)


def test_retry_after_comes_from_the_drain_rate_when_the_queue_is_full() -> None:  # router#281
    gateway = controller(replica_rule(capacity_blocks=100), queue=QueueRule(most_waiting=1))
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
    gateway = controller(router=HalfCached(), slo=SloRule(min_hit={"m": 0.6}))
    refused = gateway.on_arrival(arrival("a", 50), 0)
    assert isinstance(refused, Refusal)
    assert (refused.status, refused.code, refused.limit, refused.actual) == (429, "cache_hit_floor", 30, 25)
    assert refused.retry_after_ns == S
    warm = controller(router=HalfCached(), slo=SloRule(min_hit={"m": 0.5, "other": 0.9}))
    sent = warm.on_arrival(arrival("a", 50), 0)
    assert isinstance(sent, Dispatch)
    assert (sent.cached_tokens, sent.uncached_tokens) == (25, 25)


# ── the claim ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_claim_binds_before_the_capacity_does() -> None:
    proven = {"m": ProvenLimits(model="m", admitted_tokens=50)}
    refused = controller(proven=proven).on_arrival(arrival("a", 40, 11), 0)
    assert isinstance(refused, Refusal)
    assert (refused.status, refused.code, refused.limit, refused.actual) == (400, "beyond_proven_length", 50, 51)


def test_a_warning_goes_with_the_answer_when_excess_is_only_marked() -> None:
    proven = {"m": ProvenLimits(model="m", effective_tokens=5, on_excess=OnExcess.WARN, problem="expired")}
    sent = controller(proven=proven).on_arrival(arrival("a"), 0)
    assert isinstance(sent, Dispatch)
    assert [warning.split(":")[0] for warning in sent.warnings] == ["claim-problem", "not-proven"]


def test_only_the_proven_pool_serves_it_when_excess_is_routed() -> None:
    proven = {"m": ProvenLimits(model="m", effective_tokens=5, on_excess=OnExcess.ROUTE, pool="long")}
    gateway = controller(replica_rule("r0"), replica_rule("r1", pool="long"), proven=proven)
    sent = [gateway.on_arrival(arrival(name, 90), 0) for name in "ab"]
    assert isinstance(sent[0], Dispatch)
    assert (sent[0].replica, sent[0].pool) == ("r1", "long")
    assert isinstance(sent[1], Wait)  # r0 is idle, and not proven for it
    assert isinstance(gateway.on_arrival(arrival("c", 5), 0), Dispatch)
    nowhere = controller(replica_rule("r0"), proven=proven).on_arrival(arrival("a", 90), 0)
    assert isinstance(nowhere, Refusal)
    assert nowhere.status == 400


def test_the_exact_length_is_held_against_the_claim_when_only_a_bound_was_known() -> None:
    proven = {"m": ProvenLimits(model="m", effective_tokens=50)}
    gateway = controller(proven=proven, queue=QueueRule(count_from_tokens=1))
    assert isinstance(gateway.on_arrival(arrival("a", 80, exact=False), 0), Wait)
    assert [type(a) for a in gateway.on_counted("a", 50, (), 0)] == [Dispatch]
    gateway.on_arrival(arrival("b", 80, exact=False), 0)
    assert [type(a) for a in gateway.on_counted("b", 51, (), 0)] == [Refusal]


# ── engines that refuse, fail, restart, preempt ───────────────────────────────────────────────────────────────────────


def test_an_engines_503_means_the_next_replica_and_not_this_one_before_its_retry_after() -> None:  # vllm#49445
    gateway = controller(replica_rule("r0"), replica_rule("r1"))
    first = gateway.on_arrival(arrival("a", 5), 0)
    assert isinstance(first, Dispatch)
    (second,) = gateway.on_refused_by_engine("a", 7 * S, MS)
    assert isinstance(second, Dispatch)
    assert (second.replica, second.attempt) == ("r1", 2)
    for number in range(5):  # r0 is left alone for the whole seven seconds
        sent = gateway.on_arrival(arrival(f"b{number}", 1), 6 * S)
        assert isinstance(sent, Dispatch)
        assert sent.replica == "r1"
    sent = gateway.on_arrival(arrival("c", 1), 7 * S + 2 * MS)
    assert isinstance(sent, Dispatch)
    assert sent.replica == "r0"
    assert gateway.snapshot(8 * S).counters.failed == 0


def test_the_engines_retry_after_is_passed_on_when_every_replica_has_refused() -> None:
    gateway = controller(replica_rule("r0"), replica_rule("r1"))
    gateway.on_arrival(arrival("a"), 0)
    gateway.on_refused_by_engine("a", 7 * S, 0)
    (refused,) = gateway.on_refused_by_engine("a", 9 * S, S)
    assert isinstance(refused, Refusal)
    assert (refused.status, refused.code) == (429, "engine_busy")
    assert refused.retry_after_ns == 6 * S  # r0 may be asked again at 7 s
    newcomer = gateway.on_arrival(arrival("b"), 2 * S)
    assert isinstance(newcomer, Refusal)
    assert newcomer.retry_after_ns == 5 * S


def test_a_short_back_off_is_waited_out_here() -> None:
    gateway = controller()
    gateway.on_arrival(arrival("a"), 0)
    assert gateway.on_refused_by_engine("a", S // 2, 0) == []
    assert gateway.on_tick(S // 2 - 1) == []
    assert [type(a) for a in gateway.on_tick(S // 2)] == [Dispatch]


def test_a_request_is_given_up_when_engines_refuse_it_again_and_again() -> None:
    gateway = controller()
    now, answers = 0, [gateway.on_arrival(arrival("a"), 0)]
    while isinstance(answers[0], Dispatch):
        now += S
        gateway.on_refused_by_engine("a", None, now)
        now += S
        answers = gateway.on_tick(now) or [Refusal(id="a", status=429, code="gone", reason="")]
    assert gateway.snapshot(now).counters.engine_refusals == 3
    assert gateway.snapshot(now).counters.refused == 1


def test_a_replica_is_left_alone_when_it_failed_too_often() -> None:
    gateway = controller(replica_rule("r0"), replica_rule("r1"), breaker=BreakerRule(failures=2, open_ns=5 * S))
    for number in range(2):
        sent = gateway.on_arrival(arrival(f"a{number}", 1), number)
        assert isinstance(sent, Dispatch)
        assert sent.replica == "r0"
        gateway.on_finish(f"a{number}", Ended(kind=EndKind.FAILED), number)
    sent = gateway.on_arrival(arrival("b", 1), S)
    assert isinstance(sent, Dispatch)
    assert sent.replica == "r1"
    assert gateway.snapshot(S).replicas[0].state is ReplicaState.BROKEN
    sent = gateway.on_arrival(arrival("c", 1), 6 * S)
    assert isinstance(sent, Dispatch)
    assert sent.replica == "r0"


def test_503_says_when_to_come_back_when_no_replica_is_up() -> None:
    gateway = controller()
    gateway.on_arrival(arrival("running"), 0)
    gateway.on_replica("r0", ReplicaState.DRAINING, 0)
    refused = gateway.on_arrival(arrival("a"), 0)
    assert isinstance(refused, Refusal)
    assert (refused.status, refused.code) == (503, "no_replica")
    assert refused.retry_after_ns == S
    gateway.on_finish("running", DONE, S)
    gateway.on_replica("r0", ReplicaState.UP, 2 * S)
    assert isinstance(gateway.on_arrival(arrival("b"), 2 * S), Dispatch)
    gateway.on_replica("r0", ReplicaState.BROKEN, 3 * S, until_ns=13 * S)
    refused = gateway.on_arrival(arrival("c"), 3 * S)
    assert isinstance(refused, Refusal)
    assert (refused.status, refused.retry_after_ns) == (503, 10 * S)


def test_everything_it_held_is_free_when_a_replica_restarts_and_its_requests_end_later() -> None:
    router = LeastBacklog()
    gateway = controller(router=router)
    gateway.on_arrival(arrival("a", 90), 0)
    gateway.on_arrival(arrival("b", 80), 0)
    sent = gateway.on_replica("r0", ReplicaState.RESTARTED, S)
    assert [a.id for a in sent] == ["b"]
    assert ("forget", "r0") in router.told
    assert gateway.on_finish("a", Ended(kind=EndKind.FAILED), 2 * S) == []
    assert held(gateway) == 80
    assert gateway.snapshot(2 * S).counters.failed == 1


def test_a_thrashing_engine_gets_less_when_it_preempts_although_the_books_say_it_fits() -> None:  # inference-sim#1167
    gateway = controller()
    gateway.on_arrival(arrival("a", 50), 0)

    def sample(preemptions: float, now_ns: int) -> None:
        values = {"vllm:num_preemptions_total": preemptions}
        gateway.on_sample("r0", EngineSample(at_ns=now_ns, kv_usage=0.5, values=values), now_ns)

    sample(0, 0)
    sample(6, S)
    seen = gateway.snapshot(S).replicas[0]
    assert (seen.thrashing, seen.preemptions) == (True, 6)
    # six preemptions hold back 30 % of 100: 20 of the 50 free ones are left
    assert isinstance(gateway.on_arrival(arrival("b", 25), S), Wait)
    assert isinstance(gateway.on_arrival(arrival("c", 15), S), Dispatch)
    assert [a.id for a in gateway.on_tick(4 * 60 * S)] == ["b"]  # three calm minutes give 15 of them back


def test_what_somebody_else_uses_is_not_admitted_into_when_two_samples_show_it() -> None:
    gateway = controller()
    gateway.on_arrival(arrival("a", 20), 0)
    for now_ns in (S, 2 * S):
        gateway.on_sample("r0", EngineSample(at_ns=now_ns, kv_usage=0.7), now_ns)
        stage = gateway.snapshot(now_ns).replicas[0].stages[0]
        assert stage.drift_blocks == 50
        assert stage.foreign_blocks == (0 if now_ns == S else 50)  # one sample may be a step old
    assert isinstance(gateway.on_arrival(arrival("b", 40), 2 * S), Wait)  # 100 - 20 - 50
    assert gateway.on_sample("r0", EngineSample(at_ns=3 * S, kv_usage=0.2), 3 * S) != []


def test_a_share_of_an_unknown_capacity_says_nothing() -> None:
    gateway = controller(replica_rule(capacity_blocks=1 << 50))
    for now_ns in (S, 2 * S):
        gateway.on_sample("r0", EngineSample(at_ns=now_ns, kv_usage=0.9), now_ns)
    assert held(gateway) == 0


def test_what_is_used_grows_with_the_prefill_when_the_room_is_taken_at_once() -> None:
    gateway = controller(replica_rule(capacity_blocks=1_000))
    gateway.on_arrival(arrival("a", 500, 100), 0)  # half a second at 1,000 tokens a second
    stages = [gateway.snapshot(ms * MS).replicas[0].stages[0] for ms in (0, 100, 600)]
    assert [stage.used_blocks for stage in stages] == [0, 100, 500]
    assert {stage.held_blocks for stage in stages} == {600}
    gateway.on_output("a", 40, S)
    assert gateway.snapshot(S).replicas[0].stages[0].used_blocks == 540


def test_a_replica_is_charged_at_selection_when_requests_come_at_once() -> None:  # sglang#27547
    gateway = controller(*(replica_rule(f"r{n}", capacity_blocks=1_000_000) for n in range(4)))
    sent = [gateway.on_arrival(arrival(f"a{n}", 32_000, 1), 0) for n in range(8)]
    assert sorted(d.replica for d in sent if isinstance(d, Dispatch)) == [
        "r0",
        "r0",
        "r1",
        "r1",
        "r2",
        "r2",
        "r3",
        "r3",
    ]
    assert [r.pending_prefill_tokens for r in gateway.snapshot(0).replicas] == [64_000] * 4


# ── ends ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_second_end_changes_nothing() -> None:
    gateway = controller()
    gateway.on_arrival(arrival("a"), 0)
    gateway.on_finish("a", DONE, S)
    before = gateway.snapshot(S)
    assert gateway.on_finish("a", Ended(kind=EndKind.FAILED), S) == []
    assert gateway.cancel("a", S) == []
    assert gateway.on_first_token("a", S) == gateway.on_output("a", 9, S) == gateway.on_counted("a", 9, (), S) == []
    assert gateway.snapshot(S) == before


def test_a_client_that_leaves_while_queued_makes_no_difference_to_the_others() -> None:
    gateway = controller()
    gateway.on_arrival(arrival("a", 100), 0)
    gateway.on_arrival(arrival("b", 50), 0)
    gateway.on_arrival(arrival("c", 60), 0)
    assert gateway.cancel("b", S) == []
    assert [a.id for a in gateway.on_finish("a", DONE, 2 * S)] == ["c"]
    assert gateway.snapshot(2 * S).counters.cancelled == 1


def test_the_end_of_a_prefill_is_estimated_when_nobody_sees_the_first_token() -> None:
    gateway = controller(replica_rule(capacity_blocks=10_000, prefill_window_tokens=100))
    gateway.on_arrival(arrival("a", 500, streamed=False), 0)  # half a second of prefill
    assert isinstance(gateway.on_arrival(arrival("b", 500), 0), Wait)
    assert gateway.on_tick(S // 2 - 1) == []
    assert [a.id for a in gateway.on_tick(S // 2)] == ["b"]


def test_kv_token_time_is_what_was_held_over_time() -> None:
    gateway = controller()
    gateway.on_arrival(arrival("a", 40, 30), 0)
    gateway.on_output("a", 20, 2 * S)
    assert gateway.kv_token_ms("a", 3 * S) == 40 * 2_000 + 60 * 1_000
    gateway.on_finish("a", DONE, 3 * S)
    assert gateway.kv_token_ms("a", 3 * S) is None


def test_the_router_hears_whether_a_prompt_was_prefilled() -> None:
    router = LeastBacklog()
    gateway = controller(replica_rule("r0"), router=router)
    gateway.on_arrival(arrival("a"), 0)
    gateway.cancel("a", S)
    gateway.on_arrival(arrival("b"), S)
    gateway.on_first_token("b", 2 * S)
    gateway.on_finish("b", Ended(kind=EndKind.COMPLETED, cached_tokens=4), 3 * S)
    gateway.on_kv_event("r0", KvCleared(), 4 * S)
    assert router.told == [
        ("dispatch", "a", "r0", 0),
        ("end", "a", "r0", None, False, S),
        ("dispatch", "b", "r0", S),
        ("end", "b", "r0", 4, True, 3 * S),
        ("event", "r0", KvCleared(), 4 * S),
    ]


def test_a_completed_answer_was_prefilled_even_if_nobody_saw_its_first_token() -> None:
    router = LeastBacklog()
    gateway = controller(router=router)
    gateway.on_arrival(arrival("a", 10, 5, streamed=False), 0)
    gateway.on_finish("a", DONE, S)
    assert router.told[-1] == ("end", "a", "r0", None, True, S)


def test_time_stands_still_when_a_clock_goes_backwards() -> None:
    gateway = controller(queue=QueueRule(longest_wait_ns=60 * S))
    gateway.on_arrival(arrival("a", 100), 100 * S)
    gateway.on_arrival(arrival("b", 90), 10 * S)
    assert gateway.on_tick(0) == []
    assert gateway.on_tick(160 * S - 1) == []
    assert len(gateway.on_tick(160 * S)) == 1


def test_a_negative_length_is_refused_where_it_is_made() -> None:
    with pytest.raises(ValueError, match="negative"):
        Arrival(id="a", tenant="t", model="m", input_tokens=-1, exact=True, output_tokens=0)
