"""Requests that were let in by their upper bound: where they go once counted, and what they cost until then."""

from __future__ import annotations

from longproof.domain.kv_event import KvStored
from longproof.policy.actions import Dispatch
from longproof.policy.controller import Controller
from longproof.policy.controller_config import ControllerConfig
from longproof.policy.routing import PrefixRouter
from longproof.testing.controllers import LeastBacklog, S, arrival, replica_rule


def test_a_counted_request_goes_where_its_prefix_is_when_its_bound_was_held_elsewhere() -> None:
    rules = tuple(replica_rule(name, capacity_blocks=10_000, prefill_window_tokens=100) for name in ("r0", "r1"))
    router = PrefixRouter()
    for name in ("r0", "r1"):
        router.follow(name, block_tokens=1, cache_blocks=10_000, events=True)
    gateway = Controller(ControllerConfig(replicas=rules), router)
    names = tuple(range(1, 2_001))
    gateway.on_kv_event("r1", KvStored(blocks=names), 0)
    gateway.on_arrival(arrival("bound", 5_000, exact=False), 0)  # held somewhere: its names are not known yet
    busy = gateway.on_arrival(arrival("busy", 2_150, blocks=(*names, 9_000)), 0)  # closes the window of r1
    assert isinstance(busy, Dispatch)
    assert busy.replica == "r1"
    actions = gateway.on_counted("bound", 2_001, names, 0)
    actions += gateway.on_first_token("busy", S)
    (sent,) = [action for action in actions if action.id == "bound"]
    assert isinstance(sent, Dispatch)
    assert (sent.replica, sent.cached_tokens) == ("r1", 2_000)


def test_an_upper_bound_is_no_backlog_while_it_is_counted() -> None:
    rule = replica_rule(capacity_blocks=100_000, prefill_window_tokens=1_000)
    gateway = Controller(ControllerConfig(replicas=(rule,)), LeastBacklog())
    gateway.on_arrival(arrival("bound", 50_000, exact=False), 0)
    seen = gateway.snapshot(0).replicas[0]
    assert (seen.pending_prefill_tokens, seen.stages[0].held_blocks) == (0, 50_000)
    assert isinstance(gateway.on_arrival(arrival("next", 10), 0), Dispatch)
