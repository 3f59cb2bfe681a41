"""How surely lies under load are found, and how often an honest engine is accused.

    python benchmarks/lie_detection.py [--seeds N] [--only LIE] [--workers N]

Every lie is told by an engine with shared steps and jitter, met by the probe it concerns, and must be named by its own
finding in the claim; seeds change the jitter, the prompts and the load. The honest engine, as slow and as jittery, is
met by every probe, and any finding about it is a false accusation. Prints a line per case, what was missed or said
wrongly, and as the last line `worst detection X % false accusations Y %`. Exit 0 when every lie is found on 19 of 20
seeds and the honest engine is accused on at most 1 of 20.

Where the windows of a run say that the client came back late for more than 15 % of the time, the times are those of
a machine that was busy elsewhere, and readers conclude nothing from them: such a run is made again, up to three times.
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
from lying.prober import ask_all
from lying.served import served

from longproof.claim.derive import claim_of, load_view
from longproof.claim.load_spans import late_share
from longproof.evidence.records import WindowBody

_LEAST_DETECTED = 0.95
_MOST_ACCUSED = 0.05
_TRIES = 3
_MOST_LATE = 0.15


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What was found of one case with one seed."""

    case: str
    seed: int
    findings: tuple[str, ...]
    seconds: float
    late_share: float
    tries: int
    error: str = ""

    @property
    def named(self) -> bool:
        return not self.error and bool(CASES[self.case].named_by & set(self.findings))

    @property
    def accused(self) -> bool:
        """A run that broke has not shown that nobody is accused."""
        return bool(self.error or self.findings)


def run_case(case: str, seed: int) -> Result:
    """One case in this process, again where the machine was busy elsewhere."""
    result = _run_once(case, seed, 1)
    while result.late_share > _MOST_LATE and result.tries < _TRIES:
        result = _run_once(case, seed, result.tries + 1)
    return result


def _run_once(case: str, seed: int, tries: int) -> Result:
    started = time.monotonic()
    found: tuple[str, ...] = ()
    late_share = 0.0
    error = ""
    try:
        found, late_share = asyncio.run(_findings(case, seed))
    except Exception as problem:  # one run that breaks must not end the others; it counts as missed
        error = _told(problem)
    took = time.monotonic() - started
    return Result(case=case, seed=seed, findings=found, seconds=took, late_share=late_share, tries=tries, error=error)


def _told(problem: BaseException) -> str:
    """The first error of a group, however deep."""
    while isinstance(problem, BaseExceptionGroup):
        problem = problem.exceptions[0]
    return f"{type(problem).__name__}: {problem}"


async def _findings(case: str, seed: int) -> tuple[tuple[str, ...], float]:
    """The findings' ids, and how late the client was in its worst window."""
    asked = CASES[case]
    decode = None if asked.decode is None else asked.decode.but(seed=seed + 1)
    with tempfile.TemporaryDirectory() as place, served(asked.engine.but(seed=seed), decode) as at:
        directory = Path(place) / "evidence"
        await ask_all(at.urls, directory, asked.asks, seed=seed, restart_command=at.restart_command)
        view = load_view(directory)
    windows = [record.body for record in view.records if isinstance(record.body, WindowBody)]
    ids = {finding.id for finding in claim_of(view).findings}
    return tuple(sorted(ids)), max(map(late_share, windows), default=0.0)


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
        waiting = [pool.submit(run_case, name, seed) for seed in range(seeds) for name in chosen]
        for done in as_completed(waiting):
            result = done.result()
            results.append(result)
            says = result.error or ", ".join(result.findings) or "-"
            run = f"{result.seconds:.1f} s, try {result.tries}, {100 * result.late_share:.1f} % late"
            print(f"{result.case} seed {result.seed}: {says} ({run})", file=sys.stderr, flush=True)
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
    disturbed = sum(result.late_share > _MOST_LATE for result in results)
    again = sum(result.tries - 1 for result in results)
    print(
        f"{again} runs were made again because the machine was busy elsewhere; {disturbed} of those counted were still"
    )
    accused = len(accused_seeds) / len(honest_seeds) if honest_seeds else 0.0
    print(f"worst detection {100 * detection:.0f} % false accusations {100 * accused:.0f} %")
    return 0 if detection >= _LEAST_DETECTED and accused <= _MOST_ACCUSED else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
