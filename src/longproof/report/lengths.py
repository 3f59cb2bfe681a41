"""The claim by length: one row per prompt length, with what it states there, cold and warm."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from longproof.claim.statements import Claim, Statement
from longproof.claim.view import EvidenceView
from longproof.domain.events import RequestTimeline
from longproof.domain.measure import Unknown
from longproof.domain.units import format_tokens
from longproof.report.numbers import DASH, number, sample_size, spread_text, value_text
from longproof.stats import quantile

TTFT, PREFILL, TPOT, ITL, E2E = "ttft", "prefill_rate", "tpot", "itl", "e2e"
_P95 = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A metric as a column: its id in `claim.metrics`, its heading, and a heading where room is short."""

    metric: str
    heading: str
    brief: str


SPEED = (
    Column(metric=TTFT, heading="time to first token, mean", brief="TTFT mean"),
    Column(metric="ttft_p95", heading="time to first token, p95 at most", brief="p95 ≤"),
    Column(metric=PREFILL, heading="prefill rate", brief="prefill"),
    Column(metric=TPOT, heading="time per output token", brief="TPOT"),
    Column(metric=ITL, heading="gap between chunks", brief="ITL"),
    Column(metric="ttft_exponent", heading="growth from the shorter length, power of n", brief="growth"),
    Column(metric=E2E, heading="end to end", brief="end to end"),
    Column(metric="success_rate", heading="completed", brief="done"),
)
CARD = tuple(column for column in SPEED if column.metric not in (ITL, "ttft_exponent", "success_rate"))
"""The columns that fit into 80 characters."""
WARMTH = (
    Column(metric="warm_ttft_ratio", heading="time to first token, again / cold", brief="again / cold"),
    Column(metric="cached_fraction", heading="taken from the cache, again", brief="cached"),
    Column(metric="new_tail_ttft_ratio", heading="time to first token, new tail / cold", brief="new tail / cold"),
    Column(metric="new_tail_cached_fraction", heading="taken from the cache, new tail", brief="cached, new tail"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A number as written, with its interval or n below it; `value` is a dash where the claim has none."""

    value: str
    spread: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One length. `cells` follow the table's columns."""

    tokens: int
    n: int
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows by length, with the columns for which the claim says anything; `notes` say why numbers are missing."""

    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...]

    def column(self, metric: str) -> int | None:
        """Where a metric's column stands, or None."""
        return next((at for at, column in enumerate(self.columns) if column.metric == metric), None)


ARMS = {"cold": "cold", "again": "same prompt again", "new_tail": "same prefix, new tail"}
"""The warmth probe's arms and what each asks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One arm at one length: times to first token in seconds, and the cached tokens the server reported (None = it
    did not)."""

    name: str
    ttft_s: tuple[float, ...]
    cached_tokens: tuple[int | None, ...]

    @property
    def range_text(self) -> str:
        """Smallest to largest time: ``1.40 s to 1.49 s``, or the only one."""
        low, high = number(min(self.ttft_s), "s"), number(max(self.ttft_s), "s")
        if low == high:
            return low
        same_unit = low.split()[-1] == high.split()[-1]
        return f"{low.split()[0]} to {high}" if same_unit else f"{low} to {high}"

    @property
    def cached_text(self) -> str:
        """Cached tokens as reported: ``511``, ``448 to 511``, ``not reported``, or ``not always reported``."""
        known = [tokens for tokens in self.cached_tokens if tokens is not None]
        if not known:
            return "not reported"
        if len(known) < len(self.cached_tokens):
            return "not always reported"
        low, high = format_tokens(min(known)), format_tokens(max(known))
        return low if low == high else f"{low} to {high}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Warm:
    """One length with the arms that gave a first token there."""

    tokens: int
    arms: tuple[Arm, ...]

    def arm(self, name: str) -> Arm | None:
        """The arm of this name, or None."""
        return next((arm for arm in self.arms if arm.name == name), None)


def warmth(view: EvidenceView) -> list[Warm]:
    """What the warmth probe saw, by length; requests without a first token are left out (the edge and evidence
    tables have them)."""
    found: dict[int, dict[str, list[RequestTimeline]]] = {}
    for _, body in view.requests("warmth"):
        arm = str(body.cell.get("arm"))
        if body.timeline.ttft_ns is not None and arm in ARMS:
            found.setdefault(int(body.cell["length"]), {}).setdefault(arm, []).append(body.timeline)
    return [
        Warm(tokens=length, arms=tuple(_arm(name, arms[name]) for name in ARMS if name in arms))
        for length, arms in sorted(found.items())
    ]


def _arm(name: str, timelines: Sequence[RequestTimeline]) -> Arm:
    return Arm(
        name=name,
        ttft_s=tuple(timeline.ttft_ns / 1e9 for timeline in timelines if timeline.ttft_ns is not None),
        cached_tokens=tuple(None if timeline.usage is None else timeline.usage.cached_tokens for timeline in timelines),
    )


def table(claim: Claim, probe: str, known: Sequence[Column]) -> Table:
    """The statements about these metrics that rest on one probe, one row per length.

    A column "ttft_p95" is derived from the samples of the mean: an upper bound at 95 %, where n allows one (n = 59
    and more).
    """
    wanted = {column.metric for column in known}
    found = {
        (item.metric, item.at_tokens): item
        for item in reversed(claim.statements)
        if item.at_tokens is not None and item.metric in wanted and item.id.startswith(f"{probe}.")
    }
    bounds = {at: bound for (metric, at), item in found.items() if metric == TTFT for bound in (_p95(item),)}
    held = {metric for metric, _ in found}
    if any(isinstance(bound, Cell) for bound in bounds.values()):
        held.add("ttft_p95")
    columns = tuple(column for column in known if column.metric in held)
    rows: list[Row] = []
    for length in sorted({at for _, at in found}):
        items = [item for (_, at), item in found.items() if at == length]
        cells = tuple(_cell(column, found.get((column.metric, length)), bounds.get(length)) for column in columns)
        rows.append(Row(tokens=length, n=_n(items), cells=cells))
    return Table(columns=columns, rows=tuple(rows), notes=tuple(_notes(known, found, bounds)))


def _n(items: Sequence[Statement]) -> int:
    """Requests behind a row: gaps between chunks are many per request and do not count."""
    return max((item.n for item in items if item.metric != ITL), default=0)


def _cell(column: Column, item: Statement | None, bound: Cell | Unknown | None) -> Cell:
    if column.metric == "ttft_p95":
        return bound if isinstance(bound, Cell) else Cell(value=DASH, spread="")
    if item is None:
        return Cell(value=DASH, spread="")
    other_n = f" {sample_size(item.n)}" if item.metric == ITL and item.n > 1 else ""
    return Cell(value=value_text(item), spread=f"{spread_text(item)}{other_n}".strip())


def _p95(item: Statement) -> Cell | Unknown:
    bound = quantile.upper_bound(item.samples, _P95)
    return bound if isinstance(bound, Unknown) else Cell(value=number(bound, item.unit), spread="")


def _notes(
    known: Sequence[Column],
    found: Mapping[tuple[str, int], Statement],
    bounds: Mapping[int, Cell | Unknown],
) -> Iterator[str]:
    """Why there are dashes: one line per reason, with the columns and lengths it holds for."""
    names = {column.metric: column.heading for column in known}
    reasons: dict[str, tuple[dict[str, None], set[int]]] = {}
    for (metric, at), item in found.items():
        if isinstance(item.value, Unknown):
            columns, places = reasons.setdefault(item.value.reason, ({}, set()))
            columns[names[metric]] = None
            places.add(at)
    for reason, (columns, places) in reasons.items():
        where = ", ".join(format_tokens(place) for place in sorted(places))
        missing = [heading for heading in names.values() if heading in columns]
        yield f"At {where} tokens no {', no '.join(missing)}: {reason}"
    if bounds and not any(isinstance(bound, Cell) for bound in bounds.values()):
        yield f"No p95 of the time to first token: {next(b.reason for b in bounds.values() if isinstance(b, Unknown))}"
