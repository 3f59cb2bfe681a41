"""Engines that come back as something else, and claims that expire while they are enforced."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from longproof.domain.deployment import Deployment
from longproof.gateway.config import config_from
from longproof.gateway.decision_codec import LogHeader
from longproof.gateway.decisions import DecisionLog, replay_log
from longproof.gateway.introduce import asked_again, meet
from longproof.gateway.launched import running_replicas
from longproof.gateway.recognise import Recognition
from longproof.policy.actions import Dispatch, Refusal
from longproof.policy.claim_gate import OnExcess, ProvenLimits
from longproof.policy.controller import Controller
from longproof.policy.controller_config import ControllerConfig
from longproof.policy.decision_record import Recorded
from longproof.policy.routing import PrefixRouter, RoutingRule
from longproof.testing.controllers import S, arrival, replica_rule
from longproof.testing.dialects import VLLM
from longproof.testing.fake_clock import FakeClock
from longproof.testing.lying_engine import HONEST, lying_engine

MODEL = "fake-135m"


def limits(problem: str | None = None) -> ProvenLimits:
    return ProvenLimits(model="m", claim="c", admitted_tokens=50, on_excess=OnExcess.WARN, problem=problem)


class Told:
    """A controller that is told of claims."""

    def __init__(self) -> None:
        self.problems: list[str | None] = []

    def on_claims(self, proven: Mapping[str, ProvenLimits], _now_ns: int) -> None:
        self.problems += [one.problem for one in proven.values()]


async def until(holds: Callable[[], bool]) -> None:
    end_s = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < end_s
        await asyncio.sleep(0.01)


async def test_an_engine_that_comes_back_as_another_is_told_of_and_its_claim_with_it() -> None:
    told, clock = Told(), FakeClock()

    def judge(running: Mapping[str, Sequence[Deployment]]) -> Mapping[str, ProvenLimits]:
        (deployment,) = running[MODEL]
        limit = deployment.known()["configured_limit_tokens"]
        return {MODEL: limits(None if limit == "8192" else f"the limit is {limit}")}

    engine = lying_engine(HONEST.but(dialect=VLLM))
    with engine as url:
        config = config_from({"replica": [{"name": "a", "url": url}]}, where=Path("fleet.toml"))
        met = await meet(running_replicas(config), within_s=10, count_workers=1)
        (one,) = met.replicas
        recognition = Recognition(
            {"a": one.replica.models},
            {"a": one.deployment},
            lambda _: asked_again(one),
            judge,
            {MODEL: limits()},
            told,
            clock,
        )
        await asyncio.to_thread(engine.restart)
        recognition.back("a")
        await until(lambda: not recognition._tasks)
        assert (recognition.problems(), told.problems) == ([], [])
        engine.behaviour = engine.behaviour.but(window_tokens=2_048)
        await asyncio.to_thread(engine.restart)
        recognition.back("a")
        await until(lambda: bool(told.problems))
        assert told.problems == ["the limit is 2048"]
        (said,) = recognition.problems()
        assert "configured_limit_tokens is 2048, was 8192" in said
        engine.behaviour = engine.behaviour.but(window_tokens=8_192)
        await asyncio.to_thread(engine.restart)
        recognition.back("a")
        await until(lambda: len(told.problems) == 2)
        assert (told.problems[1], recognition.problems()) == (None, [])
        await recognition.close()
        await met.aclose()


async def test_a_claim_that_expires_while_it_is_enforced_says_so() -> None:
    told, clock = Told(), FakeClock()  # 2026-01-01
    judged: list[int] = []

    def judge(_: Mapping[str, Sequence[Deployment]]) -> Mapping[str, ProvenLimits]:
        judged.append(clock.wall().day)
        return {"m": limits("expired" if clock.wall().day > 2 else None)}

    recognition = Recognition({}, {}, lambda _: asyncio.Future(), judge, {"m": limits()}, told, clock, 0.001)
    recognition.start()
    await asyncio.sleep(0)  # it has seen what day it is
    clock.advance(24 * 3_600 * S)
    await until(lambda: judged == [2])
    assert told.problems == []  # another day, and it holds
    clock.advance(24 * 3_600 * S)
    await until(lambda: bool(told.problems))
    assert (judged, told.problems) == ([2, 3], ["expired"])
    await recognition.close()


def test_what_claims_say_changes_answers_from_then_on_and_is_replayed(tmp_path: Path) -> None:
    rules = ControllerConfig(replicas=(replica_rule(),), proven={"m": limits()})
    log = DecisionLog(tmp_path / "decisions.jsonl", LogHeader(config=rules, routing=RoutingRule()))
    router = PrefixRouter()
    router.follow("r0", block_tokens=1, cache_blocks=None, events=True)
    controller = Recorded(Controller(rules, router), log.sink)
    first = controller.on_arrival(arrival("a", 10), 0)
    controller.on_claims({"m": limits("expired")}, S)
    second = controller.on_arrival(arrival("b", 10), 2 * S)
    controller.on_claims({"m": ProvenLimits(model="m", admitted_tokens=5)}, 3 * S)
    third = controller.on_arrival(arrival("c", 10), 4 * S)
    assert isinstance(first, Dispatch)
    assert first.warnings == ()
    assert isinstance(second, Dispatch)
    assert second.warnings == ("claim-problem: expired",)
    assert isinstance(third, Refusal)
    assert third.limit == 5
    assert [claim.problem for claim in controller.snapshot(5 * S).claims] == [None]
    log.close()
    found = replay_log(log.path)
    assert found.same
    assert (found.inputs, found.sent, found.refused) == (5, 2, 1)
