"""A prefill/decode pair in the books: a stage that holds the input until it was handed on, and one that holds all."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longproof.domain.engine_metrics import preempted, usage_of_side
from longproof.domain.events import EngineSample
from longproof.policy.actions import Dispatch, Refusal, Wait
from longproof.policy.arrivals import Ended, EndKind
from longproof.policy.controller import Controller
from longproof.policy.controller_config import ControllerConfig, ReplicaRule, WatermarkRule
from longproof.policy.ledger import Pool
from longproof.policy.need import BlockNeed
from longproof.testing.controllers import LeastBacklog, S, arrival, replica_rule

DONE = Ended(kind=EndKind.COMPLETED)


def pair_rule(prefill_blocks: int = 50, decode_blocks: int = 100) -> ReplicaRule:
    pools = tuple(
        Pool(stage=stage, capacity_blocks=blocks, need=BlockNeed(block_tokens=1))
        for stage, blocks in (("prefill", prefill_blocks), ("decode", decode_blocks))
    )
    return replace(replica_rule(), pools=pools, prefill_stages=("prefill",))


def pair(prefill_blocks: int = 50, decode_blocks: int = 100) -> Controller:
    config = ControllerConfig(
        replicas=(pair_rule(prefill_blocks, decode_blocks),), watermark=WatermarkRule(stop=1.0, resume=1.0)
    )
    return Controller(config, LeastBacklog())


def held(gateway: Controller) -> dict[str, int]:
    return {stage.stage: stage.held_blocks for stage in gateway.snapshot(0).replicas[0].stages}


def test_the_prefill_side_holds_the_input_until_the_first_token() -> None:
    gateway = pair()
    gateway.on_arrival(arrival("a", 40, 20), 0)
    assert held(gateway) == {"prefill": 40, "decode": 60}
    gateway.on_first_token("a", S)
    assert held(gateway) == {"prefill": 0, "decode": 60}
    gateway.on_finish("a", DONE, 2 * S)
    assert held(gateway) == {"prefill": 0, "decode": 0}


def test_another_waits_for_the_prefill_side_alone_when_the_decode_side_has_room() -> None:
    gateway = pair()
    gateway.on_arrival(arrival("a", 40, 5), 0)
    # 40 + 20 inputs are more than 50; 45 + 45 are less than 100
    assert isinstance(gateway.on_arrival(arrival("b", 20, 25), 0), Wait)
    (sent,) = gateway.on_first_token("a", S)
    assert isinstance(sent, Dispatch)
    assert sent.id == "b"


def test_outputs_take_no_room_on_the_prefill_side_when_they_are_long() -> None:
    gateway = pair()
    assert isinstance(gateway.on_arrival(arrival("a", 20, 35), 0), Dispatch)  # 55 in all, of 50 there
    assert isinstance(gateway.on_arrival(arrival("b", 25, 10), 0), Dispatch)


@pytest.mark.parametrize(("input_tokens", "output_tokens", "limit", "actual"), [(60, 10, 50, 60), (40, 70, 100, 110)])
def test_a_request_is_refused_by_the_side_it_can_never_fit(
    input_tokens: int, output_tokens: int, limit: int, actual: int
) -> None:
    refused = pair().on_arrival(arrival("a", input_tokens, output_tokens), 0)
    assert isinstance(refused, Refusal)
    assert (refused.status, refused.limit, refused.actual) == (400, limit, actual)


@given(
    st.lists(st.tuples(st.integers(1, 60), st.integers(0, 60)), max_size=30), st.integers(1, 80), st.integers(1, 120)
)
def test_no_side_is_ever_overfull_and_all_end_when_any_requests_come(
    shapes: list[tuple[int, int]], prefill_blocks: int, decode_blocks: int
) -> None:
    gateway, running, done = pair(prefill_blocks, decode_blocks), list[str](), set[str]()
    now = 0

    def take(actions: list[object]) -> None:
        running.extend(action.id for action in actions if isinstance(action, Dispatch))
        done.update(action.id for action in actions if isinstance(action, Refusal))

    for number, (input_tokens, output_tokens) in enumerate(shapes):
        fits = input_tokens <= prefill_blocks and input_tokens + output_tokens <= decode_blocks
        decision = gateway.on_arrival(arrival(f"{number}", input_tokens, output_tokens), now)
        assert isinstance(decision, Refusal) != fits
        take([decision])
    while running:
        now += S
        stages = held(gateway)
        assert stages["prefill"] <= prefill_blocks
        assert stages["decode"] <= decode_blocks
        one = running.pop(0)
        take(list(gateway.on_first_token(one, now)))
        take(list(gateway.on_finish(one, DONE, now)))
        done.add(one)
    assert len(done) == len(shapes)
    assert held(gateway) == {"prefill": 0, "decode": 0}


def sample(at_ns: int, **values: float) -> EngineSample:
    told = {f'{side}.vllm:kv_cache_usage_perc{{engine="0"}}': usage for side, usage in values.items()}
    return EngineSample(at_ns=at_ns, kv_usage=max(values.values()), running=0, waiting=0, values=told)


def test_somebody_elses_blocks_are_seen_side_by_side() -> None:
    gateway = pair()
    for at_ns in (S, 2 * S):  # only what two samples in a row show
        gateway.on_sample("r0", sample(at_ns, prefill=0.4, decode=0.1), at_ns)
    # of 50 and of 100
    assert held(gateway) == {"prefill": 20, "decode": 10}
    gateway.on_sample("r0", sample(3 * S, prefill=0.0, decode=0.0), 3 * S)
    assert held(gateway) == {"prefill": 0, "decode": 0}


def test_preemptions_of_both_sides_are_added_when_they_are_a_pair() -> None:
    name = 'vllm:num_preemptions_total{engine="0"}'
    before = EngineSample(at_ns=0, values={f"prefill.{name}": 1.0, f"decode.{name}": 2.0})
    after = EngineSample(at_ns=1, values={f"prefill.{name}": 2.0, f"decode.{name}": 5.0})
    assert preempted(before, after) == 4
    assert usage_of_side(before, "decode") is None
