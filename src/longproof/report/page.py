"""Everything the page says, as values: the templates only place it. A function of the claim and the evidence,
nothing else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from longproof.claim.statements import Claim, Finding, Statement
from longproof.claim.view import EvidenceView
from longproof.domain.measure import Measured
from longproof.domain.outcome import classify
from longproof.evidence.records import (
    CountBody,
    ItemBody,
    NoteBody,
    Protocol,
    Record,
    RequestBody,
    SamplesBody,
    SessionBody,
    WindowBody,
)
from longproof.report import drawings, figures, lengths, load_figures, quality_section, requests, verdict, waiting
from longproof.report.commands import commands
from longproof.report.numbers import DASH, plural, short_ns, tokens
from longproof.report.outcomes import kind, look, word
from longproof.report.subject import field_name, shown_value, unknown_by_reason, who

_MOST_COUNTS = 200
_MOST_UNDER_LOAD = 400
"""Requests of windows under load that stand in the evidence table: thousands of them would hide the others."""
_MOST_KEYS = 4
"""Evidence links that a finding shows; a statement shows two."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """A known fact of the deployment and where it came from."""

    name: str
    value: str
    provenance: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The statements of one probe."""

    name: str
    statements: tuple[Statement, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One record in the evidence table; `anchor` is what links to it point at."""

    anchor: str
    key: str
    probe: str
    cell: str
    outcome: str
    css: str
    glyph: str
    sent: str
    used: str
    cached: str
    first: str
    took: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """The whole report."""

    claim: Claim
    view: EvidenceView
    title: str
    who: tuple[tuple[str, str], ...]
    state: tuple[str, ...]
    tally: verdict.Tally
    marks: tuple[verdict.Mark, ...]
    axis: drawings.Axis | None
    findings: tuple[Finding, ...]
    fields: tuple[Field, ...]
    unknown: tuple[tuple[str, str], ...]
    protocol: tuple[tuple[str, str], ...]
    speed: lengths.Table
    reading_aid: str
    speed_figures: tuple[figures.Figure, ...]
    warmth: lengths.Table
    warm_rows: tuple[lengths.Warm, ...]
    warm_figure: figures.Figure | None
    edges: tuple[requests.Edge, ...]
    search: tuple[requests.Search, ...]
    search_figure: figures.Figure | None
    counts: tuple[requests.Count, ...]
    counts_by_probe: tuple[tuple[str, int, int, int, int], ...]
    different_counts: tuple[requests.Count, ...]
    counts_figure: figures.Figure | None
    bars: tuple[drawings.Bar, ...]
    flow: drawings.Flow | None
    load_parts: tuple[load_figures.LoadPart, ...]
    quality: quality_section.QualitySection | None
    groups: tuple[Group, ...]
    rows: tuple[Row, ...]
    rows_left_out: tuple[str, ...]
    anchors: Mapping[str, str]
    commands: tuple[tuple[str, str], ...]


def build(claim: Claim, view: EvidenceView) -> Page:
    """Reads claim and evidence once and lays out what the page shows."""
    marks = verdict.three_numbers(claim, view)
    rows, left_out = _rows(claim, view)
    counted = tuple(requests.counts(view))
    sent = sum(1 for _ in view.all_requests())
    return Page(
        claim=claim,
        view=view,
        title=_title(claim, view),
        who=tuple(who(view)),
        state=tuple(_state(claim, view)),
        tally=verdict.tally(claim),
        marks=marks,
        axis=drawings.axis(marks),
        findings=verdict.faults_first(claim),
        fields=tuple(_fields(view)),
        unknown=unknown_by_reason(view),
        protocol=tuple(_protocol(view)),
        speed=lengths.table(claim, "speed", lengths.SPEED),
        reading_aid=figures.reading_aid(claim),
        speed_figures=tuple(figures.speed(claim)),
        warmth=lengths.table(claim, "warmth", lengths.WARMTH),
        warm_rows=tuple(lengths.warmth(view)),
        warm_figure=figures.warmth(view),
        edges=tuple(requests.edges(view)),
        search=tuple(requests.search(view)),
        search_figure=figures.search(claim, view),
        counts=counted,
        counts_by_probe=tuple(requests.counts_by_probe(counted)),
        different_counts=tuple(count for count in counted if count.sent != count.used),
        counts_figure=figures.counts(view),
        bars=tuple(drawings.bar(*item) for item in requests.representatives(view)),
        flow=drawings.flow(requests.stages(view), waiting.waited(view)) if sent else None,
        load_parts=load_figures.parts(claim, view),
        quality=quality_section.section(claim, view),
        groups=tuple(_groups(claim)),
        rows=rows,
        rows_left_out=left_out,
        anchors={row.key: row.anchor for row in rows},
        commands=tuple(commands(claim, view)),
    )


def _title(claim: Claim, view: EvidenceView) -> str:
    model = view.header.deployment.model
    return f"{model.value if isinstance(model, Measured) else claim.target} · longproof"


def _state(claim: Claim, view: EvidenceView) -> Iterator[str]:
    if not claim.complete:
        yield "The protocol did not run to its end: what was not reached is not shown."
    if not view.sealed:
        yield "The evidence is not sealed: nothing yet proves that it was left as it was written."


def _fields(view: EvidenceView) -> Iterator[Field]:
    for name, reading in view.header.deployment.readings():
        if isinstance(reading, Measured):
            yield Field(
                name=field_name(name),
                value=shown_value(reading.value),
                provenance=reading.provenance.value,
                source=reading.source,
            )


def _protocol(view: EvidenceView) -> Iterator[tuple[str, str]]:
    protocol = view.header.protocol
    yield "Window asked for", _window(protocol)
    yield "Route", f"/v1/{'chat/completions' if protocol.route.value == 'chat' else 'completions'}"
    yield "Repeats", str(protocol.repeats)
    yield "Output tokens", str(protocol.output_tokens)
    yield "Counts as hung after", f"{protocol.request_timeout_s:g} s"
    yield "Budget", _budget(protocol)
    yield "Seed", str(protocol.seed)
    yield "Steps, in order", ", ".join(step.probe for step in protocol.steps) or "none"
    for probe, reason in protocol.not_run.items():
        yield f"Left out: {probe}", reason
    sessions = [record.body for record in view.records if isinstance(record.body, SessionBody)]
    if sessions:
        times = ", ".join(session.started_wall for session in sessions)
        yield "Sessions", f"{len(sessions)} (begun {times})"
        host = "; ".join(f"{name} {value}" for name, value in sessions[0].host.items())
        yield "Client host", host or DASH


def _window(protocol: Protocol) -> str:
    return (
        "all that the server says it has"
        if protocol.context_tokens is None
        else f"{tokens(protocol.context_tokens)} tokens"
    )


def _budget(protocol: Protocol) -> str:
    parts = [
        short_ns(protocol.budget_ns) if protocol.budget_ns is not None else "",
        f"{tokens(protocol.budget_tokens)} tokens" if protocol.budget_tokens is not None else "",
    ]
    return " and ".join(part for part in parts if part) or "no limit"


def _groups(claim: Claim) -> Iterator[Group]:
    names = dict.fromkeys(item.id.split(".", 1)[0] for item in claim.statements)
    for name in names:
        yield Group(name=name, statements=tuple(s for s in claim.statements if s.id.split(".", 1)[0] == name))


def _rows(claim: Claim, view: EvidenceView) -> tuple[tuple[Row, ...], tuple[str, ...]]:
    """All records but these: counts and what belongs to windows under load, each beyond a number that a page can hold
    and not linked from a statement or finding. Then what was left out, in words."""
    linked = {key for item in (*claim.statements, *claim.findings) for key in item.evidence[:_MOST_KEYS]}
    most = {"count": _MOST_COUNTS, "load": _MOST_UNDER_LOAD}
    seen, left_out = Counter[str](), Counter[str]()
    rows: list[Row] = []
    for record in view.records:
        kind_ = _bulk(record)
        if kind_ is not None:
            seen[kind_] += 1
            if seen[kind_] > most[kind_] and record.key not in linked:
                left_out[kind_] += 1
                continue
        rows.append(_row(record))
    return tuple(rows), tuple(_left_out(left_out))


def _bulk(record: Record) -> str | None:
    body = record.body
    if isinstance(body, CountBody):
        return "count"
    if isinstance(body, SamplesBody) or (isinstance(body, RequestBody) and body.planned_ns is not None):
        return "load"
    return "load" if isinstance(body, NoteBody) and body.what == "window_begun" else None


def _left_out(counts: Mapping[str, int]) -> Iterator[str]:
    names = {"count": "further token count", "load": "further record of windows under load"}
    plurals = {"count": "further token counts", "load": "further records of windows under load"}
    for kind_, count in counts.items():
        verb = "is" if count == 1 else "are"
        said = plural(count, names[kind_], plurals[kind_])
        yield f"{said} that nothing here links to {verb} in the directory only."


def _row(record: Record) -> Row:
    body = record.body
    if isinstance(body, RequestBody):
        return _request_row(record, body)
    if isinstance(body, CountBody):
        cell = _cell(body.cell)
        total = DASH if body.count is None else tokens(body.count.total)
        return _plain_row(record, body.probe, cell, body.error or "counted", used=total)
    if isinstance(body, NoteBody):
        return _plain_row(record, body.probe, _cell(body.detail), f"note: {body.what}")
    if isinstance(body, SamplesBody):
        return _plain_row(record, body.probe, _cell(body.cell), f"{len(body.samples)} engine samples")
    if isinstance(body, ItemBody):
        return _plain_row(record, body.probe, f"{body.family} {body.index}", f"item: {', '.join(body.answers)[:80]}")
    if isinstance(body, WindowBody):
        return _plain_row(record, body.probe, _cell(body.load), f"window of {body.requests} requests")
    return _plain_row(record, "session", f"longproof {body.longproof_version}", f"begun {body.started_wall}")


def _request_row(record: Record, body: RequestBody) -> Row:
    timeline = body.timeline
    outcome = classify(timeline)
    usage = timeline.usage
    return Row(
        anchor=_anchor(record),
        key=record.key,
        probe=body.probe,
        cell=_cell(body.cell),
        outcome=word(outcome),
        css=drawings.css(kind(outcome).value),
        glyph=look(outcome).glyph,
        sent=_count(timeline.prompt_tokens_sent),
        used=_count(None if usage is None else usage.prompt_tokens),
        cached=_count(None if usage is None else usage.cached_tokens),
        first=DASH if timeline.ttft_ns is None else short_ns(timeline.ttft_ns),
        took=short_ns(timeline.e2e_ns),
    )


def _plain_row(record: Record, probe: str, cell: str, outcome: str, *, used: str = DASH) -> Row:
    return Row(
        anchor=_anchor(record),
        key=record.key,
        probe=probe,
        cell=cell,
        outcome=outcome,
        css="",
        glyph="",
        sent=DASH,
        used=used,
        cached=DASH,
        first=DASH,
        took=DASH,
    )


def _anchor(record: Record) -> str:
    return f"r{record.seq}"


def _cell(cell: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in cell.items())


def _count(value: int | None) -> str:
    return DASH if value is None else tokens(value)
