"""The arithmetic of the benchmarks on a real vLLM: what they would say of runs that are known."""

from __future__ import annotations

import argparse
import importlib
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def protection(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    yield from _module("gateway_protection", monkeypatch)


@pytest.fixture
def drift(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    yield from _module("gateway_drift", monkeypatch)


def _module(name: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield importlib.import_module(name)
    for loaded in (name, "real_vllm"):
        sys.modules.pop(loaded, None)


def seen(module: ModuleType, kind: str, sent_s: float, first_s: float, gap_s: float, tokens: int) -> Any:
    at = [first_s + gap_s * number for number in range(tokens)]
    return module.Seen(kind, sent_s, sent_s=sent_s, ended_s=at[-1], at=at, status=200, prompt_tokens=3_000)


def turn(module: ModuleType, arm: str, gap_s: float, preemptions: int, *, giants: int = 2) -> Any:
    chats = [seen(module, "chat", number, number + 0.1, gap_s, 20) for number in range(400)]
    chats += [seen(module, "giant", 4.0, 9.0, 0.05, 8) for _ in range(giants)]
    names = module.ENGINE
    samples = [{"at_s": at, names[0]: 0.5, names[1]: preemptions * at, names[2]: 1.0} for at in (0.0, 1.0)]
    return module.Turn(arm, chats, preemptions, 3.0, samples)


def test_the_verdict_holds_when_nothing_is_preempted_and_the_pace_is_kept(protection: ModuleType) -> None:
    turns = [turn(protection, "idle", 0.02, 0, giants=0), turn(protection, "without", 0.2, 3)]
    found = protection.figures([*turns, turn(protection, "with", 0.025, 0)])
    assert found["with"]["tpot_ms"]["p50"][0] == pytest.approx(25)
    said = protection.verdict(found)
    assert said["holds"]
    assert said["tpot_p99_over_idle"] == pytest.approx({"without": 10, "with": 1.25})
    assert said["giants_done"] == {"without": "2/2", "with": "2/2"}


@pytest.mark.parametrize(("gap_s", "preemptions"), [(0.03, 0), (0.02, 1)])
def test_the_verdict_does_not_hold_when_the_pace_is_lost_or_something_is_preempted(
    protection: ModuleType, gap_s: float, preemptions: int
) -> None:
    turns = [turn(protection, "idle", 0.02, 0, giants=0), turn(protection, "without", 0.2, 3)]
    assert not protection.verdict(protection.figures([*turns, turn(protection, "with", gap_s, preemptions)]))["holds"]


def test_a_giant_that_is_never_answered_is_no_success(protection: ModuleType) -> None:
    turns = [turn(protection, "idle", 0.02, 0, giants=0), turn(protection, "without", 0.2, 3)]
    last = turn(protection, "with", 0.02, 0)
    last.seen.append(protection.Seen("giant", 4.0, sent_s=4.0, ended_s=100.0, error="not answered"))
    found = protection.figures([*turns, last])
    assert (found["with"]["giants_done"], found["with"]["giants"], found["with"]["failed"]) == (2, 3, 1)
    assert not protection.verdict(found)["holds"]


def test_the_plot_is_drawn(protection: ModuleType, tmp_path: Path) -> None:
    turns = [turn(protection, arm, 0.02, 1) for arm in protection.ARMS]
    protection.plot(turns, protection.figures(turns), argparse.Namespace(plot=tmp_path / "plot.svg"))
    assert (tmp_path / "plot.svg").stat().st_size > 10_000


def test_chats_leave_at_the_same_moments_and_begin_in_their_own_way_in_every_arm(protection: ModuleType) -> None:
    options = argparse.Namespace(seconds=60.0, rate=1.0, longest_output=320)
    one, other = (protection.chats(options, 0, arm) for arm in ("idle", "with"))
    assert [(c.at_s, c.output_tokens) for c in one] == [(c.at_s, c.output_tokens) for c in other]
    assert all(a.messages != b.messages for a, b in zip(one, other, strict=True))


def test_drift_is_told_per_active_request(drift: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    draw = random.Random(1)
    rows = []
    for number in range(100):
        active = float(draw.randint(1, 8))
        # a tenth of them in prefill, three blocks a request too many; a step ago it was right
        off = 3.0 * active if number % 10 == 0 else active
        rows.append({"ledger": 50 + off, "nearest": 50.0, "engine": 50.0, "active": active, "engine_active": active})
        rows[-1] |= {"at_s": float(number), "held": 80.0, "prefilling": float(number % 10 == 0)}
    requests = [drift.Seen("chat", 0.0, status=200, at=[1.0])]
    told = drift.report(rows, requests, argparse.Namespace(lag=0.5))
    assert told["now, all"]["within"] == pytest.approx(0.9)
    assert told["now, no prefill"] == {"n": 90, "within": 1.0, "p50": 1.0, "p1": 1.0, "p99": 1.0}
    assert told["now, in prefill"]["within"] == 0.0
    assert told["of the last 0.5 s, all"]["within"] == 1.0
    assert "100 samples, 1 requests: chat 1" in capsys.readouterr().out
