"""What is read from windows of a sustained load: changes are named with where and how much, jitter is not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from longproof.claim.derive import claim_of
from longproof.claim.findings.sustained import read
from longproof.claim.gate import gate
from longproof.claim.statements import Finding, NotShown, Severity, Statement
from longproof.claim.view import EvidenceView
from longproof.domain.measure import Measured
from longproof.evidence.records import Body, Lag, NoteBody, WindowBody
from longproof.testing.builders import build_hang, build_refusal, build_request, build_timeline, build_view

MS = 1_000_000
S = 1_000_000_000
GIB = 1 << 30
Change = Callable[[int], float]


def level(_: int) -> float:
    return 1.0


def run_of(
    *,
    windows: int = 20,
    slower: Change = level,
    failing: Change = lambda _: 0.0,
    kv: Change | None = lambda _: 0.0,
    memory: Change | None = lambda _: 1.0,
    jitter: float = 0.0,
    lag_ns: int = 0,
    seed: int = 0,
    planned: int | None = None,
) -> EvidenceView:
    """Windows of 10 s: eight short ones (100 ms, 10 ms a token) and two long ones (400 ms) each, times factor `slower`
    of the window's number and noise; `failing` is the share of short ones that are refused."""
    rng = np.random.default_rng(seed)
    entries: list[tuple[str, Body]] = []
    for index in range(windows):
        key, begun_ns = f"sustained/{index:04d}", (1 + 11 * index) * S
        common = float(np.exp(rng.normal(0, jitter))) if jitter else 1.0
        for i in range(10):
            factor = slower(index) * common * (float(np.exp(rng.normal(0, jitter))) if jitter else 1.0)
            role, length, ttft = ("short", 200, 100) if i < 8 else ("long", 2000, 400)
            timeline = build_timeline(
                prompt_tokens=length,
                ttft_ns=round(ttft * factor * MS),
                itl_ns=round(10 * factor * MS),
                submitted_ns=begun_ns + i * S,
            )
            if i < round(8 * failing(index)):
                timeline = replace(build_refusal(prompt_tokens=length, status=503), submitted_ns=begun_ns + i * S)
            cell = {"window": index, "role": role, "length": length}
            entries.append((f"{key}#1/{role}/{i}", build_request("sustained", cell, timeline, planned_ns=begun_ns)))
        body = WindowBody(
            probe="sustained",
            cell={"window": index},
            prefix=f"{key}#1/",
            load={
                "windows": planned or windows,
                "concurrency": 4,
                "short_tokens": 200,
                "long_tokens": 2000,
                "longs_per_window": 2,
            },
            started_ns=begun_ns,
            ended_ns=begun_ns + 10 * S,
            requests=10,
            lags=(Lag(at_ns=begun_ns, late_ns=lag_ns),) * 10 if lag_ns else (),
            lag_checks=100,
        )
        entries.append((key, body))
        detail: dict[str, int | float | str | bool] = {"window": index, "at_ns": begun_ns + 10 * S}
        if kv is not None:
            detail["kv_usage"] = kv(index)
        if memory is not None:
            detail |= {"memory_bytes": round(memory(index) * GIB), "memory_of": "all processes of the engine"}
        entries.append((f"{key}/idle", NoteBody(probe="sustained", what="idle", detail=detail)))
    return build_view(*entries)


def findings(view: EvidenceView) -> dict[str, Finding]:
    return {item.id: item for item in read(view) if isinstance(item, Finding)}


def statements(view: EvidenceView) -> dict[str, Statement]:
    return {item.id: item for item in read(view) if isinstance(item, Statement)}


def not_shown(view: EvidenceView) -> Sequence[str]:
    return [item.topic for item in read(view) if isinstance(item, NotShown)]


def value(statement: Statement) -> float:
    assert isinstance(statement.value, Measured)
    return statement.value.value


def test_nothing_is_found_when_all_windows_are_alike() -> None:
    view = run_of()
    assert findings(view) == {}
    assert not_shown(view) == []
    said = statements(view)
    assert value(said["sustained.sustained_ttft_ratio.short"]) == pytest.approx(1.0)
    assert value(said["sustained.success_rate"]) == 1.0
    assert said["sustained.success_rate"].n == 180  # 20 windows of ten, two of them (a tenth) left out
    assert said["sustained.success_rate"].conditions["windows"] == "18 counted, 2 left out for warm-up"


def test_a_step_is_named_with_place_and_size_when_it_became_slower() -> None:
    """Twice as slow from the 13th window on, which began 12 × 11 s = 132 s after the first."""
    view = run_of(slower=lambda index: 2.0 if index >= 12 else 1.0, jitter=0.03)
    found = findings(view)
    assert list(found) == ["sustained.degraded"]
    degraded = found["sustained.degraded"]
    assert degraded.severity is Severity.FAULT
    assert "from window 13 on, after 2 min 12 s" in degraded.text
    assert set(degraded.details) == {
        f"sustained_{metric}_ratio.{role}" for metric in ("ttft", "tpot") for role in ("short", "long")
    }


def test_a_steady_rise_is_named_when_every_window_is_a_little_slower() -> None:
    """4 % a window: from the first third (windows 3 … 8) to the last (15 … 20) 1.04^12 = 1.6 times."""
    view = run_of(slower=lambda index: 1.04**index, jitter=0.01)
    assert list(findings(view)) == ["sustained.degraded"]
    assert "steadily" in findings(view)["sustained.degraded"].text
    assert value(statements(view)["sustained.sustained_ttft_ratio.short"]) == pytest.approx(1.6, rel=0.05)


def test_a_slow_beginning_is_no_change_when_it_lies_in_the_warm_up() -> None:
    assert findings(run_of(slower=lambda index: 5.0 if index < 2 else 1.0, jitter=0.02)) == {}


def test_a_small_change_is_no_finding_when_nobody_would_mind() -> None:
    """A clean step of 10 % is significant, and below a quarter."""
    assert findings(run_of(slower=lambda index: 1.1 if index >= 10 else 1.0, jitter=0.005)) == {}


def test_a_change_is_not_the_servers_when_the_client_itself_was_as_late() -> None:
    """TTFT + 50 ms and TPOT + 5 ms; our event loop came back 60 ms late at one look in ten."""
    changed = run_of(slower=lambda index: 1.5 if index >= 10 else 1.0, lag_ns=60 * MS)
    details = findings(changed).get("sustained.degraded")
    assert details is not None
    assert set(details.details) == {"sustained_ttft_ratio.long"}  # 400 → 600 ms is more than our 60


def test_growing_errors_are_named_when_they_begin_on_the_way() -> None:
    """None of ten before window 11, four of ten from there on."""
    view = run_of(failing=lambda index: 0.5 if index >= 10 else 0.0)
    found = findings(view)
    assert list(found) == ["sustained.errors_grow"]
    assert "0 % before and 40 % from window 11 on" in found["sustained.errors_grow"].text
    assert "refused as busy" in found["sustained.errors_grow"].text


def test_errors_do_not_grow_when_their_share_stays() -> None:
    assert findings(run_of(failing=lambda _: 0.25)) == {}


def test_a_kv_floor_that_rises_is_named_when_nothing_runs() -> None:
    view = run_of(kv=lambda index: 0.002 * index)
    assert list(findings(view)) == ["sustained.kv_floor_rises"]
    # 18 windows count, thirds of 6: medians at windows 4.5 and 16.5 → 12 × 0.002
    assert value(statements(view)["sustained.kv_floor_rise"]) == pytest.approx(0.024)


def test_memory_that_grows_on_is_named_and_memory_that_levels_off_is_not() -> None:
    assert list(findings(run_of(memory=lambda index: 1 + 0.02 * index))) == ["sustained.memory_grows"]
    assert findings(run_of(memory=lambda index: 1 + 0.2 * min(index, 8) / 8)) == {}
    assert findings(run_of(memory=lambda index: 1 + 0.0005 * index)) == {}  # 12 windows × 0.5 MiB: 6 MiB


def test_hung_requests_are_a_stall_when_the_server_had_served_before() -> None:
    view = run_of()
    window = "sustained/0015"
    entries = [(record.key, record.body) for record in view.records]
    at = [key for key, _ in entries].index(window)
    cell = {"window": 15, "role": "short", "length": 200}
    hang = build_request("sustained", cell, build_hang(prompt_tokens=200), planned_ns=S)
    entries.insert(at, (f"{window}#1/short/hung", hang))
    found = findings(build_view(*entries))
    assert list(found) == ["sustained.stalled"]
    assert found["sustained.stalled"].severity is Severity.FAULT


def test_a_change_is_not_shown_when_there_are_too_few_windows() -> None:
    view = run_of(windows=8, slower=lambda index: 3.0 if index > 4 else 1.0)
    assert findings(view) == {}
    assert "sustained_change" in not_shown(view)


def test_what_is_missing_is_said_when_engine_or_budget_did_not_give_it() -> None:
    view = run_of(kv=None, memory=None, planned=30)
    assert set(not_shown(view)) == {"sustained_kv", "sustained_memory", "sustained_length"}


def test_an_honest_jittery_engine_is_accused_on_at_most_one_seed_of_twenty() -> None:
    """Noise of 25 % per window, common to all its requests, and again per request."""
    accused = [seed for seed in range(20) if findings(run_of(jitter=0.25, seed=seed))]
    assert len(accused) <= 1


def test_a_degrading_engine_is_found_on_at_least_nineteen_seeds_of_twenty() -> None:
    seeds = [
        seed
        for seed in range(20)
        if "sustained.degraded"
        in findings(run_of(slower=lambda index: 2.0 if index >= 10 else 1.0, jitter=0.15, seed=seed))
    ]
    assert len(seeds) >= 19


def test_the_gate_asks_for_the_drift_of_a_length_when_a_claim_has_it() -> None:
    claim = claim_of(run_of(slower=lambda index: 2.0 if index >= 12 else 1.0, jitter=0.02))
    verdicts = gate(claim, ["sustained_ttft_ratio@200 <= 1.25", "sustained_tpot_ratio <= 10", "kv_floor_rise <= 1%"])
    assert [type(verdict).__name__ for verdict in verdicts.verdicts] == ["Fail", "Pass", "Pass"]
    assert claim_of(run_of()) == claim_of(run_of())
