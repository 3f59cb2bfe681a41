"""The busy probe against the lying engine: what it asks, what a resumed run does, and which lies it names."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

import pytest
from probing import Allowance, asked, client_was_short, findings, probing, requests, said, statement

from longproof.asking.arrivals import Lengths, one_length
from longproof.asking.background import Background
from longproof.asking.context import BudgetSpent, ProbeContext
from longproof.claim.findings import busy as reader
from longproof.claim.statements import Finding, NotShown, Statement
from longproof.domain.measure import Measured
from longproof.domain.outcome import Outcome, classify
from longproof.evidence.records import RequestBody, WindowBody
from longproof.probe import busy
from longproof.testing.behaviour import Behaviour
from longproof.testing.builders import build_protocol
from longproof.testing.dialects import LLAMACPP, VLLM
from longproof.testing.lies_of_load import (
    AdmitThenHang,
    BusyInStream,
    NoRetryAfter,
    StarveLong,
    StarveShort,
    Thrash,
    WrongWhenBusy,
)
from longproof.testing.lying_engine import HONEST, lying_engine

Said = list[Statement | Finding | NotShown]
S = 1_000_000_000
PROTOCOL = build_protocol(output_tokens=8, request_timeout_s=30.0)
SHARED = HONEST.but(
    dialect=VLLM,
    compute="shared",
    slots=16,
    prefill_tokens_per_s=20_000.0,
    token_s=0.004,
    step_tokens=1024,
    jitter=0.2,
)
"""6,000 tokens take 0.3 s in six steps; a short request of 64 + 24 tokens about 0.1 s."""
SHORTS = Lengths(source="test", input_tokens=(64, 96), output_tokens=(20, 28), weights=(1, 1))


def plan(**changes: object) -> busy.BusyPlan:
    chosen: dict[str, object] = {
        "background": Background(lengths=SHORTS, concurrency=6),
        "long_tokens": 6000,
        "long_output_tokens": 8,
        "injections": 3,
        "alone_ns": S,
        "lead_ns": S // 4,
        "tail_ns": S // 4,
        "patience": 8.0,
        "least_patience_s": 2.0,
        "sample_every_s": 0.05,
        **changes,
    }
    return busy.BusyPlan(**chosen)  # type: ignore[arg-type] - fields by name


async def run(behaviour: Behaviour, directory: Path, **changes: object) -> Said:
    with lying_engine(behaviour) as url:
        async with probing(url, directory, protocol=PROTOCOL) as ctx:
            await busy.run(ctx, plan(**changes))
            return said(ctx, reader.read)


def of_role(ctx: ProbeContext, role: str) -> dict[str, RequestBody]:
    return {key: body for key, body in requests(ctx).items() if body.cell.get("role") == role}


@dataclass(frozen=True)
class Whole:
    """One run of the probe on the engine that shares its work: what stands in its journal, what is said of it, and how
    many requests a second run of the same journal sent."""

    windows: list[str]
    roles: dict[str, dict[str, RequestBody]]
    found: Said
    asked_again: int


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    directory, engine = tmp_path_factory.mktemp("busy"), lying_engine(SHARED)

    async def twice(url: str) -> Whole:
        async with probing(url, directory, protocol=PROTOCOL) as ctx:
            await busy.run(ctx, plan())
            windows = [r.key for r in ctx.journal.records if isinstance(r.body, WindowBody)]
            roles = {role: of_role(ctx, role) for role in ("long", "short", "own")}
            found = said(ctx, reader.read)
        served = asked(engine)
        async with probing(url, directory, protocol=PROTOCOL) as ctx:
            await busy.run(ctx, plan())
        return Whole(windows=windows, roles=roles, found=found, asked_again=asked(engine) - served)

    with engine as url:
        return asyncio.run(twice(url))


def test_phases_follow_each_other_when_the_probe_runs(whole: Whole) -> None:
    longs, shorts, own = (whole.roles[role] for role in ("long", "short", "own"))
    during = [f"busy/during/{i}" for i in range(3)]
    assert whole.windows == ["busy/before", *during, "busy/after", "busy/together"]
    assert list(longs) == ["busy/long/0", "busy/long/1", *(f"{key}#1/long" for key in during)]
    assert {classify(body.timeline) for body in (*longs.values(), *shorts.values())} == {Outcome.COMPLETED}
    assert len({body.prompt_sha256 for body in (*longs.values(), *shorts.values())}) == len(longs) + len(shorts)
    assert len(own) == 8
    assert len({body.prompt_sha256 for body in own.values()}) == 4
    assert {body.timeline.usage.prompt_tokens for body in shorts.values() if body.timeline.usage} == {64, 96}
    assert all(not body.timeline.usage.cached_tokens for body in shorts.values() if body.timeline.usage)
    assert statement(whole.found, "busy_long_served", 6000).n == 3
    assert "busy/short/follow_up" in shorts


def test_a_slower_pace_is_shown_when_work_is_shared(whole: Whole) -> None:
    """While the long prompt is prefilled a step takes 1,024 / 20,000 s = 51 ms beside the 4 ms of a token alone, and
    whatever a busy machine adds to either."""
    stalls = {item.id: item for item in whole.found if isinstance(item, Statement)}
    during, before = (stalls[f"busy.busy_short_stall.{phase}"] for phase in ("prefill", "before"))
    assert isinstance(during.value, Measured)
    assert isinstance(before.value, Measured)
    assert during.value.value > max(0.04, before.value.value) or client_was_short(whole.found)


def test_how_long_it_waited_is_known_when_the_engine_keeps_a_queue_clock(whole: Whole) -> None:
    """Short requests come and go between two samples of a gauge; the engine's histogram tells all the same."""
    waited = statement(whole.found, "busy_long_wait", 6000)
    assert waited.n == 3
    assert "queue clock" in waited.text


def test_a_second_run_asks_nothing_when_all_is_known(whole: Whole) -> None:
    assert whole.asked_again == 0


async def test_an_honest_engine_is_accused_of_nothing_when_it_is_slow_and_jittery(tmp_path: Path) -> None:
    assert findings(await run(SHARED.but(jitter=0.4), tmp_path)) == []


async def test_poisson_arrivals_leave_on_time_when_the_load_is_open(tmp_path: Path) -> None:
    """30 a second for 1.25 s: the same schedule before and after."""
    with lying_engine(SHARED) as url:
        async with probing(url, tmp_path, protocol=PROTOCOL) as ctx:
            background = Background(lengths=one_length(64, 8), rate_per_s=30.0, seed=2)
            await busy.run(ctx, plan(background=background, injections=1))
            found = requests(ctx)
            starts = {r.key: r.body.started_ns for r in ctx.journal.records if isinstance(r.body, WindowBody)}
    planned = {
        phase: [
            (body.planned_ns or 0) - starts[f"busy/{phase}"]
            for key, body in found.items()
            if key.startswith(f"busy/{phase}#1/short")
        ]
        for phase in ("before", "after")
    }
    assert sorted(planned["before"]) == sorted(planned["after"]) == [at for at, _ in background.arrivals(5 * S // 4)]


async def test_short_ones_are_starved_when_a_prefill_takes_it_all(tmp_path: Path) -> None:
    """Silences of about 0.7 s against 2 × 3 s without one: by chance in at most 1 of 9 each, all three in 1 of 729. Two
    seconds of baseline would leave 1 of 27, which accuses nobody."""
    found = await run(SHARED.lying(StarveShort(stretch=2.0)), tmp_path, alone_ns=3 * S)
    assert findings(found) == ["busy.short_starved"] or client_was_short(found)


async def test_the_long_one_is_starved_when_it_must_wait_for_calm(tmp_path: Path) -> None:
    assert findings(await run(SHARED.lying(StarveLong()), tmp_path)) == ["busy.long_starved"]


async def test_it_is_taken_and_hangs_when_the_engine_says_it_runs(tmp_path: Path) -> None:
    lie = AdmitThenHang(above_tokens=1024, beside=2)
    assert findings(await run(SHARED.lying(lie), tmp_path)) == ["busy.admitted_then_hung"]


async def test_refusals_are_named_when_they_give_no_time(tmp_path: Path) -> None:
    found = findings(await run(SHARED.lying(NoRetryAfter(limit=6)), tmp_path))
    assert set(found) == {"busy.long_rejected", "busy.retry_after_missing"}


async def test_refusals_in_a_200_are_named_when_they_look_like_success(tmp_path: Path) -> None:
    found = findings(await run(SHARED.lying(BusyInStream(limit=6)), tmp_path))
    assert found == ["busy.error_after_200"]


async def test_answers_are_mixed_when_one_gets_anothers(tmp_path: Path) -> None:
    found = findings(await run(SHARED.lying(WrongWhenBusy()), tmp_path, injections=1))
    assert "busy.answers_mixed" in found


async def test_preemptions_are_counted_when_memory_is_taken_away(tmp_path: Path) -> None:
    assert "busy.preempted" in findings(await run(SHARED.lying(Thrash()), tmp_path, injections=1))


async def test_it_works_when_the_engine_has_slots(tmp_path: Path) -> None:
    """llama.cpp's names: deferred requests are its queue. Six short ones fill all six slots, so the long one waits."""
    found = await run(SHARED.but(dialect=LLAMACPP, slots=6), tmp_path, injections=2)
    waited = statement(found, "busy_long_wait", 6000)
    assert waited.n == 2
    assert findings(found) == []


async def test_nothing_is_begun_when_the_budget_is_spent(tmp_path: Path) -> None:
    with lying_engine(SHARED) as url:
        async with probing(url, tmp_path, allowance=Allowance(3), protocol=PROTOCOL) as ctx:
            with pytest.raises(BudgetSpent):
                await busy.run(ctx, plan())
            assert not [r for r in ctx.journal.records if isinstance(r.body, WindowBody)]


def test_the_cost_is_told_when_the_plan_is_known() -> None:
    """6 at a time, one second each: 6 × (0.25 + 1) s = 7.5 → 8 before and after each, 3 × 6 during (at least all
    places), two alone, four one by one and together, 2 + 3 long ones: 16 + 18 + 2 + 8 + 5. Tokens: 44 × (80 + 24) +
    5 × 6,008."""
    assert busy.cost(plan(), 8) == (49, 44 * 104 + 5 * 6008)
