"""The fidelity benchmark's own arithmetic: every request is matched with its stamps, and a wrong report shows."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def fidelity(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    module = importlib.import_module("fidelity")
    monkeypatch.setattr(module, "RUSH_NS", 0)
    monkeypatch.setitem(module.PACES, 2, (200.0, 5))
    yield module
    for name in ("fidelity", "prompt_build"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("mode", ["spread", "steps"])
def test_every_request_is_matched_and_a_wrong_report_shows(fidelity: ModuleType, mode: str, tmp_path: Path) -> None:
    server = fidelity.Server()

    def late(*given: object) -> tuple[dict, dict]:
        reported, told = fidelity.TOOLS["longproof"](*given)
        wrong = {
            name: replace(one, ttft_ms=one.ttft_ms + 60_000, gaps_ms=[gap + 60_000 for gap in one.gaps_ms])
            for name, one in reported.items()
        }
        return wrong, told

    try:
        turns = {
            name: fidelity.take_turn(server, tool, 2, mode, 0, tmp_path)
            for name, tool in (("floor", fidelity.TOOLS["floor"]), ("late", late))
        }
    finally:
        server.close()
    for turn in turns.values():
        assert turn.requests == 6  # 3 rounds of 2 streams
        assert {name: len(errors) for name, errors in turn.errors.items()} == {
            "TTFT": 6,
            "first": 6,
            "ITL": 24,  # 4 gaps between 5 tokens
            "mean": 6,
        }
        assert turn.cpu_us is not None
    assert min(turns["late"].errors["TTFT"]) > 30_000
    assert min(turns["late"].errors["ITL"]) > 30_000
    assert max(turns["floor"].errors["TTFT"]) < 30_000
