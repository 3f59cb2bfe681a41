"""Engines whose usage figure counts what is only cached: it must not look like somebody else's requests."""

from __future__ import annotations

from longproof.domain.events import EngineSample
from longproof.policy.actions import Dispatch
from longproof.policy.arrivals import Arrival
from longproof.policy.controller import Controller
from longproof.policy.controller_config import ControllerConfig
from longproof.testing.controllers import LeastBacklog, S, replica_rule


def _gateway() -> Controller:
    return Controller(ControllerConfig(replicas=(replica_rule(capacity_blocks=100),)), LeastBacklog())


def _arrival(name: str, tokens: int) -> Arrival:
    return Arrival(id=name, tenant="t", model="m", input_tokens=tokens, exact=True, output_tokens=1)


def _sample(gateway: Controller, at_s: int, usage: float, running: int) -> None:
    gateway.on_sample("r0", EngineSample(at_ns=at_s * S, kv_usage=usage, running=running, waiting=0), at_s * S)


def test_an_idle_engine_that_shows_usage_has_its_figure_ignored_from_then_on() -> None:
    gateway = _gateway()
    for at_s in (1, 2):
        _sample(gateway, at_s, 1.0, running=1)
    assert gateway.snapshot(2 * S).replicas[0].stages[0].foreign_blocks == 100
    _sample(gateway, 3, 1.0, running=0)  # nothing runs: what it shows is its prefix cache
    assert gateway.snapshot(3 * S).replicas[0].stages[0].foreign_blocks == 0
    for at_s in (4, 5):
        _sample(gateway, at_s, 1.0, running=1)
    assert gateway.snapshot(5 * S).replicas[0].stages[0].foreign_blocks == 0
    assert isinstance(gateway.on_arrival(_arrival("a", 40), 5 * S), Dispatch)
    assert isinstance(gateway.on_arrival(_arrival("b", 40), 5 * S), Dispatch)


def test_an_engine_that_is_empty_when_idle_is_believed_when_it_is_not() -> None:
    gateway = _gateway()
    _sample(gateway, 1, 0.0, running=0)
    for at_s in (2, 3):
        _sample(gateway, at_s, 0.7, running=4)
    assert gateway.snapshot(3 * S).replicas[0].stages[0].foreign_blocks == 70
