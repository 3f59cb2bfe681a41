"""The sweep against the lying engine: which cells are asked in which order, what is warm in them, and what is read."""

from __future__ import annotations

from pathlib import Path

import pytest
from probing import Allowance, findings, probing, said

from longproof.asking.context import BudgetSpent
from longproof.claim.findings import sweep as reader
from longproof.claim.statements import Finding, NotShown, Standing, Statement
from longproof.domain.measure import Measured
from longproof.evidence.records import NoteBody, RequestBody, WindowBody
from longproof.probe import sweep
from longproof.probe.sweep import SweepPlan, cells, cost
from longproof.testing.dialects import LLAMACPP, VLLM, Dialect
from longproof.testing.lying_engine import HONEST, lying_engine

ENGINE = HONEST.but(dialect=VLLM, slots=8, prefill_tokens_per_s=20_000.0, token_s=0.002, cache_entries=64)
PLAN = SweepPlan(lengths=(600, 1200), concurrencies=(1, 4), rounds=2, per_round=4)


def of(found: list[Statement | Finding | NotShown], id_: str) -> float:
    statement = next(item for item in found if isinstance(item, Statement) and item.id == id_)
    assert isinstance(statement.value, Measured)
    return statement.value.value


@pytest.mark.parametrize("dialect", [VLLM, LLAMACPP], ids=lambda dialect: dialect.name)
async def test_an_honest_engine_gives_every_cell_and_no_finding_when_swept(dialect: Dialect, tmp_path: Path) -> None:
    async with (server := lying_engine(ENGINE.but(dialect=dialect))), probing(server.url, tmp_path) as ctx:
        await sweep.run(ctx, PLAN)
        records, found = ctx.journal.records, said(ctx, reader.read)
    windows = [record.key for record in records if isinstance(record.body, WindowBody)]
    first = [f"sweep/{length}/c{at}/{cache}" for length in (600, 1200) for at in (1, 4) for cache in ("cold", "hit")]
    assert windows == [*(f"{cell}/0" for cell in first), *(f"{cell}/1" for cell in reversed(first))]
    sent = [record.body for record in records if isinstance(record.body, RequestBody) and "round" in record.body.cell]
    assert len(sent) == 8 * 2 * 4
    assert len({body.prompt_sha256 for body in sent}) == len(sent)
    assert findings(found) == []
    assert of(found, "sweep.sweep_cached_fraction.1200.c4.hit") > 0.8
    told = {item.id for item in found if isinstance(item, Statement) and item.standing is Standing.SHOWN}
    for cell in ("600.c1.cold", "600.c4.hit", "1200.c4.cold"):
        assert told >= {f"sweep.{metric}.{cell}" for metric in ("sweep_ttft", "sweep_tpot", "sweep_output_rate")}


async def test_a_cell_is_left_out_and_said_when_the_pool_does_not_hold_it(tmp_path: Path) -> None:
    """Four cold prompts of 1,200 and 8 tokens of output need 4,832; with a known prefix 1,125 + 4 × (75 + 8)."""
    engine = ENGINE.but(kv_capacity_tokens=4096, window_tokens=2048)
    async with (server := lying_engine(engine)), probing(server.url, tmp_path) as ctx:
        await sweep.run(ctx, SweepPlan(lengths=(1200,), concurrencies=(4,), rounds=1, per_round=4))
        notes = [
            record.body.detail["needs_tokens"]
            for record in ctx.journal.records
            if isinstance(record.body, NoteBody) and record.body.what == "does_not_fit"
        ]
        found = said(ctx, reader.read)
    assert notes == [4832]
    assert "sweep_1200_c4_cold" in [item.topic for item in found if isinstance(item, NotShown)]
    assert [item.id for item in found if isinstance(item, Statement) and item.metric == "sweep_ttft"] == [
        "sweep.sweep_ttft.1200.c4.hit"
    ]


async def test_a_torn_cell_has_its_prefix_sent_again_when_a_run_resumes(tmp_path: Path) -> None:
    plan = SweepPlan(lengths=(600,), concurrencies=(1,), rounds=1, per_round=2)
    async with (server := lying_engine(ENGINE)):
        async with probing(server.url, tmp_path, allowance=Allowance(2)) as ctx:  # cold, and the hit arm's first
            with pytest.raises(BudgetSpent):
                await sweep.run(ctx, plan)
        async with probing(server.url, tmp_path) as ctx:
            await sweep.run(ctx, plan)
            keys = [record.key for record in ctx.journal.records if isinstance(record.body, RequestBody)]
    assert [key for key in keys if "primer" in key] == ["sweep/600/c1/hit/0/primer/1", "sweep/600/c1/hit/0/primer/2"]
    assert len([key for key in keys if key.startswith("sweep/600/c1/cold/0#")]) == 2


def test_cost_counts_all_cells_and_prefixes_when_planned() -> None:
    """Lengths 600 and 1,200, two concurrencies, two rounds: cold sends 4, hit 5. 2 × 2 × 2 × 9 = 72 requests; tokens:
    2 rounds × 2 concurrencies × 9 × (608 + 1,208)."""
    assert len(cells(PLAN)) == 8
    assert cost(PLAN, 8) == (72, 2 * 2 * 9 * (608 + 1208))
