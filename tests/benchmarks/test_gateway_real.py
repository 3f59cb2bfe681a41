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

from longproof.gateway.config import read_config

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
    for loaded in (name, "real_vllm", "protection_plot"):
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
    file = tmp_path / "plot.svg"
    protection.plot(turns, protection.figures(turns), file, replicas=2, target=1.3)
    assert file.stat().st_size > 10_000


def test_what_is_promised_rests_on_the_idle_turn(protection: ModuleType) -> None:
    idle = turn(protection, "idle", 0.02, 0, giants=0)
    assert protection.promised_ms(idle, "auto", 1.25) == pytest.approx(25)
    assert protection.promised_ms(idle, "30ms", 1.25) == pytest.approx(30)
    assert protection.promised_ms(idle, "none", 1.25) is None


@pytest.mark.parametrize("urls", [["http://a"], ["http://a", "http://b"]])
@pytest.mark.parametrize("slots", [None, 4])
def test_the_gateway_takes_the_configuration_that_is_written(
    protection: ModuleType, tmp_path: Path, urls: list[str], slots: int | None
) -> None:
    options = argparse.Namespace(slots=slots, itl="100ms", giant_tokens=3_000, age_bound="8s", share=0.5)
    file = tmp_path / "fleet.toml"
    file.write_text(protection.fleet(urls, tmp_path, 32.06, options), encoding="utf-8")
    config = read_config(file)
    assert [replica.url for replica in config.replica] == urls
    assert config.slo.tpot == 32_100_000
    assert config.pools.long_pool == (None if len(urls) == 1 else "long")
    assert {replica.slots for replica in config.replica} == {slots}


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
        # a tenth of them in prefill, three blocks a request too many; the next figure has two of them
        off = 3.0 * active if number % 10 == 0 else active
        rows.append({"ledger": 50 + off, "engine": 50.0, "next": 50 + 2 * active, "active": active})
        rows[-1] |= {"at_s": float(number), "held": 80.0, "engine_active": active}
        rows[-1]["prefilling"] = float(number % 10 == 0)
    requests = [drift.Seen("chat", 0.0, status=200, at=[1.0])]
    told = drift.report(rows, requests)
    assert told["last figure, all"]["within"] == pytest.approx(0.9)
    assert told["last figure, no prefill"] == {"n": 90, "within": 1.0, "p50": 1.0, "p1": 1.0, "p99": 1.0}
    assert told["last figure, in prefill"]["within"] == 0.0
    assert told["figures about the step, all"]["within"] == 1.0
    assert told["figures about the step, in prefill"]["p50"] == pytest.approx(1.0)
    assert "100 samples, 1 requests: chat 1" in capsys.readouterr().out


def test_a_moment_lies_between_the_figures_before_and_after_it(drift: ModuleType) -> None:
    ours = [
        {"at_s": at_s, 'longproof_kv_used_blocks{stage="kv"}': 10.0, "longproof_running_requests": 1.0}
        for at_s in (0.1, 0.4, 0.7, 5.0)
    ]
    usages = (0.0, 0.1), (0.3, 0.1), (0.5, 0.2), (0.8, 0.3), (9.0, 0.4)
    theirs = [{"at_s": at_s, "vllm:kv_cache_usage_perc{x}": usage} for at_s, usage in usages]
    found = drift.moments(ours, theirs, blocks=101, lag_s=2.0)
    # half a second apart; the next figure is one that has changed, and nobody waits nine seconds for it
    assert [row["at_s"] for row in found] == [0.1, 0.7, 5.0]
    assert [row["engine"] for row in found] == pytest.approx([10, 20, 30])
    assert [row["next"] for row in found] == pytest.approx([20, 30, 30])
    assert [drift.apart(row, in_step=True) for row in found] == pytest.approx([0, -10, -20])
