"""The reclaim probe against the lying engine: what it cancels, what it sees, and what a resumed run repeats."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from probing import Allowance, findings, probing, requests, said

from longproof.asking.context import BudgetSpent
from longproof.claim.findings import reclaim as reader
from longproof.claim.statements import Finding, NotShown, Standing, Statement
from longproof.domain.measure import reported
from longproof.domain.outcome import Outcome, classify, completed_as_asked
from longproof.evidence.records import WindowBody
from longproof.probe import reclaim
from longproof.probe.reclaim import ReclaimPlan
from longproof.testing.behaviour import Behaviour
from longproof.testing.builders import build_deployment, build_request, build_timeline
from longproof.testing.dialects import OPENAI, VLLM
from longproof.testing.engine_log import Ending
from longproof.testing.lies import IgnoreDisconnect
from longproof.testing.lying_engine import HONEST, LyingEngine, lying_engine

SLOW = HONEST.but(prefill_tokens_per_s=20_000.0, token_s=0.006)
"""800 tokens: 40 ms of prefill; 40 tokens of output: 234 ms."""
PLAN = ReclaimPlan(
    length_tokens=800, largest_tokens=2_000, decode_tokens=40, cycles=2, slow_s=10.0, sample_every_s=0.02
)


async def run(server: LyingEngine, directory: Path, plan: ReclaimPlan = PLAN) -> list[Statement | Finding | NotShown]:
    async with probing(server.url, directory) as ctx:
        await reclaim.run(ctx, plan)
        return said(ctx, reader.read)


async def test_clients_leave_in_every_stage_and_the_largest_follows_when_the_probe_runs(tmp_path: Path) -> None:
    engine = SLOW.but(dialect=VLLM, prefill_tokens_per_s=4_000.0)  # 200 ms: who leaves in it may be late by 80
    async with (server := lying_engine(engine)), probing(server.url, tmp_path) as ctx:
        await reclaim.run(ctx, PLAN)
        sent = requests(ctx)
        windows = [record.key for record in ctx.journal.records if isinstance(record.body, WindowBody)]
        assert findings(said(ctx, reader.read)) == []
    stages = ("at_once", "prefill", "decode")
    assert windows == [
        *(f"reclaim/{stage}/disconnect/{cycle}" for cycle in range(2) for stage in stages),
        "reclaim/prefill/disconnect/2",
        "reclaim/decode/disconnect/2",
    ]
    for stage in stages:
        body = sent[f"reclaim/{stage}/disconnect/0#1/cancelled"]
        assert classify(body.timeline) is Outcome.CANCELLED
        assert body.left_ns is not None
        assert (len(body.timeline.chunks) > 0) is (stage == "decode")
    largest = [key for key in sent if key.startswith("reclaim/largest/")]
    assert largest == [f"reclaim/largest/{name}/0" for name in ("prefill/disconnect", "decode/disconnect", "end")]
    assert all(completed_as_asked(sent[key].timeline) for key in largest)
    assert len({body.prompt_sha256 for body in sent.values()}) == len(sent)


async def test_requests_wait_behind_others_when_the_engine_can_be_filled(tmp_path: Path) -> None:
    """Two slots: two blockers, and the third never runs."""
    engine = lying_engine(SLOW.but(dialect=VLLM, slots=2))
    async with engine, probing(engine.url, tmp_path) as ctx:
        plan = ReclaimPlan(
            length_tokens=800, largest_tokens=2_000, decode_tokens=200, cycles=1, blockers=2, sample_every_s=0.02
        )
        await reclaim.run(ctx, plan)
        found = said(ctx, reader.read)
    [queued] = [item for item in found if isinstance(item, Statement) and item.metric == "reclaim_time_queued"]
    assert queued.standing is Standing.SHOWN
    assert queued.conditions["seen_waiting"] == "1 of 1"
    unserved = [served for served in engine.log.requests if served.ending is Ending.DISCONNECTED]
    assert [served.output_tokens > 0 for served in unserved[:3]] == [True, True, False]
    assert findings(found) == []


@pytest.mark.parametrize("behaviour", [SLOW, SLOW.but(dialect=OPENAI)], ids=lambda item: item.dialect.name)
async def test_an_honest_engine_is_not_accused_when_it_is_slow(behaviour: Behaviour, tmp_path: Path) -> None:
    async with (server := lying_engine(behaviour)):
        found = await run(server, tmp_path)
    assert findings(found) == []


async def test_an_engine_that_goes_on_is_named_when_it_ignores_disconnects(tmp_path: Path) -> None:
    plan = ReclaimPlan(
        length_tokens=800, largest_tokens=2_000, decode_tokens=40, cycles=3, slow_s=0.5, sample_every_s=0.02
    )
    async with (server := lying_engine(SLOW.but(dialect=VLLM).lying(IgnoreDisconnect()))):
        found = await run(server, tmp_path, plan)
    assert findings(found) == ["reclaim.not_noticed"]


async def test_nothing_is_asked_twice_when_a_run_resumes(tmp_path: Path) -> None:
    async with (server := lying_engine(SLOW.but(dialect=VLLM))):
        async with probing(server.url, tmp_path, allowance=Allowance(8)) as ctx:
            with pytest.raises(BudgetSpent):
                await reclaim.run(ctx, PLAN)
            first = requests(ctx)
        async with probing(server.url, tmp_path) as ctx:
            await reclaim.run(ctx, PLAN)
            both = requests(ctx)
            served = len(server.log.requests)
            await reclaim.run(ctx, PLAN)
            assert len(server.log.requests) == served
    assert {key: both[key] for key in first} == first
    assert len(both) > len(first)


async def test_the_largest_is_what_the_boundary_proved_when_its_records_are_there(tmp_path: Path) -> None:
    async with (server := lying_engine(SLOW)), probing(server.url, tmp_path) as ctx:
        for total, output in ((3_000, 8), (3_100, 2)):
            timeline = build_timeline(prompt_tokens=total - 8, max_tokens=8, output_tokens=output)
            ctx.journal.append(f"boundary/{total}/0", build_request("boundary", {"total": total}, timeline))
        await reclaim.run(ctx, replace(PLAN, cycles=1))
        sent = requests(ctx)
    assert sent["reclaim/largest/end/0"].timeline.prompt_tokens_sent == 2_992


def test_cost_counts_every_request_when_blockers_and_aborts_are_planned() -> None:
    """3 idle + 2 rounds of 6 stages and 3 blockers = 21 of 840 tokens; 2 idle, 4 after stages and 1 at the end of
    2,008."""
    plan = ReclaimPlan(length_tokens=800, largest_tokens=2_000, decode_tokens=40, cycles=2, blockers=3, abort=True)
    assert reclaim.cost(plan, 8) == (3 + 2 * 9 + 7, 21 * 840 + 7 * 2_008)


@pytest.mark.parametrize(("slots", "capacity", "blockers"), [(1, None, 1), (256, 4_000, 3), (256, 400_000, 0)])
def test_blockers_follow_from_slots_or_pool_when_known(slots: int, capacity: int | None, blockers: int) -> None:
    """3 × 1,200 tokens fit in 4,000; 333 would be too many to send."""
    pool = {} if capacity is None else {"kv_capacity_tokens": reported(capacity, "test")}
    deployment = build_deployment(slots=slots, **pool)
    assert reclaim.blockers_of(deployment, 1_200) == blockers
