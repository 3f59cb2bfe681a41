"""The comparison with published performance, run on rows made here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "perf_truth.py"
EMPTY = {"gpus": None, "layout": None, "context_tokens": None, "cached_tokens": None, "batch": 1, "hardware": None}
TTFT = EMPTY | {
    "id": "any-name", "model": "Llama-3.1-8B bf16", "hardware": "H100 80GB SXM", "gpus": 1, "layout": "TP1",
    "context_tokens": 50_000, "cached_tokens": 0, "metric": "ttft", "value": 2_289, "unit": "ms",
    "notes": "[figure] read from a plot",
}  # fmt: skip
FORMULA = EMPTY | {
    "id": "flop", "model": "Llama-3.1-405B", "context_tokens": 1_000_000, "metric": "attention_flop", "value": 4.1e18,
    "unit": "FLOP", "notes": "[formula] 2*T^2*16384*126",
}  # fmt: skip
CLAIM = TTFT | {"id": "boast", "value": 1, "notes": "[claim] up to"}
STRANGER = TTFT | {"id": "stranger", "model": "Nobody-7B"}


def run(tmp_path: Path, *rows: dict[str, object]) -> subprocess.CompletedProcess[str]:
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    return subprocess.run([sys.executable, str(SCRIPT), str(path)], capture_output=True, text=True, check=False)


def test_rows_are_predicted_whatever_they_are_called(tmp_path: Path) -> None:
    first = run(tmp_path, TTFT)
    renamed = run(tmp_path, TTFT | {"id": "another-name"})
    assert first.returncode == renamed.returncode == 0
    assert first.stdout.splitlines()[-1] == renamed.stdout.splitlines()[-1]


def test_the_last_line_is_the_verdict(tmp_path: Path) -> None:
    done = run(tmp_path, TTFT, FORMULA)
    assert done.returncode == 0, done.stderr
    last = done.stdout.splitlines()[-1]
    # 50k tokens: 1.3956e10 * 5e4 + 2 * 2.5e9 * 131,072 = 1.353e15 FLOP / (0.6 * 989.4e12) = 2.280 s, 0.4 % below 2.289
    assert last == "prefill median 0.4 % p90 0.4 % decode median - % p90 - %"
    assert "formula rows that agree: 1 of 1" in done.stdout


def test_claims_and_unknown_models_are_listed_with_the_reason(tmp_path: Path) -> None:
    done = run(tmp_path, TTFT, CLAIM, STRANGER)
    assert "a claim is not compared: boast" in done.stdout
    assert "no geometry is known for 'Nobody-7B': stranger" in done.stdout
    assert "summary: 1 of 3 rows" in done.stdout


def test_a_formula_that_disagrees_fails_the_run(tmp_path: Path) -> None:
    done = run(tmp_path, FORMULA | {"value": 5.1e18})
    assert done.returncode == 1
    assert "DISAGREES" in done.stdout
