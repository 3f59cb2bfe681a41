"""The overload probe against the lying engine: what it asks, what a resumed run does, and which lies it names."""

from __future__ import annotations

from pathlib import Path

import pytest
from probing import asked, client_was_short, findings, probing, requests, said, statement

from longproof.asking.recovery import EngineGone
from longproof.claim.findings import overload as reader
from longproof.claim.statements import Finding, NotShown, Statement
from longproof.domain.measure import Measured
from longproof.evidence.records import WindowBody
from longproof.probe import overload
from longproof.testing.behaviour import Behaviour
from longproof.testing.builders import build_protocol
from longproof.testing.dialects import VLLM
from longproof.testing.lies import Crash
from longproof.testing.lies_of_load import AdmitThenHang, BusyInStream, NoRetryAfter, SlowRecovery, Thrash
from longproof.testing.lying_engine import HONEST, lying_engine

Said = list[Statement | Finding | NotShown]
S = 1_000_000_000
PROTOCOL = build_protocol(output_tokens=8, request_timeout_s=30.0)
SHARED = HONEST.but(
    dialect=VLLM,
    compute="shared",
    slots=4,
    prefill_tokens_per_s=20_000.0,
    token_s=0.004,
    step_tokens=1024,
    jitter=0.2,
)
"""400 + 24 tokens: 20 ms of prefill and 92 ms of decode, 9 a second alone; four at a time share their decode steps."""


def plan(**changes: object) -> overload.OverloadPlan:
    chosen: dict[str, object] = {
        "prompt_tokens": 400,
        "output_tokens": 24,
        "concurrencies": (2, 4, 16),
        "step_ns": S,
        "idle_ns": S,
        "recovery_ns": 6 * S,
        "slice_ns": S // 2,
        "slow_after_ns": S // 2,
        "least_patience_s": 3.0,
        "sample_every_s": 0.05,
        **changes,
    }
    return overload.OverloadPlan(**chosen)  # type: ignore[arg-type] - fields by name


async def run(behaviour: Behaviour, directory: Path, **changes: object) -> Said:
    with lying_engine(behaviour) as url:
        async with probing(url, directory, protocol=PROTOCOL) as ctx:
            await overload.run(ctx, plan(**changes))
            return said(ctx, reader.read)


def test_steps_double_up_to_the_most_when_asked() -> None:
    assert overload.doubling(16) == (2, 4, 8, 16)
    assert overload.doubling(20) == (2, 4, 8, 16, 20)
    assert overload.doubling(1) == (1,)


def test_a_load_is_of_one_kind_when_planned() -> None:
    with pytest.raises(ValueError, match="one of them"):
        plan(rates_per_s=(1.0,))


async def test_steps_follow_each_other_and_then_recovery_when_the_probe_runs(tmp_path: Path) -> None:
    engine = lying_engine(SHARED)
    with engine as url:
        async with probing(url, tmp_path, protocol=PROTOCOL) as ctx:
            await overload.run(ctx, plan())
            windows = [r.key for r in ctx.journal.records if isinstance(r.body, WindowBody)]
            sent, found = requests(ctx), said(ctx, reader.read)
        served = asked(engine)
        async with probing(url, tmp_path, protocol=PROTOCOL) as ctx:  # a second run asks nothing
            await overload.run(ctx, plan())
        assert asked(engine) == served
    assert windows[:4] == ["overload/idle", "overload/step/2", "overload/step/4", "overload/step/16"]
    assert windows[4] == "overload/recovery/0"
    assert len([key for key in sent if key.startswith("overload/recovery/")]) >= 3
    assert len({body.prompt_sha256 for body in sent.values()}) == len(sent)
    peak = statement(found, "overload_peak", None)
    assert isinstance(peak.value, Measured)
    assert peak.value.value > 9.0
    assert isinstance(statement(found, "overload_recovery", None).value, Measured)


async def test_an_honest_engine_is_accused_of_nothing_when_it_queues(tmp_path: Path) -> None:
    """Sixteen at four slots come late, and no work is lost."""
    assert findings(await run(SHARED.but(jitter=0.4), tmp_path)) == []


async def test_arrivals_are_a_rate_when_asked_for(tmp_path: Path) -> None:
    found = await run(SHARED, tmp_path, concurrencies=(), rates_per_s=(5.0, 10.0))
    ids = [item.id for item in found if isinstance(item, Statement) and item.metric == "overload_goodput"]
    assert ids == [
        "overload.overload_goodput.idle",
        "overload.overload_goodput.5_per_s",
        "overload.overload_goodput.10_per_s",
    ]


async def test_recovery_is_slow_when_the_engine_stays_slow_after_a_queue(tmp_path: Path) -> None:
    found = await run(SHARED.lying(SlowRecovery(for_s=4.0)), tmp_path)
    assert "overload.slow_recovery" in findings(found) or client_was_short(found)


async def test_it_does_not_recover_when_it_stays_slow_for_ever(tmp_path: Path) -> None:
    found = await run(SHARED.lying(SlowRecovery(for_s=60.0)), tmp_path, recovery_ns=2 * S)
    assert "overload.no_recovery" in findings(found) or client_was_short(found)


async def test_it_thrashes_when_memory_is_taken_away_all_the_time(tmp_path: Path) -> None:
    found = findings(await run(SHARED.but(slots=16).lying(Thrash()), tmp_path, step_ns=2 * S))
    assert "overload.thrash" in found


async def test_refusals_are_named_when_they_give_no_time(tmp_path: Path) -> None:
    found = findings(await run(SHARED.lying(NoRetryAfter(limit=6)), tmp_path))
    assert found == ["overload.retry_after_missing"]


async def test_refusals_in_a_200_are_named_when_they_look_like_success(tmp_path: Path) -> None:
    assert findings(await run(SHARED.lying(BusyInStream(limit=6)), tmp_path)) == ["overload.error_after_200"]


async def test_requests_that_get_nothing_are_counted_when_they_hang(tmp_path: Path) -> None:
    lie = AdmitThenHang(beside=6)
    assert "overload.timeouts" in findings(await run(SHARED.but(slots=16).lying(lie), tmp_path))


async def test_a_crash_is_named_when_the_server_goes_away(tmp_path: Path) -> None:
    with lying_engine(SHARED.lying(Crash(skip=40))) as url:
        async with probing(url, tmp_path, protocol=PROTOCOL) as ctx:
            with pytest.raises(EngineGone):
                await overload.run(ctx, plan())
            assert "overload.crash" in findings(said(ctx, reader.read))
