"""How often the planner agrees with what real servers reported.

    python benchmarks/plan_truth.py CASES.jsonl MODELS.jsonl

CASES.jsonl holds public reports of vLLM, SGLang, llama.cpp and TensorRT-LLM, MODELS.jsonl the configs of their models.
Prints one line per case (predicted, observed, verdict), a summary by engine, architecture and class, each disagreement
by name, and as the last line `agree A of B (exact, exact-ratio, exact-need)`. Exit 0 when every case of those classes
whose model is known agrees within the rounding of its log. Predictions come from the model's config and the engine's
rules alone.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from truth.cases import COUNTED, Case, read_cases
from truth.judges import judge
from truth.models import KnownModels
from truth.verdict import Outcome, Verdict


def main(arguments: list[str]) -> int:
    """Judge all cases; 0 when every counted one agrees."""
    if len(arguments) != 2:
        print("usage: python benchmarks/plan_truth.py CASES.jsonl MODELS.jsonl", file=sys.stderr)
        return 2
    models = KnownModels.read(Path(arguments[1]))
    results = [(case, judge(case, models)) for case in read_cases(Path(arguments[0]))]
    for case, verdict in results:
        print(_line(case, verdict))
    print()
    _summary(results)
    _explanations(results)
    counted = [verdict for case, verdict in results if case.kind in COUNTED and verdict.outcome is not Outcome.UNKNOWN]
    agreed = sum(verdict.outcome is Outcome.AGREES for verdict in counted)
    print(f"agree {agreed} of {len(counted)} ({', '.join(COUNTED)})")
    return 0 if agreed == len(counted) else 1


def _line(case: Case, verdict: Verdict) -> str:
    assumed = f" [not recorded, taken: {verdict.assumed}]" if verdict.assumed else ""
    predicted = f"predicted {verdict.predicted}" if verdict.predicted else f"not computed: {verdict.why}"
    outcome = f"{verdict.outcome}{assumed}"
    return f"{case.id} ({case.engine}, {case.kind}): {predicted} | observed {verdict.observed} | {outcome}"


def _summary(results: list[tuple[Case, Verdict]]) -> None:
    for title, key in (
        ("engine", lambda case: case.engine),
        ("architecture", lambda case: case.architecture),
        ("class", lambda case: case.kind),
    ):
        totals: Counter[str] = Counter()
        outcomes: Counter[tuple[str, Outcome]] = Counter()
        for case, verdict in results:
            totals[key(case)] += 1
            outcomes[key(case), verdict.outcome] += 1
        print(f"by {title}")
        for name, total in sorted(totals.items()):
            parts = [f"{count} {kind}" for kind in Outcome if (count := outcomes[name, kind])]
            print(f"  {name}: {total} cases: {', '.join(parts)}")


def _explanations(results: list[tuple[Case, Verdict]]) -> None:
    for title, outcome in (("disagreements", Outcome.DISAGREES), ("not computed", Outcome.UNKNOWN)):
        named = [(c, v) for c, v in results if v.outcome is outcome and (c.kind in COUNTED or c.kind == "log-wrong")]
        print(f"{title}: {len(named)} (counted classes and log-wrong)")
        for case, verdict in named:
            print(f"  {case.id}: {verdict.why}" + (f" (report: {case.notes})" if case.notes else ""))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
