"""How fast streams are, and what those that nobody sees should be by now."""

from __future__ import annotations

from dataclasses import replace

from longproof.policy.controller import Controller
from longproof.policy.controller_config import ControllerConfig
from longproof.policy.decode_pace import DecodePace
from longproof.testing.controllers import MS, LeastBacklog, S, arrival, replica_rule


def test_the_given_pace_holds_until_enough_was_seen() -> None:
    pace = DecodePace(20 * MS)
    pace.seen(63, 63 * 40 * MS)
    assert pace.ns_per_token == 20 * MS
    pace.seen(63, 63 * 40 * MS)
    assert pace.ns_per_token == 40 * MS


def test_later_observations_weigh_more() -> None:
    pace = DecodePace(20 * MS)
    for took_ms in (10, 30):
        for _ in range(200):
            pace.seen(16, 16 * took_ms * MS)
    assert 29 * MS < pace.ns_per_token <= 30 * MS


def test_an_answer_that_nobody_sees_grows_at_the_pace_of_the_streams() -> None:
    rule = replace(replica_rule(capacity_blocks=10_000), learn_decode=True)
    gateway = Controller(ControllerConfig(replicas=(rule,)), LeastBacklog())
    gateway.on_arrival(arrival("stream", 1, 1_000), 0)
    gateway.on_first_token("stream", 1 * MS)
    for tokens in (50, 100):
        gateway.on_output("stream", tokens, 1 * MS + (tokens - 1) * 40 * MS)
    # 100 input tokens at 1,000 a second: prefilled at 10.1 s, by estimate
    gateway.on_arrival(arrival("plain", 100, 200, streamed=False), 10 * S)
    gateway.on_tick(10 * S + 100 * MS)
    (stage,) = gateway.snapshot(10 * S + 2_100 * MS).replicas[0].stages
    assert stage.used_blocks == (1 + 100) + (100 + 50)  # 2 s at 40 ms a token
    (stage,) = gateway.snapshot(60 * S).replicas[0].stages
    assert stage.used_blocks == (1 + 100) + (100 + 200)  # never more than it may
