"""The disaggregated probe against a pair that hands KV on as vLLM does, and against pairs that do not."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from probing import Allowance, findings, probing, requests, said, statement

from longproof.asking.context import BudgetSpent, ProbeContext
from longproof.claim.findings import disaggregated as reader
from longproof.claim.statements import Finding, NotShown, Statement
from longproof.domain.measure import Measured
from longproof.probe import disaggregated
from longproof.probe.disaggregated import DisaggregatedPlan
from longproof.prove.target import PdTarget
from longproof.testing.behaviour import Behaviour
from longproof.testing.builders import build_protocol
from longproof.testing.dialects import VLLM
from longproof.testing.lie import Lie
from longproof.testing.lies import Refuse, SlowPrefill
from longproof.testing.lies_of_load import PdBootstrapFail, PdRecompute, PdTransferSlow
from longproof.testing.lying_engine import lying_engine
from longproof.testing.pd_pair import PdPair

SIDE = Behaviour(dialect=VLLM, window_tokens=4096, prefill_tokens_per_s=20_000.0)
PLAN = DisaggregatedPlan(lengths=(400, 1_200), repeats=3)


@asynccontextmanager
async def through(
    pair: PdPair, directory: Path, *, allowance: Allowance | None = None, timeout_s: float = 60.0
) -> AsyncIterator[ProbeContext]:
    """A context whose engine is the pair."""
    async with pair as (prefill, decode):
        engine = await PdTarget(prefill_url=prefill, decode_url=decode).open(directory / "engine.log")
        protocol = build_protocol(output_tokens=8, request_timeout_s=timeout_s)
        async with probing(engine, directory, allowance=allowance, protocol=protocol) as ctx:
            yield ctx


async def run(
    pair: PdPair, directory: Path, *, plan: DisaggregatedPlan = PLAN, timeout_s: float = 60.0
) -> list[Statement | Finding | NotShown]:
    async with through(pair, directory, timeout_s=timeout_s) as ctx:
        await disaggregated.run(ctx, plan)
        return said(ctx, reader.read)


async def test_every_prompt_goes_through_both_and_is_computed_alone_when_the_probe_runs(tmp_path: Path) -> None:
    pair = PdPair(SIDE, SIDE)
    async with through(pair, tmp_path) as ctx:
        await disaggregated.run(ctx, PLAN)
        sent = requests(ctx)
        found = said(ctx, reader.read)
    assert len(sent) == disaggregated.cost(PLAN, 8)[0] == 2 * (2 * 3 + 2) + 2 * 2
    arms = ("pair", "alone", "control")
    assert list(sent)[:6] == [f"disaggregated/{arm}/{length}/0" for length in (400, 1_200) for arm in arms]
    assert len({sent[f"disaggregated/{arm}/400/0"].prompt_sha256 for arm in arms}) == 1
    assert findings(found) == []
    transferred = statement(found, "pd_transferred", 1_200)
    assert transferred.samples == (1.0, 1.0, 1.0)
    assert transferred.conditions["transferred"] == "26.72 MiB a request"  # 76 blocks × 16 × 23,040 B
    assert statement(found, "pd_success", 1_200).n == 3 + 2 * 2
    ttft = sent["disaggregated/pair/1200/0"].timeline.ttft_ns
    parts = statement(found, "pd_prefill_time", 1_200).samples[0] + statement(found, "pd_decode_ttft", 1_200).samples[0]
    assert ttft is not None
    assert parts <= ttft / 1e9
    assert [len(served.read_ids) for served in pair.prefill.log.requests if served.output_tokens == 1]


@pytest.mark.parametrize(
    ("lie", "finding"),
    [
        (PdBootstrapFail(after_s=0.01, above_tokens=1_000, skip=1), "disaggregated.bootstrap_failed"),
        (PdRecompute(), "disaggregated.recomputed"),
        (PdTransferSlow(least_s=0.4), "disaggregated.transfer_slow"),
    ],
)
async def test_a_decode_side_that_lies_is_named_when_it_does(lie: Lie, finding: str, tmp_path: Path) -> None:
    found = await run(PdPair(SIDE, SIDE.lying(lie)), tmp_path)
    assert findings(found) in ([finding], [finding] * 2)


async def test_the_second_long_request_is_told_when_bootstrap_fails_on_it(tmp_path: Path) -> None:
    lie = PdBootstrapFail(after_s=0.01, above_tokens=1_000, skip=3)  # the first three are pair, alone and control
    found = await run(PdPair(SIDE, SIDE.lying(lie)), tmp_path)
    [failed] = [item for item in found if isinstance(item, Finding)]
    assert failed.details["number"] == "2"
    assert failed.details["length"] == "1200"
    success = statement(found, "pd_success", 1_200)
    assert isinstance(success.value, Measured)
    assert success.value.value < 1


async def test_the_stage_is_named_when_time_runs_out(tmp_path: Path) -> None:
    plan = DisaggregatedPlan(lengths=(400,), repeats=1, concurrency=0)
    for side, pair in (
        ("transfer", PdPair(SIDE, SIDE.lying(PdTransferSlow(least_s=9.0, above_tokens=300, times=1)))),
        ("prefill", PdPair(SIDE.lying(SlowPrefill(delay_s=9.0, above_tokens=300, times=1)), SIDE)),
    ):
        found = await run(pair, tmp_path / side, plan=plan, timeout_s=2.0)
        [late] = [item for item in found if isinstance(item, Finding)]
        assert (late.id, late.details["stage"]) == ("disaggregated.timeout", side)


async def test_the_prefill_side_is_named_when_it_fails(tmp_path: Path) -> None:
    broken = SIDE.lying(Refuse(status=500, message="out of memory", form="openai", above_tokens=300, times=1))
    found = await run(PdPair(broken, SIDE), tmp_path, plan=DisaggregatedPlan(lengths=(400,), repeats=2, concurrency=0))
    assert findings(found) == ["disaggregated.prefill_failed"]


async def test_nothing_is_asked_when_there_is_one_server(tmp_path: Path) -> None:
    async with (server := lying_engine(SIDE)), probing(server.url, tmp_path) as ctx:
        await disaggregated.run(ctx, PLAN)
        assert not requests(ctx)
        assert [item.topic for item in said(ctx, reader.read) if isinstance(item, NotShown)] == ["disaggregated"]


async def test_nothing_is_asked_twice_when_a_run_resumes(tmp_path: Path) -> None:
    pair = PdPair(SIDE, SIDE)
    async with through(pair, tmp_path, allowance=Allowance(7)) as ctx:
        with pytest.raises(BudgetSpent):
            await disaggregated.run(ctx, PLAN)
        first = requests(ctx)
    async with through(pair, tmp_path) as ctx:
        await disaggregated.run(ctx, PLAN)
        both = requests(ctx)
    assert {key: both[key] for key in first} == first
    assert len(both) == 20
