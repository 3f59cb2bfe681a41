"""Of what is held, what is in the cache by now."""

from __future__ import annotations

from dataclasses import replace

import pytest

from longproof.domain.events import EngineSample
from longproof.policy.controller import Controller
from longproof.policy.controller_config import ControllerConfig, WatermarkRule
from longproof.testing.controllers import MS, LeastBacklog, S, arrival, replica_rule


def gateway_of(step_tokens: int | None = None) -> Controller:
    """Blocks of ten tokens, 1,000 tokens a second."""
    rule = replace(replica_rule(capacity_blocks=1_000, block_tokens=10), step_tokens=step_tokens)
    config = ControllerConfig(replicas=(rule,), watermark=WatermarkRule(stop=1.0, resume=1.0))
    return Controller(config, LeastBacklog())


def used(gateway: Controller, now_ns: int) -> int:
    return gateway.snapshot(now_ns).replicas[0].stages[0].used_blocks


@pytest.mark.parametrize("names", [(), tuple(range(100))])
def test_one_prefill_after_the_other_when_two_came_together(names: tuple[int, ...]) -> None:
    gateway = gateway_of()
    gateway.on_arrival(arrival("a", 1_000, blocks=names), 0)
    gateway.on_arrival(arrival("b", 500, blocks=tuple(-name - 1 for name in names[:50])), 0)
    assert [used(gateway, ms * MS) for ms in (0, 500, 2_000)] == [0, 50, 100]
    gateway.on_first_token("a", 2 * S)
    assert [used(gateway, ms * MS) for ms in (2_000, 2_300)] == [100, 130]


def test_a_steps_blocks_are_taken_when_it_begins() -> None:
    gateway = gateway_of(step_tokens=200)
    gateway.on_arrival(arrival("a", 1_000), 0)
    gateway.on_arrival(arrival("b", 90), 0)
    # at 450 ms two steps are done and the third is at hand; b gets what is left of the last step: nothing
    assert [used(gateway, ms * MS) for ms in (0, 450, 850)] == [20, 60, 100]
    gateway.on_arrival(arrival("c", 90), S)
    gateway.on_first_token("a", S)
    assert used(gateway, S) == 100 + 9 + 9  # both fit into one step


def test_nothing_is_filled_when_a_request_is_only_counted() -> None:
    gateway = gateway_of()
    gateway.on_arrival(arrival("a", 1_000, exact=False), 0)
    stage = gateway.snapshot(S).replicas[0].stages[0]
    assert (stage.held_blocks, stage.used_blocks) == (100, 0)


def test_a_prefix_that_streams_use_is_filled_whoever_else_waits_with_it() -> None:
    gateway, names = gateway_of(), tuple(range(50))
    gateway.on_arrival(arrival("a", 500, 10, blocks=names), 0)
    gateway.on_first_token("a", 500 * MS)
    gateway.on_arrival(arrival("b", 800, blocks=(*names, *range(100, 130))), S)
    assert used(gateway, S) == 50
    gateway.on_first_token("b", 2 * S)
    assert used(gateway, 2 * S) == 80


def test_a_prefill_goes_on_when_one_behind_it_is_cancelled() -> None:
    gateway = gateway_of()
    gateway.on_arrival(arrival("a", 1_000), 0)
    gateway.on_arrival(arrival("b", 500), 1)
    gateway.cancel("b", 400 * MS)
    assert used(gateway, 500 * MS) == 50


@pytest.mark.parametrize("names", [(), tuple(range(100))])
def test_a_prefill_goes_on_from_where_the_engine_shows_it_to_be(names: tuple[int, ...]) -> None:
    gateway = gateway_of()
    gateway.on_arrival(arrival("chat", 100, 10), 0)
    gateway.on_first_token("chat", 100 * MS)
    gateway.on_arrival(arrival("a", 1_000, blocks=names), S)
    gateway.on_sample("r0", EngineSample(at_ns=0, kv_usage=0.01, running=1, waiting=1), 1_200 * MS)
    # 10 of 1,000 blocks are the chat's: it had not begun, or its first step has not ended
    assert [used(gateway, ms * MS) for ms in (1_200, 1_500)] == [10, 40]
    gateway.on_sample("r0", EngineSample(at_ns=0, kv_usage=0.03, running=2, waiting=0), 2 * S)
    # 20 blocks in 800 ms: that is how fast it goes on
    assert [used(gateway, ms * MS) for ms in (2_000, 2_400, 9_000)] == [30, 40, 110]
    gateway.on_first_token("a", 3 * S)
    assert used(gateway, 3 * S) == 110


def test_a_figure_that_still_has_what_just_ended_is_not_taken_for_progress() -> None:
    gateway = gateway_of(step_tokens=100)
    gateway.on_arrival(arrival("chat", 500, 10), 0)
    gateway.on_first_token("chat", 500 * MS)
    gateway.on_arrival(arrival("a", 2_000), S)

    def sampled(usage: float, at_ms: int) -> int:
        gateway.on_sample("r0", EngineSample(at_ns=0, kv_usage=usage, running=2, waiting=0), at_ms * MS)
        return used(gateway, at_ms * MS)

    assert sampled(0.07, 1_200) == 50 + 20
    gateway.cancel("chat", 1_300 * MS)
    # 90 blocks, of which 50 were the chat's a moment ago: 700 tokens are not done in 200 ms, but 200 are
    assert sampled(0.09, 1_400) == 20 + 20
    assert sampled(0.05, 1_500) == 50  # 30 blocks in 300 ms
    # what looks like too much twice is what there is
    assert sampled(0.19, 1_600) == 60
    assert sampled(0.19, 1_700) == 190
