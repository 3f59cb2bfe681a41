"""The controller: what fits, what never will, and lengths that are only bounded. Blocks here are of one token."""

from __future__ import annotations

from dataclasses import replace

import pytest

from longproof.domain.fleet import ReplicaState
from longproof.policy.actions import Dispatch, Refusal, Wait
from longproof.policy.admission import INCREMENTAL, MEASURED
from longproof.policy.arrivals import Ended, EndKind
from longproof.policy.controller_config import (
    QueueRule,
    ReplicaRule,
    WatermarkRule,
)
from longproof.testing.controllers import MS, S, arrival, controller_of, held_blocks, replica_rule

DONE = Ended(kind=EndKind.COMPLETED)


def test_a_request_is_sent_at_once_when_there_is_room() -> None:
    gateway = controller_of()
    sent = gateway.on_arrival(arrival("a", 60, 30), 0)
    assert isinstance(sent, Dispatch)
    assert (sent.replica, sent.input_tokens, sent.attempt, sent.waited_ns) == ("r0", 60, 1, 0)
    assert sent.scores[0].replica == "r0"
    assert held_blocks(gateway) == 90


def test_a_request_waits_and_is_sent_when_room_comes_free() -> None:
    gateway = controller_of()
    gateway.on_arrival(arrival("a", 60, 30), 0)
    waits = gateway.on_arrival(arrival("b", 20), S)
    assert isinstance(waits, Wait)
    assert (waits.ahead, waits.count) == (0, False)
    assert waits.wait_ns is not None
    (sent,) = gateway.on_finish("a", DONE, 3 * S)
    assert isinstance(sent, Dispatch)
    assert (sent.id, sent.waited_ns) == ("b", 2 * S)
    assert held_blocks(gateway) == 20


def test_output_is_charged_as_it_grows_when_the_engine_reserves_as_it_goes() -> None:
    gateway = controller_of(replica_rule(reservation=INCREMENTAL))
    gateway.on_arrival(arrival("a", 60, 30), 0)
    assert held_blocks(gateway) == 60
    gateway.on_output("a", 25, S)
    assert held_blocks(gateway) == 85
    gateway.on_output("a", 20, S)  # an older report
    assert held_blocks(gateway) == 85


def test_ledger_charges_output_growth_when_outputs_were_measured() -> None:  # unsloth#10301
    gateway = controller_of(replica_rule(capacity_blocks=1_000, reservation=MEASURED))
    for number in range(16):
        assert isinstance(gateway.on_arrival(arrival(f"w{number}", 10, 900), 0), Dispatch | Wait)
        gateway.on_output(f"w{number}", 40, S)
        gateway.on_finish(f"w{number}", Ended(kind=EndKind.COMPLETED, output_tokens=40), S)
    # four long chats of 200 tokens that may produce 900 and do produce 40: 4 · 240 of 1,000
    chats = [gateway.on_arrival(arrival(f"c{number}", 200, 700), 2 * S) for number in range(5)]
    assert [type(chat) for chat in chats] == [Dispatch] * 4 + [Wait]
    assert held_blocks(gateway) == 960
    for number in range(4):  # one grows beyond what was expected, within what is free
        gateway.on_output(f"c{number}", 50, 3 * S)
    assert held_blocks(gateway) == 1_000
    assert gateway.snapshot(3 * S).counters.growth_shortages == 0
    gateway.on_output("c0", 60, 4 * S)
    assert gateway.snapshot(4 * S).counters.growth_shortages == 1


def test_nothing_new_enters_before_the_low_mark_when_growth_passed_the_high_one() -> None:
    gateway = controller_of(replica_rule(reservation=INCREMENTAL), watermark=WatermarkRule(stop=0.8, resume=0.5))
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
    gateway = controller_of(replica_rule(capacity_blocks=1_000, limit_tokens=1_000, slots=4))
    answers = [gateway.on_arrival(arrival(f"a{number}", 400, 100), 0) for number in range(3)]
    assert [type(answer) for answer in answers] == [Dispatch, Dispatch, Wait]  # 2 · 500 fill it
    small = controller_of(replica_rule(capacity_blocks=1_000, slots=4))
    answers = [small.on_arrival(arrival(f"a{number}", 10), 0) for number in range(5)]
    assert [type(answer) for answer in answers] == [Dispatch] * 4 + [Wait]  # places run out first


def test_shared_prefix_pages_are_counted_once_and_pinned_while_referenced() -> None:  # mstar#307
    names = tuple(range(1, 51))
    gateway = controller_of(replica_rule(capacity_blocks=100))
    gateway.on_arrival(arrival("a", 60, blocks=names), 0)
    gateway.on_first_token("a", S)
    assert isinstance(gateway.on_arrival(arrival("b", 70, blocks=names), S), Dispatch)
    gateway.on_first_token("b", S)
    assert held_blocks(gateway) == 50 + 10 + 20
    gateway.on_finish("a", DONE, 2 * S)
    assert held_blocks(gateway) == 70  # the 50 stay while b refers to them
    assert isinstance(gateway.on_arrival(arrival("c", 40), 2 * S), Wait)  # 30 are free, whatever a cache may hold
    assert gateway.snapshot(S).replicas[0].stages[0].shared_blocks == 50


def test_two_equal_prompts_are_both_charged_when_neither_is_computed() -> None:
    names = tuple(range(1, 51))
    gateway = controller_of(replica_rule(capacity_blocks=100))
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
    gateway = controller_of(pair)
    gateway.on_arrival(arrival("a", 30, 10), 0)
    assert [s.held_blocks for s in gateway.snapshot(0).replicas[0].stages] == [40, 30]
    assert isinstance(gateway.on_arrival(arrival("b", 30, 10), 0), Wait)
    assert [a.id for a in gateway.on_first_token("a", S)] == ["b"]
    gateway.on_output("a", 10, S)
    gateway.on_finish("a", DONE, 2 * S)
    assert [s.held_blocks for s in gateway.snapshot(0).replicas[0].stages] == [40, 30]


def test_room_goes_to_another_model_when_it_shares_the_replica() -> None:
    gateway = controller_of(replica_rule("r0", models=("m", "n")), replica_rule("r1", models=("n",)))
    gateway.on_arrival(arrival("a", 90), 0)
    gateway.on_arrival(arrival("b", 90, model="n"), 0)
    assert isinstance(gateway.on_arrival(arrival("c", 90, model="n"), 0), Wait)
    assert [(a.id, a.replica) for a in gateway.on_finish("a", DONE, S) if isinstance(a, Dispatch)] == [("c", "r0")]


def test_a_request_that_can_never_fit_is_refused_at_once_with_the_binding_limit() -> None:
    gateway = controller_of(replica_rule("small", capacity_blocks=50), replica_rule("large", capacity_blocks=100))
    refused = gateway.on_arrival(arrival("a", 90, 11), 0)
    assert isinstance(refused, Refusal)
    assert (refused.status, refused.code) == (400, "context_length_exceeded")
    assert (refused.limit, refused.actual, refused.unit) == (100, 101, "tokens")
    assert refused.retry_after_ns is None
    limited = controller_of(replica_rule(limit_tokens=64)).on_arrival(arrival("a", 60, 5), 0)
    assert isinstance(limited, Refusal)
    assert (limited.limit, limited.actual) == (64, 65)


def test_a_request_goes_only_where_it_fits_when_replicas_differ() -> None:
    gateway = controller_of(replica_rule("small", capacity_blocks=50), replica_rule("large", capacity_blocks=100))
    sent = [gateway.on_arrival(arrival(name, 51), 0) for name in "ab"]
    assert [type(each) for each in sent] == [Dispatch, Wait]
    assert isinstance(sent[0], Dispatch)
    assert sent[0].replica == "large"


def test_a_request_that_is_meant_for_one_replica_goes_there_or_nowhere() -> None:
    gateway = controller_of(replica_rule("r0"), replica_rule("r1"))
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
    refused = controller_of().on_arrival(arrival("a", model="nobody"), 0)
    assert isinstance(refused, Refusal)
    assert (refused.status, refused.code) == (404, "model_not_found")


def test_an_id_in_use_is_our_bug() -> None:
    gateway = controller_of()
    gateway.on_arrival(arrival("a"), 0)
    with pytest.raises(ValueError, match="arrived twice"):
        gateway.on_arrival(arrival("a"), 0)


def test_room_is_reserved_before_tokens_are_counted_when_500_arrive_at_once() -> None:  # vllm#58192
    rules = QueueRule(most_waiting=100, count_from_tokens=10)
    gateway = controller_of(replica_rule(capacity_blocks=1_000), queue=rules)
    answers = [gateway.on_arrival(arrival(f"a{n}", 50, exact=False), 0) for n in range(500)]
    reserved = [a for a in answers if isinstance(a, Wait) and a.reserved]
    waiting = [a for a in answers if isinstance(a, Wait) and not a.reserved]
    refused = [a for a in answers if isinstance(a, Refusal)]
    # 20 · 50 fill the ledger by their bounds; 20 being counted and 80 in the queue are the 100 that may wait
    assert (len(reserved), len(waiting), len(refused)) == (20, 80, 400)
    assert held_blocks(gateway) == 1_000
    assert all(a.code == "queue_full" and a.status == 429 for a in refused)  # nobody counted anything for them
    # each turns out to have 40: the first is sent with its true length, and its 10 go back
    (sent,) = gateway.on_counted("a0", 40, (), S)
    assert (sent.id, held_blocks(gateway)) == ("a0", 990)


def test_a_bound_that_does_not_fit_is_counted_before_anything_is_said() -> None:
    gateway = controller_of(queue=QueueRule(count_from_tokens=10))
    waits = gateway.on_arrival(arrival("a", 400, exact=False), 0)
    assert isinstance(waits, Wait)
    assert (waits.count, waits.reserved, held_blocks(gateway)) == (True, False, 0)
    assert [type(a) for a in gateway.on_counted("a", 90, (), S)] == [Dispatch]
    gateway.on_arrival(arrival("b", 400, exact=False), S)
    (refused,) = gateway.on_counted("b", 120, (), S)
    assert isinstance(refused, Refusal)
    assert (refused.code, refused.actual) == ("context_length_exceeded", 120)


def test_a_short_bound_that_does_not_fit_is_counted_too_before_anything_is_said() -> None:
    gateway = controller_of(replica_rule(capacity_blocks=100), queue=QueueRule(count_from_tokens=2_048))
    waits = gateway.on_arrival(arrival("a", 60, 50, exact=False), 0)  # 60 is what it may be; 110 blocks there are not
    assert isinstance(waits, Wait)
    assert (waits.count, waits.exact) == (True, True)
    assert [type(a) for a in gateway.on_counted("a", 34, (), MS)] == [Dispatch]
    gateway.on_arrival(arrival("b", 60, 50, exact=False), 0)
    (refused,) = gateway.on_counted("b", 51, (), MS)
    assert isinstance(refused, Refusal)
    assert (refused.code, refused.actual) == ("context_length_exceeded", 101)


def test_nothing_is_counted_when_the_bound_alone_decides() -> None:
    gateway = controller_of(queue=QueueRule(count_from_tokens=100))
    assert isinstance(gateway.on_arrival(arrival("a", 60, exact=False), 0), Dispatch)
    assert held_blocks(gateway) == 60
    gateway.on_counted("a", 35, (), S)  # if somebody counts all the same, the ledger follows
    assert held_blocks(gateway) == 35


def test_a_counted_request_keeps_its_place_when_it_waits() -> None:
    gateway = controller_of(queue=QueueRule(count_from_tokens=10))
    gateway.on_arrival(arrival("a", 100), 0)
    waits = gateway.on_arrival(arrival("b", 100, exact=False), 0)
    assert isinstance(waits, Wait)
    assert (waits.count, waits.reserved) == (True, False)
    gateway.on_arrival(arrival("c", 90), 0)
    assert gateway.on_counted("b", 80, (), S) == []
    assert [a.id for a in gateway.on_finish("a", DONE, 2 * S)] == ["b"]
