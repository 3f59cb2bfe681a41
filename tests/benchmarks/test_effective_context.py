"""The simulation of the decision procedure, with few runs: that it says what it promises, in the form it promises."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "effective_context.py"


def test_the_last_line_is_the_verdict_when_few_runs_are_made() -> None:
    done = subprocess.run([sys.executable, str(SCRIPT), "--seeds", "12"], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    verdict = re.fullmatch(r"over-claims (\d+\.\d) % coverage (\d+\.\d) %", lines[-1])
    assert verdict is not None
    # 18 models of 12 runs: an over-claim of 5 % would be 11 of 216, and three standard errors are 4.4 %.
    assert float(verdict[1]) < 9.4
    assert float(verdict[2]) > 85
    assert done.returncode in (0, 1)  # 1 where few runs miss the coverage


def test_the_table_names_every_model_and_both_costs() -> None:
    done = subprocess.run([sys.executable, str(SCRIPT), "--seeds", "2"], capture_output=True, text=True, check=False)
    rows = [line for line in done.stdout.splitlines()[2:20] if len(line.split()) > 16]
    assert len(rows) == 18
    assert "mean cost" in done.stdout
    assert "59 a cell" in done.stdout


def test_unknown_options_are_refused() -> None:
    done = subprocess.run([sys.executable, str(SCRIPT), "--runs", "1"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
