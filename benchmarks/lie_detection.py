"""How surely lies under load are found, and how often an honest engine is accused.

    python benchmarks/lie_detection.py [--seeds N] [--only LIE] [--workers N]

Every lie is told by an engine with shared steps and jitter, met by the probe it concerns, and must be named by its own
finding in the claim; seeds change the jitter, the prompts and the load. The honest engine, as slow and as jittery, is
met by every probe, and any finding about it is a false accusation. Prints a line per case, what was missed or said
wrongly, and as the last line `worst detection X % false accusations Y %`. Exit 0 when every lie is found on 19 of 20
seeds and the honest engine is accused on at most 1 of 20.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from lying.cases import CASES
from lying.prober import claim_about

from longproof.testing.lying_engine import lying_engine

_LEAST_DETECTED = 0.95
_MOST_ACCUSED = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What was found of one case with one seed."""

    case: str
    seed: int
    findings: tuple[str, ...]
    seconds: float
    error: str = ""

    @property
    def named(self) -> bool:
        return not self.error and bool(CASES[self.case].named_by & set(self.findings))

    @property
    def accused(self) -> bool:
        """A run that broke has not shown that nobody is accused."""
        return bool(self.error or self.findings)


def run_case(case: str, seed: int) -> Result:
    """One case in this process."""
    started = time.monotonic()
    found: tuple[str, ...] = ()
    error = ""
    try:
        found = asyncio.run(_findings(case, seed))
    except Exception as problem:  # one run that breaks must not end the others; it counts as missed
        error = f"{type(problem).__name__}: {problem}"
    return Result(case=case, seed=seed, findings=found, seconds=time.monotonic() - started, error=error)


async def _findings(case: str, seed: int) -> tuple[str, ...]:
    asked = CASES[case]
    with tempfile.TemporaryDirectory() as place:
        engine = lying_engine(asked.engine.but(seed=seed))
        async with engine as url:
            restart = f"{sys.executable} -m longproof.testing.restart {engine.control_url}"
            claim = await claim_about(url, Path(place) / "evidence", asked.asks, seed=seed, restart_command=restart)
    return tuple(sorted({finding.id for finding in claim.findings}))


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--only", action="append", metavar="LIE", help=f"one of {', '.join(CASES)}")
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) // 2))
    options = parser.parse_args(arguments)
    chosen = [name for name in CASES if not options.only or any(name.startswith(only) for only in options.only)]
    if not chosen:
        parser.error(f"no such lie: {', '.join(options.only)}")
    results = _run_all(chosen, options.seeds, options.workers)
    return _report(chosen, results)


def _run_all(chosen: Iterable[str], seeds: int, workers: int) -> list[Result]:
    results: list[Result] = []
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        waiting = [pool.submit(run_case, name, seed) for name in chosen for seed in range(seeds)]
        for done in as_completed(waiting):
            result = done.result()
            results.append(result)
            says = result.error or ", ".join(result.findings) or "-"
            print(f"{result.case} seed {result.seed}: {says} ({result.seconds:.1f} s)", file=sys.stderr, flush=True)
    return results


def _report(chosen: list[str], results: list[Result]) -> int:
    print(f"{'case':<22} {'found':>9} {'accused':>9}   s/run  also said, or why not")
    detection, accused_seeds, honest_seeds = 1.0, set[int](), set[int]()
    for name in chosen:
        mine = [result for result in results if result.case == name]
        honest = not CASES[name].named_by
        good = sum(result.accused if honest else result.named for result in mine)
        share = f"{good}/{len(mine)}"
        others = Counter(f for result in mine for f in (result.findings or (result.error,)) if f)
        words = ", ".join(f"{what} x{n}" for what, n in others.items() if what not in CASES[name].named_by)
        seconds = sum(result.seconds for result in mine) / len(mine)
        columns = ("", share) if honest else (share, "")
        print(f"{name:<22} {columns[0]:>9} {columns[1]:>9} {seconds:>7.1f}  {words}")
        if honest:
            honest_seeds |= {result.seed for result in mine}
            accused_seeds |= {result.seed for result in mine if result.accused}
        else:
            detection = min(detection, good / len(mine))
    accused = len(accused_seeds) / len(honest_seeds) if honest_seeds else 0.0
    print(f"worst detection {100 * detection:.0f} % false accusations {100 * accused:.0f} %")
    return 0 if detection >= _LEAST_DETECTED and accused <= _MOST_ACCUSED else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
