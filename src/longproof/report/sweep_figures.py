"""Figures of the sweep: one map of length by concurrency per metric and cache."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from longproof.claim.statements import Claim, Statement
from longproof.domain.measure import Measured
from longproof.report.figures import Figure
from longproof.report.plot_frame import Words
from longproof.report.row_plots import HeatCell, heat

_CACHES = {"cold": "cold", "hit": "with a known prefix"}
_METRICS = {
    "sweep_ttft": ("Time to first token", "requests"),
    "sweep_tpot": ("Time per output token", "requests"),
    "sweep_itl_p95": ("Gap between tokens, p95", "requests"),
    "sweep_output_rate": ("Output tokens a second, all together", "rounds"),
    "sweep_goodput": ("Goodput: requests a second within the SLO", "rounds"),
    "sweep_slo_attainment": ("Share within the SLO", "requests"),
}
"""What is drawn, in order; the last two exist where an SLO was given."""


def sweep(claim: Claim) -> Iterator[Figure]:
    """Maps with at least two cells; cold beside known prefix."""
    for metric, (title, of) in _METRICS.items():
        for cache, label in _CACHES.items():
            found = [item for item in claim.statements if item.metric == metric and _is_cell(item, cache)]
            if len(found) > 1:
                yield _map(found, metric, cache, f"{title}, {label}", of)


def _is_cell(item: Statement, cache: str) -> bool:
    placed = item.at_tokens is not None and "concurrency" in item.conditions
    return placed and item.conditions.get("cache") == cache and isinstance(item.value, Measured)


def _map(found: Sequence[Statement], metric: str, cache: str, title: str, of: str) -> Figure:
    cells = {
        (item.at_tokens, int(item.conditions["concurrency"])): HeatCell(value=item.value.value, n=item.n)
        for item in found
        if item.at_tokens is not None and isinstance(item.value, Measured)
    }
    rows, columns = sorted({length for length, _ in cells}), sorted({many for _, many in cells})
    empty = HeatCell(value=None, n=0)
    grid = [[cells.get((row, column), empty) for column in columns] for row in rows]
    gap = " A dash was not measured." if len(cells) < len(rows) * len(columns) else ""
    words = Words(name=f"{metric}-{cache}".replace("_", "-"), title=title, axis="prompt tokens", unit=found[0].unit)
    return Figure(
        title=title,
        svg=heat(rows, columns, grid, words),
        caption=f"A stronger colour is more; n counts {of}.{gap}",
    )
