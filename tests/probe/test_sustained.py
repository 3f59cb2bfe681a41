"""The sustained probe against the lying engine: what is asked, what a resumed run does, and which lies are named."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from probing import Allowance, findings, probing, said

from longproof.asking.context import BudgetSpent
from longproof.claim.findings import sustained as reader
from longproof.claim.statements import Finding, NotShown, Statement
from longproof.engines.embedded import EmbeddedServer
from longproof.engines.registry import connect
from longproof.evidence.records import NoteBody, RequestBody, WindowBody
from longproof.probe import sustained
from longproof.probe.sustained import SustainedPlan
from longproof.testing.dialects import VLLM
from longproof.testing.lies_of_load import Degrade, LeakKv, LeakMemory
from longproof.testing.lying_engine import HONEST, LyingEngine, lying_engine

S = 1_000_000_000
ENGINE = HONEST.but(dialect=VLLM, slots=8, prefill_tokens_per_s=20_000.0, token_s=0.004)
"""200 tokens: 10 ms of prefill, then seven tokens of 4 ms: about 40 ms. 2,000 tokens: 100 ms."""
PLAN = SustainedPlan(short_tokens=200, long_tokens=2000, concurrency=2, windows=14, window_ns=S // 3)


async def run(server: LyingEngine, directory: Path, plan: SustainedPlan = PLAN) -> list[Statement | Finding | NotShown]:
    async with probing(server.url, directory) as ctx:
        await sustained.run(ctx, plan)
        return said(ctx, reader.read)


async def test_every_window_asks_the_same_and_no_prompt_twice_when_the_probe_runs(tmp_path: Path) -> None:
    async with (server := lying_engine(ENGINE)), probing(server.url, tmp_path) as ctx:
        await sustained.run(ctx, SustainedPlan(**{**_fields(PLAN), "windows": 3}))
        records = ctx.journal.records
    windows = [record for record in records if isinstance(record.body, WindowBody)]
    assert [window.key for window in windows] == ["sustained/0000", "sustained/0001", "sustained/0002"]
    sent = [record.body for record in records if isinstance(record.body, RequestBody)]
    assert len({body.prompt_sha256 for body in sent}) == len(sent)
    for index in range(3):
        longs = [body for body in sent if body.cell["window"] == index and body.cell["role"] == "long"]
        shorts = [body for body in sent if body.cell["window"] == index and body.cell["role"] == "short"]
        assert [body.cell["length"] for body in longs] == [2000, 2000]
        assert len(shorts) >= 4
    idle = [record.body for record in records if isinstance(record.body, NoteBody) and record.body.what == "idle"]
    assert [note.detail["kv_usage"] for note in idle] == [0.0, 0.0, 0.0]
    assert all("memory_bytes" in note.detail for note in idle)


def _fields(plan: SustainedPlan) -> dict[str, int | None]:
    return {name: getattr(plan, name) for name in SustainedPlan.__slots__}


async def test_a_resumed_run_goes_on_with_the_next_window_when_the_budget_had_ended_it(tmp_path: Path) -> None:
    async with (server := lying_engine(ENGINE)):
        async with probing(server.url, tmp_path, allowance=Allowance(2)) as ctx:
            with pytest.raises(BudgetSpent):
                await sustained.run(ctx, PLAN)
            assert [item.topic for item in said(ctx, reader.read) if isinstance(item, NotShown)] == ["sustained_change"]
        async with probing(server.url, tmp_path, allowance=Allowance(1)) as ctx:
            with pytest.raises(BudgetSpent):
                await sustained.run(ctx, PLAN)
            windows = [record.key for record in ctx.journal.records if isinstance(record.body, WindowBody)]
    assert windows == ["sustained/0000", "sustained/0001", "sustained/0002"]


async def test_nothing_leaks_or_fails_when_an_honest_engine_works_for_a_while(tmp_path: Path) -> None:
    """Times are left to tests without a clock: a machine that others begin to use slows down too."""
    async with (server := lying_engine(ENGINE)):
        found = await run(server, tmp_path)
    assert set(findings(found)) <= {"sustained.degraded"}
    metrics = [item.metric for item in found if isinstance(item, Statement)]
    assert metrics.count("sustained_ttft_ratio") == 2
    assert {"sustained_success_rate", "kv_floor_rise", "memory_growth"} <= set(metrics)


async def test_an_engine_that_slows_down_is_found_when_every_request_costs_more(tmp_path: Path) -> None:
    async with (server := lying_engine(ENGINE.lying(Degrade(per_request=1.02)))):
        found = await run(server, tmp_path)
    assert "sustained.degraded" in findings(found)


async def test_a_leak_in_the_pool_is_found_when_nothing_runs(tmp_path: Path) -> None:
    async with (server := lying_engine(ENGINE.lying(LeakKv(blocks=1, on="finish")))):
        found = await run(server, tmp_path)
    assert "sustained.kv_floor_rises" in findings(found)


async def test_a_growing_process_is_found_when_its_metrics_tell(tmp_path: Path) -> None:
    async with (server := lying_engine(ENGINE.lying(LeakMemory(bytes=4 << 20)))):
        found = await run(server, tmp_path)
    assert "sustained.memory_grows" in findings(found)


@pytest.mark.engine
async def test_memory_of_an_owned_engine_is_told_when_it_runs_and_unknown_when_it_ended(
    embedded_engine: Callable[..., Awaitable[EmbeddedServer]],
) -> None:
    """The default model's weights alone are 98 MB, mapped or read."""
    server = await embedded_engine(context_tokens=512)
    engine = await connect(server.url, model=server.alias, owner=server.process)
    assert (engine.memory_bytes() or 0) > 50_000_000
    await engine.aclose()
    assert engine.memory_bytes() is None
