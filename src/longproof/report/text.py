"""The terminal card: the claim in one screen or two. Plain where nobody sees colours, whole at 80 columns.

`render_…` return rich renderables, `print_…` put them on standard output. Nothing a server said is read as markup.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TextIO

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from longproof.claim.derive import load_view
from longproof.claim.gate import GateReport
from longproof.claim.statements import Claim, Finding, Severity
from longproof.claim.view import EvidenceView
from longproof.domain.deployment import Deployment
from longproof.domain.measure import Measured
from longproof.domain.verdict import Fail, Pass, Verdict
from longproof.report import json_report, lengths, requests, subject, verdict
from longproof.report.blocks import clean as _clean
from longproof.report.blocks import heading as _heading
from longproof.report.blocks import item as _item
from longproof.report.blocks import pairs as _pairs
from longproof.report.blocks import table as _table
from longproof.report.load_text import load_lines
from longproof.report.numbers import plural
from longproof.report.outcomes import word
from longproof.report.untrusted import one_line, shortened

WIDEST = 100
_LONGEST_WORDS = 320
_ASCII = str.maketrans({"–": "-", "−": "-", "○": "o", "×": "x", "\u00a0": " ", "·": "-", "≤": "<=", "…": "..."})


def render_card(
    claim: Claim, view: EvidenceView, *, directory: Path | None = None, report: Path | None = None
) -> Group:
    """The whole card. `directory` and `report` say where evidence and page lie; None = not written."""
    return Group(*_card(claim, view, directory, report))


def render_inspect(deployment: Deployment) -> Group:
    """What a server tells of itself: every field with value, provenance and source, then what is unknown and why."""
    table = _table("field", "value", "from", "source")
    unknown: list[tuple[str, str]] = []
    table.add_row("Engine", _clean(deployment.engine.value), "", "")
    for name, reading in deployment.readings():
        if isinstance(reading, Measured):
            value, source = subject.shown_value(reading.value), reading.source
            table.add_row(subject.field_name(name), _clean(value), reading.provenance.value, _clean(source))
        else:
            unknown.append((subject.field_name(name), reading.reason))
    parts: list[RenderableType] = [table]
    if unknown:
        parts.append(_heading("Unknown"))
        parts.append(_pairs(unknown))
    return Group(*parts)


def render_gate(report: GateReport) -> Group:
    """One verdict per requirement with its sentence, then what nobody required and a reader must see."""
    parts: list[RenderableType] = [_verdict(item) for item in report.verdicts]
    if report.warnings:
        parts.append(_heading("Not required, and yet"))
        parts.extend(_item("!", warning, style="yellow") for warning in report.warnings)
    return Group(*parts)


def render_differences(fields: Sequence[tuple[str, str, str]]) -> Table:
    """(field, claimed, actual) of a deployment that is not the one a claim is about."""
    table = _table("field", "claimed", "running")
    for name, claimed, actual in fields:
        table.add_row(subject.field_name(name), _clean(claimed), _clean(actual))
    return table


def print_card(claim: Claim, *, directory: Path, report: Path | None = None) -> None:
    """Puts the card of the evidence in `directory` on standard output. Raises EvidenceError when it cannot be read."""
    show(render_card(claim, load_view(directory), directory=directory, report=report))


def print_inspect(deployment: Deployment, *, as_json: bool = False) -> None:
    """Puts a deployment on standard output, as a table or as JSON."""
    _print(render_inspect(deployment), json_report.deployment_json(deployment) if as_json else None)


def print_gate(report: GateReport, *, as_json: bool = False) -> None:
    """Puts a gate's verdicts on standard output, as text or as JSON."""
    _print(render_gate(report), json_report.gate_json(report) if as_json else None)


def show(renderable: RenderableType, out: TextIO | None = None) -> None:
    """Writes a renderable to `out` (default: standard output), at most `WIDEST` columns wide.

    Colours only on a terminal and without NO_COLOR (rich decides); a stream that cannot take UTF-8 gets ASCII.
    """
    stream: TextIO = sys.stdout if out is None else out
    console = _console(stream)
    if console.is_terminal and console.encoding.startswith("utf"):
        console.print(renderable)
        return
    with console.capture() as captured:
        console.print(renderable)
    text = "\n".join(line.rstrip() for line in captured.get().split("\n"))
    if not console.encoding.startswith("utf"):
        text = text.translate(_ASCII).encode(console.encoding, "replace").decode(console.encoding)
    stream.write(text)


def _console(out: TextIO) -> Console:
    console = Console(file=out, highlight=False, markup=False, emoji=False)
    console.width = min(console.width, WIDEST)
    return console


def _print(renderable: RenderableType, document: str | None) -> None:
    if document is None:
        show(renderable)
    else:
        sys.stdout.write(document + "\n")


def _card(claim: Claim, view: EvidenceView, directory: Path | None, report: Path | None) -> Iterator[RenderableType]:
    yield Text(one_line(claim.headline), style="bold")
    yield Text()
    yield _pairs(list(subject.who(view)))
    yield Text()
    yield _three(claim, view)
    yield from _speed(claim)
    yield from _warmth(view)
    yield from _load(claim)
    yield from _edge(view)
    yield _heading("Findings")
    if not claim.findings:
        yield _item("", "none: the checks that ran found no fault and nothing to warn of")
    yield from (_finding(finding) for finding in verdict.faults_first(claim))
    yield _heading("What this does not show")
    yield from (_item("○", item.text) for item in claim.not_shown)
    yield Text()
    yield _pairs(list(_where(view, directory, report)))


def _three(claim: Claim, view: EvidenceView) -> Table:
    """The numbers side by side: name, number, provenance, relation, source."""
    table = Table.grid(expand=True, padding=(0, 2, 0, 0))
    marks = verdict.three_numbers(claim, view)
    for _ in marks:
        table.add_column(ratio=1, overflow="fold")
    table.add_row(*(Text(mark.name) for mark in marks))
    numbers = (f"{mark.text} tokens" if mark.tokens is not None else mark.text for mark in marks)
    table.add_row(
        *(
            Text(number, style="bold" if mark.tokens is not None else "")
            for mark, number in zip(marks, numbers, strict=True)
        )
    )
    table.add_row(*(Text(mark.provenance) for mark in marks))
    if any(mark.relation for mark in marks):
        table.add_row(*(Text(mark.relation) for mark in marks))
    table.add_row(*(Text(one_line(mark.source), style="dim") for mark in marks))
    return table


def _speed(claim: Claim) -> Iterator[RenderableType]:
    found = lengths.table(claim, "speed", lengths.CARD)
    if not found.rows:
        return
    yield _heading("Speed by length: cold, one request at a time")
    table = _table("tokens", *(column.brief for column in found.columns), "n", right=True)
    for row in found.rows:
        cells = [
            _with_spread(cell) if column.metric == lengths.TTFT else cell.value
            for column, cell in zip(found.columns, row.cells, strict=True)
        ]
        table.add_row(f"{row.tokens:,}", *cells, f"{row.n:,}")
    yield table
    for note in found.notes:
        yield _item("", f"{note}.", style="dim")


def _with_spread(cell: lengths.Cell) -> str:
    spread = cell.spread if cell.spread.startswith("[") or not cell.spread else f"({cell.spread})"
    return f"{cell.value} {spread}".strip()


def _warmth(view: EvidenceView) -> Iterator[RenderableType]:
    rows = lengths.warmth(view)
    if not rows:
        return
    yield _heading("Cold and warm: time to first token, and cached tokens as reported")
    table = _table("tokens", *lengths.ARMS.values(), "n", right=True)
    for row in rows:
        arms = [row.arm(name) for name in lengths.ARMS]
        told = ("–" if arm is None else f"{arm.range_text} ({arm.cached_text})" for arm in arms)
        table.add_row(f"{row.tokens:,}", *told, f"{max(len(arm.ttft_s) for arm in row.arms):,}")
    yield table


def _load(claim: Claim) -> Iterator[RenderableType]:
    lines = list(load_lines(claim))
    if not lines:
        return
    yield _heading("Under load")
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, style="dim")
    table.add_column(overflow="fold")
    table.add_column(overflow="fold")
    named = ""
    for line in lines:
        table.add_row("" if line.probe == named else line.probe, _clean(line.what), _clean(line.answer))
        named = line.probe
    yield table


def _edge(view: EvidenceView) -> Iterator[RenderableType]:
    edges = requests.edges(view)
    if not edges:
        return
    yield _heading(f"At the edge of the configured limit, each asking for {plural(edges[0].asked_tokens, 'token')}")
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(justify="right", no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for edge in edges:
        what = Text(f"{word(edge.outcome)}: {requests.describe_edge(edge)}")
        if edge.words:
            what.append(f'\n"{shortened(one_line(edge.words), _LONGEST_WORDS)}"', style="dim")
        table.add_row(f"{edge.prompt_tokens:,}", _clean(edge.position), what)
    yield Padding(table, (0, 0, 0, 1))


def _finding(finding: Finding) -> RenderableType:
    style = "bold red" if finding.severity is Severity.FAULT else "yellow"
    text = shortened(one_line(finding.text), _LONGEST_WORDS)
    return _item(finding.severity.value.upper(), f"{text} ({finding.id})", style=style)


def _where(view: EvidenceView, directory: Path | None, report: Path | None) -> Iterator[tuple[str, str]]:
    state = ("complete" if view.complete else "not complete") + (", sealed" if view.sealed else ", not sealed")
    count = plural(len(view.records), "record")
    yield "Evidence", f"{directory} ({count}, {state})" if directory is not None else f"{count}, {state}"
    if report is not None:
        yield "Report", str(report)


def _verdict(item: Verdict) -> RenderableType:
    if isinstance(item, Pass):
        return _item("PASS", item.sentence, style="green", above=item.requirement)
    if isinstance(item, Fail):
        return _item("FAIL", item.sentence, style="bold red", above=item.requirement)
    return _item("UNDECIDED", item.sentence, style="yellow", above=item.requirement)
