"""Predicted against published performance: python benchmarks/perf_truth.py ROWS.jsonl [--peer PYTHON]

One line per row that can be done, grouped; then the rows that cannot, with the reason; then the summary. The last line
reads `prefill median X % p90 Y % decode median X % p90 Y %`. Measured and figure rows count there; claims and
simulations are never compared. A formula agrees when it is right to two significant digits or within 1 %: its sources
print rounded figures and round their inputs.
"""

from __future__ import annotations

import math
import re
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from perf_metrics import METRICS
from perf_peer import Peer
from perf_rows import CannotDo, Row, device, layout, read_rows, seconds, work

from longproof.errors import LongproofError
from longproof.plan.perf_estimate import peak_flops, rates_of
from longproof.plan.perf_links import NIC_SHARE, scale_out_rate
from longproof.plan.perf_prefill import ring_heads
from longproof.plan.perf_ring import RingPass, choose_pass

COMPARED = ("measured", "figure", "formula")
OTHER_REASONS = {
    "capacity, not time: benchmarks/plan_truth.py": r"kv_capacity|max_concurrency|max_resident|kv_bytes_non_swa",
    "a fleet under load, not one engine's time": r"under_load|conc8|kv_usage|throughput|_tps_|p50|ttft_median|round8|"
    r"tpot_median|ttft_mean|_gain",
    "memory of training": r"max_context",
    "a kernel inside a step, which is not predicted on its own": r"decode_|attention_kernel|attention_time|_quadratic",
    "a coefficient of a fit that does not reproduce its own table": r"h_coefficient",
    "a remark that its source's table contradicts, or that repeats other rows": r"latency_gap|crossover|parallel_eff",
}


def other_reason(metric: str) -> str:
    """Why a metric has no prediction."""
    return next(
        (why for why, names in OTHER_REASONS.items() if re.search(names, metric)), "no prediction for this metric"
    )


@dataclass(frozen=True, kw_only=True)
class Done:
    """A row with its prediction."""

    row: Row
    group: str
    predicted: float
    band: float | None = None

    @property
    def error(self) -> float:
        """Relative, signed."""
        return self.predicted / self.row.value - 1 if self.row.value else math.inf

    @property
    def inside(self) -> bool:
        """Whether the published figure lies in the predicted band; a rate is the inverse of a time."""
        assert self.band is not None
        off = self.predicted / self.row.value if "/s" in self.row.unit else self.row.value / self.predicted
        return 1 - self.band <= off <= 1 + self.band

    @property
    def agrees(self) -> bool:
        """For formulas: right to two significant digits or within 1 %."""
        unit = 10 ** (math.floor(math.log10(abs(self.row.value))) - 1)
        return abs(self.error) <= 0.01 or abs(self.predicted - self.row.value) <= unit / 2


def main(arguments: Sequence[str]) -> int:
    """Print the comparison; 2 for a wrong call, 1 when a formula row disagrees, else 0."""
    if len(arguments) not in (1, 3) or (len(arguments) == 3 and arguments[1] != "--peer"):
        print("usage: python benchmarks/perf_truth.py ROWS.jsonl [--peer PYTHON]", file=sys.stderr)
        return 2
    rows = read_rows(Path(arguments[0]))
    done, left = predict_all(rows)
    print_rows(done)
    print_left(left)
    print_choices(rows)
    if len(arguments) == 3:
        print_peer(done, arguments[2])
    return print_summary(done, len(rows))


def predict_all(rows: Sequence[Row]) -> tuple[list[Done], list[tuple[Row, str]]]:
    """Rows with predictions, and the others with their reasons."""
    done: list[Done] = []
    left: list[tuple[Row, str]] = []
    for row in rows:
        metric = METRICS.get(row.metric)
        if row.value == 0:
            left.append((row, "the published figure is 0: no relative error"))
        elif row.kind not in COMPARED:
            left.append((row, f"a {row.kind} is not compared"))
        elif metric is None:
            left.append((row, other_reason(row.metric)))
        elif "suspect" in row.notes or "as printed" in row.notes:
            left.append((row, "the source's own figure is doubtful (its notes say so)"))
        else:
            try:
                group = "formula" if row.kind == "formula" else metric.group
                band = metric.estimate(row).band if metric.estimate is not None else None
                done.append(Done(row=row, group=group, predicted=metric.predict(row), band=band))
            except (CannotDo, LongproofError) as reason:
                left.append((row, str(reason)))
    return done, left


def print_rows(done: Sequence[Done]) -> None:
    """One line per row, by group."""
    for group in sorted({d.group for d in done}):
        print(f"\n{group}")
        for d in sorted((d for d in done if d.group == group), key=lambda d: (d.row.metric, d.row.model, d.row.id)):
            verdict = ("  agrees" if d.agrees else "  DISAGREES") if group == "formula" else ""
            print(
                f"  {d.row.id:<44} {d.row.metric:<32} predicted {d.predicted:>12.5g} published {d.row.value:>12.5g} "
                f"{d.row.unit:<10} error {100 * d.error:+7.1f} %{verdict}"
            )


def print_left(left: Sequence[tuple[Row, str]]) -> None:
    """The rows without a prediction, by reason."""
    by_reason: dict[str, list[str]] = defaultdict(list)
    for row, reason in left:
        by_reason[reason].append(row.id)
    print(f"\nnot done: {len(left)}")
    for reason, ids in sorted(by_reason.items(), key=lambda item: -len(item[1])):
        print(f"  {len(ids):>3}  {reason}: {', '.join(ids)}")


def choose(row: Row, context: int, cached: int) -> RingPass | None:
    """What the rule passes around for this row; None when the row does not say enough."""
    try:
        on, spread = device(row), layout(row)
        attention = next(x.attention for x in work(row).layers if x.attention is not None)
        flops, rate = peak_flops(on, "bf16") * rates_of(on).prefill, NIC_SHARE * scale_out_rate(on)
    except (CannotDo, LongproofError):
        return None
    heads = ring_heads(attention)
    return choose_pass(heads, ranks=spread.pcp, flops=flops, rate=rate, new=context - cached, cached=cached)


def print_choices(rows: Sequence[Row]) -> None:
    """pass-KV or pass-Q for every prompt both were measured on."""
    cells: dict[tuple[str, str, str, int, int], dict[RingPass, Row]] = defaultdict(dict)
    for row in rows:
        for ring in RingPass:
            if row.metric == "prefill_latency" and ring.value.lower() in row.layout.lower() and row.kind == "measured":
                base = row.layout.lower().replace(ring.value.lower(), "").strip()
                cells[row.model, row.hardware, base, row.context or 0, row.cached or 0][ring] = row
    right = total = 0
    worst = 0.0
    print("\npass-KV or pass-Q")
    for (_, _, _, context, cached), both in sorted(cells.items(), key=lambda item: item[0][3] - item[0][4]):
        if len(both) < 2:
            continue
        chosen = choose(both[RingPass.KV], context, cached)
        if chosen is None:
            continue
        best = min(both, key=lambda ring: seconds(both[ring]))
        regret = seconds(both[chosen]) / seconds(both[best]) - 1
        right, total, worst = right + (chosen is best), total + 1, max(worst, regret)
        print(
            f"  new {context - cached:>7} of {context:>7}: chosen {chosen.value:<8} best {best.value:<8} "
            f"regret {100 * regret:.2f} %"
        )
    print(f"  right {right} of {total}, worst regret {100 * worst:.2f} % (prompts measured one way only are left out)")


def print_peer(done: Sequence[Done], python: str) -> None:
    """AIConfigurator on the prefill and decode rows it can do, beside this planner on the same rows.

    Not a fair fight: this planner's constants were fitted on some of these runs, AIConfigurator's tables on kernels.
    """
    pairs: dict[str, list[tuple[Done, float]]] = defaultdict(list)
    reasons: dict[str, int] = defaultdict(int)
    print("\nAIConfigurator on the same rows (constants used here were fitted on some of these runs, its own were not)")
    with Peer(python) as peer:
        for d in done:
            if d.group not in ("prefill", "decode"):
                continue
            try:
                told = peer.predict(d.row, d.group)
            except (CannotDo, LongproofError) as reason:
                reasons[str(reason)] += 1
                continue
            pairs[d.group].append((d, told))
            print(
                f"  {d.row.id:<44} published {d.row.value:>12.5g} {d.row.unit:<10} here {100 * d.error:+7.1f} %  "
                f"peer {100 * (told / d.row.value - 1):+7.1f} %"
            )
    for group, both in pairs.items():
        here, there = (
            _spread(e) for e in zip(*((abs(d.error), abs(p / d.row.value - 1)) for d, p in both), strict=True)
        )
        print(f"  {group}, {len(both)} rows: here {here}; AIConfigurator {there}")
    for reason, count in sorted(reasons.items(), key=lambda item: -item[1]):
        print(f"  {count:>3} rows not: {reason}")


def print_summary(done: Sequence[Done], rows: int) -> int:
    """Median and 90th percentile of the absolute error by metric and group; the last line is the verdict's."""
    print(f"\nsummary: {len(done)} of {rows} rows")
    for metric in sorted({(d.group, d.row.metric) for d in done}):
        errors = [abs(d.error) for d in done if (d.group, d.row.metric) == metric]
        print(f"  {metric[0]:<16} {metric[1]:<34} n {len(errors):>3}  {_spread(errors)}")
    within = [d for d in done if d.group == "prefill"]
    print(f"  prefill rows within 10 %: {sum(abs(d.error) <= 0.10 for d in within)} of {len(within)}")
    for group in ("prefill", "decode"):
        banded = [d for d in done if d.group == group and d.band is not None]
        print(f"  {group} rows inside their error band: {sum(d.inside for d in banded)} of {len(banded)}")
    formulas = [d for d in done if d.group == "formula"]
    wrong = [d.row.id for d in formulas if not d.agrees]
    print(f"  formula rows that agree: {len(formulas) - len(wrong)} of {len(formulas)} {' '.join(wrong)}".rstrip())
    parts = [f"{group} {_spread([abs(d.error) for d in done if d.group == group])}" for group in ("prefill", "decode")]
    print(" ".join(parts))
    return 1 if wrong else 0


def _spread(errors: Sequence[float]) -> str:
    if not errors:
        return "median - % p90 - %"
    ordered = sorted(errors)
    middle = (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2
    ninth = ordered[math.ceil(0.9 * len(ordered)) - 1]
    return f"median {100 * middle:.1f} % p90 {100 * ninth:.1f} %"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
