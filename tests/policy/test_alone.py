"""A prefill that would slow streams beyond their promise runs alone: after them, and before those that come."""

from __future__ import annotations

from dataclasses import replace

import pytest

from longproof.policy.actions import Dispatch, Wait
from longproof.policy.arrivals import Ended, EndKind
from longproof.policy.controller import Controller
from longproof.policy.controller_config import ControllerConfig, QueueRule, ReplicaRule, SloRule
from longproof.policy.pools import PoolRule
from longproof.policy.routing import PrefixRouter, RoutingRule
from longproof.testing.controllers import MS, LeastBacklog, S, arrival, replica_rule

DONE = Ended(kind=EndKind.COMPLETED)
LEFT = Ended(kind=EndKind.CANCELLED)


def rule_of(name: str = "r0", step_tokens: int | None = 100) -> ReplicaRule:
    """1,000 tokens a second: a step of 100 keeps a stream for 100 ms."""
    return replace(replica_rule(name, capacity_blocks=10_000), step_tokens=step_tokens)


def gateway_of(*rules: ReplicaRule, share: float = 0.5, itl_ms: int = 50) -> Controller:
    queue = QueueRule(age_bound_ns=10 * S, overdue_share=share)
    config = ControllerConfig(replicas=rules, slo=SloRule(itl_ns=itl_ms * MS), queue=queue)
    return Controller(config, LeastBacklog())


def streaming(gateway: Controller, name: str, at_ns: int) -> None:
    assert isinstance(gateway.on_arrival(arrival(name, 20, 100), at_ns), Dispatch)
    gateway.on_first_token(name, at_ns + 20 * MS)


def with_overdue_giant() -> Controller:
    """A chat streams since 0; the giant came at 1 s and is overdue since 11 s."""
    gateway = gateway_of(rule_of())
    streaming(gateway, "chat", 0)
    assert isinstance(gateway.on_arrival(arrival("giant", 5_000, 1_000), S), Wait)
    assert gateway.on_tick(11 * S + 1) == []
    return gateway


def test_it_goes_when_the_last_stream_has_ended_and_others_wait_for_its_first_token() -> None:
    gateway = with_overdue_giant()
    assert isinstance(gateway.on_arrival(arrival("a", 20, 10), 12 * S), Wait)
    assert [action.id for action in gateway.on_finish("chat", DONE, 13 * S)] == ["giant"]
    assert isinstance(gateway.on_arrival(arrival("b", 20, 10), 14 * S), Wait)
    assert gateway.on_tick(15 * S) == []
    assert [action.id for action in gateway.on_first_token("giant", 18 * S)] == ["a", "b"]


def test_the_next_one_lets_the_others_have_their_share_of_the_time() -> None:
    gateway = with_overdue_giant()
    gateway.on_arrival(arrival("next", 5_000, 1_000), 2 * S)
    gateway.on_finish("chat", DONE, 13 * S)
    gateway.on_first_token("giant", 18 * S)
    gateway.on_finish("giant", DONE, 18 * S)  # "next" goes at once: nothing streams
    gateway.on_first_token("next", 23 * S)
    gateway.on_arrival(arrival("third", 5_000), 23 * S)
    streaming(gateway, "a", 24 * S)
    # overdue at 33 s; it may be emptied for from 23 s + (23 s - 18 s) on
    assert gateway.on_tick(33 * S + 1) == []
    assert isinstance(gateway.on_arrival(arrival("b", 20, 10), 34 * S), Wait)


def test_a_small_share_keeps_the_streams_for_longer() -> None:
    gateway = gateway_of(rule_of(), share=0.1)
    gateway.on_arrival(arrival("giant", 5_000, 1_000), 0)
    streams_from = 5 * S
    assert isinstance(gateway.on_arrival(arrival("a", 20, 10), S), Wait)
    gateway.on_first_token("giant", streams_from)  # alone for 5 s: the others have 45 s
    gateway.on_first_token("a", streams_from + 20 * MS)
    gateway.on_arrival(arrival("next", 5_000, 1_000), 30 * S)
    assert gateway.on_tick(45 * S) == []
    assert isinstance(gateway.on_arrival(arrival("b", 20, 10), 49 * S), Dispatch)


@pytest.mark.parametrize("end", [LEFT, Ended(kind=EndKind.FAILED)])
def test_others_go_on_when_it_ends_before_its_first_token(end: Ended) -> None:
    gateway = gateway_of(rule_of())
    gateway.on_arrival(arrival("giant", 5_000, 1_000), 0)
    gateway.on_arrival(arrival("a", 20, 10), S)
    assert [action.id for action in gateway.on_finish("giant", end, 2 * S)] == ["a"]


def test_others_go_on_when_the_engine_would_not_have_it() -> None:
    gateway = gateway_of(rule_of())
    gateway.on_arrival(arrival("giant", 5_000, 1_000), 0)
    gateway.on_arrival(arrival("a", 20, 10), S)
    gateway.on_refused_by_engine("giant", 100 * MS, 2 * S)
    assert "a" in [action.id for action in gateway.on_tick(3 * S)]


def test_it_is_sent_elsewhere_when_another_replica_has_no_streams() -> None:
    gateway = gateway_of(rule_of("r0"), rule_of("r1"))
    streaming(gateway, "chat", 0)
    sent = gateway.on_arrival(arrival("giant", 5_000, 1_000), S)
    assert isinstance(sent, Dispatch)
    assert sent.replica == "r1"
    sent = gateway.on_arrival(arrival("a", 20, 10), S)
    assert isinstance(sent, Dispatch)
    assert sent.replica == "r0"


@pytest.mark.parametrize(
    ("step_tokens", "itl_ms", "input_tokens"),
    [
        (8, 50, 5_000),  # 10 + 8 ms a token is within 50: the engine gives it little of each step
        (100, 200, 5_000),  # 10 + 100 ms is within 200
        (100, 50, 100),  # one step
        (None, 50, 5_000),  # nobody knows
    ],
)
def test_nobody_stands_alone_when_streams_keep_their_promise_beside_it(
    step_tokens: int | None, itl_ms: int, input_tokens: int
) -> None:
    gateway = gateway_of(rule_of(step_tokens=step_tokens), itl_ms=itl_ms)
    streaming(gateway, "chat", 0)
    assert isinstance(gateway.on_arrival(arrival("giant", input_tokens), S), Dispatch)
    assert isinstance(gateway.on_arrival(arrival("a", 20, 10), S), Dispatch)


def test_it_waits_like_any_other_when_its_bound_was_held_while_it_was_counted() -> None:
    gateway = gateway_of(rule_of())
    streaming(gateway, "chat", 0)
    waits = gateway.on_arrival(arrival("giant", 9_000, exact=False), S)
    assert isinstance(waits, Wait)
    assert gateway.on_counted("giant", 5_000, (), S + MS) == []
    assert [action.id for action in gateway.on_finish("chat", DONE, 2 * S)] == ["giant"]


def test_streams_may_end_first_when_it_has_waited_in_line_for_long() -> None:
    gateway = gateway_of(rule_of())
    gateway.on_arrival(arrival("giant", 5_000, 1_000), 0)
    gateway.on_arrival(arrival("next", 5_000, 1_000), 0)
    gateway.on_arrival(arrival("a", 20, 10), S)
    assert [action.id for action in gateway.on_first_token("giant", 30 * S)] == ["a"]
    gateway.on_first_token("a", 30 * S + 20 * MS)
    # the others had waited for 30 s, and have as long for themselves: emptied from 60 s on
    assert gateway.on_tick(59 * S) == []
    assert isinstance(gateway.on_arrival(arrival("b", 20, 10), 59 * S), Dispatch)
    assert gateway.on_tick(60 * S) == []
    assert isinstance(gateway.on_arrival(arrival("c", 20, 10), 61 * S), Wait)
    for name in ("giant", "a"):
        assert gateway.on_finish(name, DONE, 62 * S) == []
    assert [action.id for action in gateway.on_finish("b", DONE, 63 * S)] == ["next"]


def test_it_answers_alone_as_well_when_that_is_soon_done() -> None:
    gateway = gateway_of(rule_of())
    # 125 tokens at 10 ms are a quarter of 5,000 tokens at 1 ms
    gateway.on_arrival(arrival("giant", 5_000, 125), 0)
    gateway.on_arrival(arrival("a", 20, 10), S)
    assert gateway.on_first_token("giant", 5 * S) == []
    assert [action.id for action in gateway.on_finish("giant", DONE, 6 * S)] == ["a"]


# ── with a pool for the long ──────────────────────────────────────────────────────────────────────────────────────────


def pooled() -> Controller:
    """A replica for short requests and one for long ones, and chats about."""
    router = PrefixRouter(RoutingRule(pools=PoolRule(long_from_tokens=1_000, long_pool="long")))
    rules = [replace(rule_of(name), pool=name) for name in ("short", "long")]
    for rule in rules:
        router.follow(rule.name, block_tokens=rule.block_tokens, cache_blocks=10_000, events=False)
    queue = QueueRule(age_bound_ns=10 * S, overdue_share=0.5)
    return Controller(ControllerConfig(replicas=tuple(rules), slo=SloRule(itl_ns=50 * MS), queue=queue), router)


def test_it_waits_for_its_own_pool_when_the_one_for_chats_has_no_streams() -> None:
    gateway = pooled()
    where = {}
    for name in ("a", "b"):
        sent = gateway.on_arrival(arrival(name, 20, 100), 0)
        assert isinstance(sent, Dispatch)
        where[sent.replica] = name
        gateway.on_first_token(name, 20 * MS)
    gateway.on_finish(where["short"], DONE, S)
    assert isinstance(gateway.on_arrival(arrival("giant", 5_000, 1_000), 2 * S), Wait)
    (sent,) = gateway.on_finish(where["long"], DONE, 3 * S)
    assert isinstance(sent, Dispatch)
    assert (sent.id, sent.replica) == ("giant", "long")


def test_chats_keep_their_replica_when_a_second_giant_is_overdue_beside_the_first() -> None:
    gateway = pooled()
    assert isinstance(gateway.on_arrival(arrival("chat", 20, 100), 0), Dispatch)
    gateway.on_finish("chat", DONE, S)
    first = gateway.on_arrival(arrival("first", 7_000, 1_000), S)
    assert isinstance(first, Dispatch)
    assert first.replica == "long"
    assert isinstance(gateway.on_arrival(arrival("second", 1_500, 1_000), S), Wait)
    streaming(gateway, "a", 2 * S)
    assert gateway.on_tick(12 * S) == []  # overdue since 11 s, and not sent beside the stream
    assert gateway.snapshot(12 * S).replicas[0].emptying_for is None
    streaming(gateway, "b", 13 * S)
    assert gateway.on_finish("a", DONE, 14 * S) == []
    assert gateway.on_finish("b", DONE, 14 * S) == []
    assert [action.id for action in gateway.on_first_token("first", 21 * S)] == []
    assert [action.id for action in gateway.on_finish("first", DONE, 40 * S)] == ["second"]
