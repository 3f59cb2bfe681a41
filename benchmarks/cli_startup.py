"""How long `longproof --help` takes, against the interpreter's own start.

    python benchmarks/cli_startup.py [runs]

Target: under 200 ms at the median. A benchmark and not a test: a busy machine is no regression.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path

TARGET_MS = 200
BIN = Path(sys.executable).parent


def times_ms(command: list[str], runs: int) -> list[float]:
    """Wall-clock times of `runs` starts, after one that warms the file cache."""
    subprocess.run(command, capture_output=True, check=True)
    taken: list[float] = []
    for _ in range(runs):
        began = time.perf_counter_ns()
        subprocess.run(command, capture_output=True, check=True)
        taken.append((time.perf_counter_ns() - began) / 1e6)
    return taken


def main() -> int:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    median_ms = 0.0
    for name, command in {
        "python -c pass": [sys.executable, "-c", "pass"],
        "import longproof": [sys.executable, "-c", "import longproof"],
        "longproof --help": [str(BIN / "longproof"), "--help"],
    }.items():
        taken = times_ms(command, runs)
        median_ms = statistics.median(taken)
        print(f"{name:18} median {median_ms:6.1f} ms   min {min(taken):6.1f}   max {max(taken):6.1f}   n {runs}")
    print(f"target for --help: under {TARGET_MS} ms, {'met' if median_ms < TARGET_MS else 'missed'}")
    return 0 if median_ms < TARGET_MS else 1


if __name__ == "__main__":
    sys.exit(main())
