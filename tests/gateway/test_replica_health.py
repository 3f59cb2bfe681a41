"""Up, down and restarted, from what came of reading metrics."""

from __future__ import annotations

from longproof.clock import NS_PER_S
from longproof.domain.events import EngineSample
from longproof.domain.fleet import ReplicaState
from longproof.gateway.replica_health import ReplicaHealth


def sample(tokens: float, name: str = 'vllm:prompt_tokens_total{engine="0"}') -> EngineSample:
    return EngineSample(at_ns=0, values={name: tokens})


def test_restarted_when_counters_fall() -> None:
    health = ReplicaHealth(up=True)
    assert health.answered(sample(100)) is None
    assert health.answered(sample(120)) is None
    assert health.answered(sample(3)) is ReplicaState.RESTARTED
    assert health.answered(sample(4)) is None


def test_nothing_is_told_when_a_counter_is_gone() -> None:
    health = ReplicaHealth(up=True)
    health.answered(sample(100))
    assert health.answered(sample(1, "vllm:num_requests_running")) is None


def test_down_at_the_second_refusal_and_restarted_when_it_answers_again() -> None:
    health = ReplicaHealth(up=True)
    health.answered(sample(100))
    assert health.refused("refused") is None
    assert health.answered(sample(100)) is None  # one slip is forgotten
    assert health.refused("refused") is None
    assert health.refused("refused") is ReplicaState.DOWN
    assert health.refused("refused") is None
    assert (health.up, health.reason) == (False, "refused")
    # even with counters that rose beyond the old ones: nobody keeps a cache while not listening
    assert health.answered(sample(500)) is ReplicaState.RESTARTED
    assert health.reason == ""


def test_up_when_it_was_never_seen_before() -> None:
    health = ReplicaHealth(up=False)
    assert health.refused("refused") is None
    assert health.refused("refused") is None
    assert health.answered(sample(0)) is ReplicaState.UP


def test_a_busy_engine_stays_up_when_it_is_silent_for_a_while_only() -> None:
    health = ReplicaHealth(up=True, silent_after_ns=60 * NS_PER_S)
    assert health.silent("time-out", 1 * NS_PER_S) is None
    assert health.silent("time-out", 60 * NS_PER_S) is None
    assert health.silent("time-out", 61 * NS_PER_S) is ReplicaState.DOWN
    # it was only silent: what it holds it holds still
    assert health.answered(sample(5)) is ReplicaState.UP


def test_it_is_up_when_it_answers_without_metrics() -> None:
    health = ReplicaHealth(up=False)
    assert health.answered(None) is ReplicaState.UP
    assert health.answered(None) is None


def test_a_pair_is_restarted_when_the_counters_of_one_side_fall() -> None:
    health = ReplicaHealth(up=True)

    def both(prefill: float, decode: float) -> EngineSample:
        name = 'vllm:prompt_tokens_total{engine="0"}'
        return EngineSample(at_ns=0, values={f"prefill.{name}": prefill, f"decode.{name}": decode})

    assert health.answered(both(100, 100)) is None
    assert health.answered(both(3, 120)) is ReplicaState.RESTARTED
    assert health.answered(both(4, 5)) is ReplicaState.RESTARTED
