"""The controller: engines that refuse, fail, restart and preempt; and how requests end."""

from __future__ import annotations

import pytest

from longproof.domain.events import EngineSample
from longproof.domain.fleet import ReplicaState
from longproof.domain.kv_event import KvCleared
from longproof.policy.actions import Dispatch, Refusal, Wait
from longproof.policy.arrivals import Arrival, Ended, EndKind
from longproof.policy.controller_config import (
    BreakerRule,
    QueueRule,
)
from longproof.testing.controllers import MS, LeastBacklog, S, arrival, controller_of, held_blocks, replica_rule

DONE = Ended(kind=EndKind.COMPLETED)


def test_an_engines_503_means_the_next_replica_and_not_this_one_before_its_retry_after() -> None:  # vllm#49445
    gateway = controller_of(replica_rule("r0"), replica_rule("r1"))
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


def test_nothing_is_taken_as_cached_where_an_engine_refused() -> None:
    router = LeastBacklog()
    gateway = controller_of(replica_rule("r0"), replica_rule("r1"), router=router)
    gateway.on_arrival(arrival("a", 5), 0)
    gateway.on_refused_by_engine("a", 7 * S, MS)
    gateway.on_first_token("a", 2 * MS)
    gateway.on_finish("a", DONE, 3 * MS)
    ends = [told for told in router.told if told[0] == "end"]
    assert ends == [("end", "a", "r0", None, False, MS), ("end", "a", "r1", None, True, 3 * MS)]


def test_the_engines_retry_after_is_passed_on_when_every_replica_has_refused() -> None:
    gateway = controller_of(replica_rule("r0"), replica_rule("r1"))
    gateway.on_arrival(arrival("a"), 0)
    gateway.on_refused_by_engine("a", 7 * S, 0)
    (refused,) = gateway.on_refused_by_engine("a", 9 * S, S)
    assert isinstance(refused, Refusal)
    assert (refused.status, refused.code) == (429, "engine_busy")
    assert refused.retry_after_ns == 6 * S  # r0 may be asked again at 7 s
    newcomer = gateway.on_arrival(arrival("b"), 2 * S)
    assert isinstance(newcomer, Refusal)
    assert newcomer.retry_after_ns == 5 * S


def test_an_engines_hour_is_told_as_an_hour() -> None:
    gateway = controller_of()
    gateway.on_arrival(arrival("a"), 0)
    (refused,) = gateway.on_refused_by_engine("a", 3_600 * S, 0)
    assert isinstance(refused, Refusal)
    assert refused.retry_after_ns == 3_600 * S  # ours are guesses, and never longer than five minutes


def test_a_time_that_has_passed_already_is_no_time_to_come_back() -> None:
    gateway = controller_of()
    gateway.on_arrival(arrival("a"), 0)
    assert gateway.on_refused_by_engine("a", 0, 0) == []
    assert gateway.on_tick(S - 1) == []  # as where it says nothing: a second
    assert [type(a) for a in gateway.on_tick(S)] == [Dispatch]


def test_a_short_back_off_is_waited_out_here() -> None:
    gateway = controller_of()
    gateway.on_arrival(arrival("a"), 0)
    assert gateway.on_refused_by_engine("a", S // 2, 0) == []
    assert gateway.on_tick(S // 2 - 1) == []
    assert [type(a) for a in gateway.on_tick(S // 2)] == [Dispatch]


def test_a_request_is_given_up_when_engines_refuse_it_again_and_again() -> None:
    gateway = controller_of()
    now, answers = 0, [gateway.on_arrival(arrival("a"), 0)]
    while isinstance(answers[0], Dispatch):
        now += S
        gateway.on_refused_by_engine("a", None, now)
        now += S
        answers = gateway.on_tick(now) or [Refusal(id="a", status=429, code="gone", reason="")]
    assert gateway.snapshot(now).counters.engine_refusals == 3
    assert gateway.snapshot(now).counters.refused == 1


def test_a_replica_is_left_alone_when_it_failed_too_often() -> None:
    gateway = controller_of(replica_rule("r0"), replica_rule("r1"), breaker=BreakerRule(failures=2, open_ns=5 * S))
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


def test_one_trouble_counts_once_when_many_requests_break_by_it() -> None:
    gateway = controller_of(replica_rule("r0"), breaker=BreakerRule(failures=2, open_ns=S))
    for number in range(12):
        assert isinstance(gateway.on_arrival(arrival(f"a{number}", 1), 0), Dispatch)
    for number in range(10):  # an engine that froze: all its requests are given up together
        gateway.on_finish(f"a{number}", Ended(kind=EndKind.FAILED), 5 * S + number)
    assert gateway.snapshot(5 * S).replicas[0].available_at_ns == 6 * S + 1  # by the second of them
    assert isinstance(gateway.on_arrival(arrival("b", 1), 7 * S), Dispatch)
    gateway.on_finish("a10", Ended(kind=EndKind.FAILED), 7 * S)  # sent before it was left alone
    assert isinstance(gateway.on_arrival(arrival("c", 1), 7 * S), Dispatch)
    gateway.on_finish("b", Ended(kind=EndKind.FAILED), 8 * S)  # sent after: twice as long now
    gateway.on_finish("c", Ended(kind=EndKind.FAILED), 8 * S)
    assert gateway.snapshot(8 * S).replicas[0].available_at_ns == 10 * S


def test_503_says_when_to_come_back_when_no_replica_is_up() -> None:
    gateway = controller_of()
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
    gateway = controller_of(router=router)
    gateway.on_arrival(arrival("a", 90), 0)
    gateway.on_arrival(arrival("b", 80), 0)
    sent = gateway.on_replica("r0", ReplicaState.RESTARTED, S)
    assert [a.id for a in sent] == ["b"]
    assert ("forget", "r0") in router.told
    assert gateway.on_finish("a", Ended(kind=EndKind.FAILED), 2 * S) == []
    assert held_blocks(gateway) == 80
    assert gateway.snapshot(2 * S).counters.failed == 1


def test_a_thrashing_engine_gets_less_when_it_preempts_although_the_books_say_it_fits() -> None:  # inference-sim#1167
    gateway = controller_of()
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
    gateway = controller_of()
    gateway.on_arrival(arrival("a", 20), 0)
    for now_ns in (S, 2 * S):
        gateway.on_sample("r0", EngineSample(at_ns=now_ns, kv_usage=0.7), now_ns)
        stage = gateway.snapshot(now_ns).replicas[0].stages[0]
        assert stage.drift_blocks == 50
        assert stage.foreign_blocks == (0 if now_ns == S else 50)  # one sample may be a step old
    assert isinstance(gateway.on_arrival(arrival("b", 40), 2 * S), Wait)  # 100 - 20 - 50
    assert gateway.on_sample("r0", EngineSample(at_ns=3 * S, kv_usage=0.2), 3 * S) != []


def test_a_share_of_an_unknown_capacity_says_nothing() -> None:
    gateway = controller_of(replica_rule(capacity_blocks=1 << 50))
    for now_ns in (S, 2 * S):
        gateway.on_sample("r0", EngineSample(at_ns=now_ns, kv_usage=0.9), now_ns)
    assert held_blocks(gateway) == 0


def test_what_is_used_grows_with_the_prefill_when_the_room_is_taken_at_once() -> None:
    gateway = controller_of(replica_rule(capacity_blocks=1_000))
    gateway.on_arrival(arrival("a", 500, 100), 0)  # half a second at 1,000 tokens a second
    stages = [gateway.snapshot(ms * MS).replicas[0].stages[0] for ms in (0, 100, 600)]
    assert [stage.used_blocks for stage in stages] == [0, 100, 500]
    assert {stage.held_blocks for stage in stages} == {600}
    gateway.on_output("a", 40, S)
    assert gateway.snapshot(S).replicas[0].stages[0].used_blocks == 540


def test_a_replica_is_charged_at_selection_when_requests_come_at_once() -> None:  # sglang#27547
    gateway = controller_of(*(replica_rule(f"r{n}", capacity_blocks=1_000_000) for n in range(4)))
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


def test_a_second_end_changes_nothing() -> None:
    gateway = controller_of()
    gateway.on_arrival(arrival("a"), 0)
    gateway.on_finish("a", DONE, S)
    before = gateway.snapshot(S)
    assert gateway.on_finish("a", Ended(kind=EndKind.FAILED), S) == []
    assert gateway.cancel("a", S) == []
    assert gateway.on_first_token("a", S) == gateway.on_output("a", 9, S) == gateway.on_counted("a", 9, (), S) == []
    assert gateway.snapshot(S) == before


def test_a_client_that_leaves_while_queued_makes_no_difference_to_the_others() -> None:
    gateway = controller_of()
    gateway.on_arrival(arrival("a", 100), 0)
    gateway.on_arrival(arrival("b", 50), 0)
    gateway.on_arrival(arrival("c", 60), 0)
    assert gateway.cancel("b", S) == []
    assert [a.id for a in gateway.on_finish("a", DONE, 2 * S)] == ["c"]
    assert gateway.snapshot(2 * S).counters.cancelled == 1


def test_the_end_of_a_prefill_is_estimated_when_nobody_sees_the_first_token() -> None:
    gateway = controller_of(replica_rule(capacity_blocks=10_000, prefill_window_tokens=100))
    gateway.on_arrival(arrival("a", 500, streamed=False), 0)  # half a second of prefill
    assert isinstance(gateway.on_arrival(arrival("b", 500), 0), Wait)
    assert gateway.on_tick(S // 2 - 1) == []
    assert [a.id for a in gateway.on_tick(S // 2)] == ["b"]


def test_kv_token_time_is_what_was_held_over_time() -> None:
    gateway = controller_of()
    gateway.on_arrival(arrival("a", 40, 30), 0)
    gateway.on_output("a", 20, 2 * S)
    assert gateway.kv_token_ms("a", 3 * S) == 40 * 2_000 + 60 * 1_000
    gateway.on_finish("a", DONE, 3 * S)
    assert gateway.kv_token_ms("a", 3 * S) is None


def test_the_router_hears_whether_a_prompt_was_prefilled() -> None:
    router = LeastBacklog()
    gateway = controller_of(replica_rule("r0"), router=router)
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
    gateway = controller_of(router=router)
    gateway.on_arrival(arrival("a", 10, 5, streamed=False), 0)
    gateway.on_finish("a", DONE, S)
    assert router.told[-1] == ("end", "a", "r0", None, True, S)


def test_time_stands_still_when_a_clock_goes_backwards() -> None:
    gateway = controller_of(queue=QueueRule(longest_wait_ns=60 * S))
    gateway.on_arrival(arrival("a", 100), 100 * S)
    gateway.on_arrival(arrival("b", 90), 10 * S)
    assert gateway.on_tick(0) == []
    assert gateway.on_tick(160 * S - 1) == []
    assert len(gateway.on_tick(160 * S)) == 1


def test_a_negative_length_is_refused_where_it_is_made() -> None:
    with pytest.raises(ValueError, match="negative"):
        Arrival(id="a", tenant="t", model="m", input_tokens=-1, exact=True, output_tokens=0)


def test_nobody_is_counted_any_more_when_the_client_left_meanwhile() -> None:
    gateway = controller_of(queue=QueueRule(count_from_tokens=4, most_waiting=1))
    for number in range(3):  # each would find the queue full if the one before it still stood there
        waits = gateway.on_arrival(arrival(f"a{number}", 10, exact=False), number)
        assert isinstance(waits, Wait)
        assert waits.count
        gateway.cancel(f"a{number}", number)
