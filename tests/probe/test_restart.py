"""The restart probe against the lying engine, restarted by a command as an operator would."""

from __future__ import annotations

import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from probing import Allowance, findings, probing, requests, said

from longproof.asking.context import BudgetSpent
from longproof.asking.recovery import EngineGone
from longproof.asking.restarter import CommandRestarter, Restarted, Restarter
from longproof.claim.findings import restart as reader
from longproof.claim.statements import Finding, NotShown, Standing, Statement
from longproof.domain.measure import Measured
from longproof.evidence.records import NoteBody
from longproof.probe import restart
from longproof.probe.restart import RestartPlan
from longproof.testing.dialects import VLLM
from longproof.testing.lies_of_load import RestartChanges
from longproof.testing.lying_engine import HONEST, LyingEngine, lying_engine

PLAN = RestartPlan(
    lengths=(200, 800), largest_tokens=2_000, warm_tokens=800, limit_tokens=8_192, repeats=3, deadline_s=120.0
)
ENGINE = HONEST.but(dialect=VLLM, prefill_tokens_per_s=20_000.0)


OTHER = {"restart.failed", "restart.changed"}
"""What an honest engine never shows. Whether its times moved depends on the machine: seeds and claims tell that."""


def by_command(server: LyingEngine) -> CommandRestarter:
    return CommandRestarter(f"{sys.executable} -m longproof.testing.restart {server.control_url}")


async def run(
    server: LyingEngine, directory: Path, *, plan: RestartPlan = PLAN, restarter: Restarter | None = None
) -> list[Statement | Finding | NotShown]:
    async with probing(server.url, directory) as ctx:
        await restart.run(replace(ctx, restarter=restarter or by_command(server)), plan)
        return said(ctx, reader.read)


async def test_the_same_cells_are_asked_on_both_sides_when_it_restarts(tmp_path: Path) -> None:
    async with (server := lying_engine(ENGINE)), probing(server.url, tmp_path) as ctx:
        await restart.run(replace(ctx, restarter=by_command(server)), PLAN)
        sent = list(requests(ctx))
        lives = server.lives
        notes = [r.body.what for r in ctx.journal.records if isinstance(r.body, NoteBody)]
    assert lives == 2
    arm = [key.removeprefix("restart/before/") for key in sent if key.startswith("restart/before/")]
    assert arm == [key.removeprefix("restart/after/") for key in sent if key.startswith("restart/after/")]
    assert len(arm) == 3 * (2 + 1 + 2) + 1
    assert sent.index("restart/first") == len(arm)
    assert notes == ["restarted", "facts_compared"]
    assert restart.cost(PLAN, 8) == (len(sent), 2 * (3 * 4_640 + 8_193) + 208)


async def test_an_honest_engine_is_the_same_when_it_was_restarted(tmp_path: Path) -> None:
    async with (server := lying_engine(ENGINE)):
        found = await run(server, tmp_path)
    assert not OTHER & set(findings(found))
    statements = {item.metric: item for item in found if isinstance(item, Statement)}
    assert statements["restart_largest"].standing is Standing.SHOWN
    assert "restart_time" in statements
    assert statements["restart_ttft_ratio"].interval is not None


async def test_every_difference_is_named_when_another_engine_comes_back(tmp_path: Path) -> None:
    """Half the pool, no prefix cache."""
    lie = RestartChanges(kv_scale=0.5, cache="off")
    async with (server := lying_engine(ENGINE.lying(lie))):
        found = await run(server, tmp_path)
    named = {item.id: item for item in found if isinstance(item, Finding)}
    changed, moved = named["restart.changed"], named["restart.moved"]
    assert {"kv_blocks", "prefix_caching"} <= changed.details.keys()
    assert "again.cached.800" in moved.details


async def test_a_smaller_window_moves_the_largest_request_when_it_comes_back(tmp_path: Path) -> None:
    async with (server := lying_engine(ENGINE.lying(RestartChanges(window_scale=0.2, kv_scale=1.0)))):
        found = await run(server, tmp_path)
    moved = next(item for item in found if isinstance(item, Finding) and item.id == "restart.moved")
    assert moved.details["largest.outcome.2000"] == "completed → refused for length"
    largest = next(item for item in found if isinstance(item, Statement) and item.metric == "restart_largest")
    assert largest.standing is Standing.REFUTED


async def test_a_failed_command_is_a_caution_when_the_server_still_answers(tmp_path: Path) -> None:
    async with (server := lying_engine(ENGINE)):
        restarter = CommandRestarter("echo no permission; exit 4")
        found = await run(server, tmp_path, restarter=restarter)
    [failed] = [item for item in found if isinstance(item, Finding)]
    assert (failed.id, failed.severity.value, failed.details["exit_code"]) == ("restart.failed", "caution", "4")
    assert "no permission" in failed.text


async def test_the_run_ends_with_a_fault_when_the_server_does_not_come_back(tmp_path: Path) -> None:
    server = lying_engine(ENGINE)

    class Killer:
        how = "kill"

        async def restart(self) -> object:
            server.crash()
            return await CommandRestarter("true").restart()

    async with server, probing(server.url, tmp_path) as ctx:
        with pytest.raises(EngineGone):
            await restart.run(replace(ctx, restarter=Killer()), replace(PLAN, deadline_s=1.0))  # type: ignore[arg-type]
        found = said(ctx, reader.read)
    assert [(item.id, item.severity.value) for item in found if isinstance(item, Finding)] == [
        ("restart.failed", "fault")
    ]


class Later:
    """A restart that returns at once: the server is down, and listens again half a second later."""

    how = "later"

    def __init__(self, server: LyingEngine) -> None:
        self._server = server

    async def restart(self) -> Restarted:
        self._server.crash()
        threading.Timer(0.5, self._server.start).start()
        return Restarted(took_ns=1)


async def test_the_server_is_asked_until_it_answers_when_it_takes_time_to_start(tmp_path: Path) -> None:
    async with (server := lying_engine(ENGINE)):
        found = await run(server, tmp_path, restarter=Later(server))
    [ready] = [item for item in found if isinstance(item, Statement) and item.metric == "restart_time"]
    assert isinstance(ready.value, Measured)
    assert ready.value.value > 0.45
    assert not OTHER & set(findings(found))


async def test_nothing_is_restarted_when_nobody_can(tmp_path: Path) -> None:
    async with (server := lying_engine(ENGINE)), probing(server.url, tmp_path) as ctx:
        await restart.run(ctx, PLAN)
        assert not requests(ctx)
        assert [item.topic for item in said(ctx, reader.read) if isinstance(item, NotShown)] == ["restart"]


async def test_it_restarts_once_when_a_run_resumes(tmp_path: Path) -> None:
    async with (server := lying_engine(ENGINE)):
        restarter = by_command(server)
        async with probing(server.url, tmp_path, allowance=Allowance(20)) as ctx:
            with pytest.raises(BudgetSpent):
                await restart.run(replace(ctx, restarter=restarter), PLAN)
            first = requests(ctx)
        await run(server, tmp_path, restarter=restarter)
        assert server.lives == 2
        async with probing(server.url, tmp_path) as ctx:
            both = requests(ctx)
    assert {key: both[key] for key in first} == first
    assert len(both) == 2 * 16 + 1


async def test_a_third_arm_is_asked_when_it_stood_idle(tmp_path: Path) -> None:
    plan = replace(PLAN, idle_ns=50_000_000, warm_tokens=0, limit_tokens=None)
    async with (server := lying_engine(ENGINE)):
        found = await run(server, tmp_path, plan=plan)
    assert not OTHER & set(findings(found))
    assert {item.metric for item in found if isinstance(item, Statement)} >= {"restart_ttft_ratio", "idle_ttft_ratio"}
