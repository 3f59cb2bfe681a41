"""A comparison as one HTML file that needs nothing but itself: the ratios with their intervals, both sides' times, what
differs, and the answers."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import longproof
from longproof.claim.compare import Comparison, Row, Said
from longproof.claim.compare_facts import FactDifference
from longproof.claim.compare_pairs import Pair, pairs_of
from longproof.claim.compare_quality import QualityCompared, right_of
from longproof.claim.gate import GateReport
from longproof.claim.metrics import METRICS
from longproof.claim.statements import Finding
from longproof.claim.view import EvidenceView
from longproof.domain.units import format_tokens
from longproof.domain.verdict import Fail, Pass
from longproof.evidence.disk import not_writable, write_whole
from longproof.report import subject
from longproof.report.compare_right import RightPart, p_value, right_part
from longproof.report.compare_text import (
    METRIC_WORDS,
    answers,
    asked_byte_for_byte,
    how_asked,
    how_decided,
    not_told,
    role_of,
    speculations,
)
from longproof.report.figures import Figure, Legend
from longproof.report.html import render_page
from longproof.report.numbers import number
from longproof.report.plot_frame import Words
from longproof.report.plots import Point, Series, time_by_length, value_by_length
from longproof.report.quality_plots import two_sides
from longproof.report.row_plots import Reading, Whiskers, whiskers
from longproof.report.theme import Role

_UNITS = {"ttft_ratio": "s", "tpot_ratio": "s", "output_rate_ratio": "tok/s"}
_ROLES = {Said.HIGHER: Role.WARM, Said.LOWER: Role.WARM, Said.SAME: Role.TAIL, Said.UNDECIDED: Role.MUTED}


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One row of a table: both sides' means, the ratio, and what it shows."""

    tokens: str
    a: str
    b: str
    ratio: str
    spread: str
    p: str
    n: int
    said: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One metric of one cell."""

    id: str
    title: str
    lead: str
    figures: tuple[Figure, ...]
    rows: tuple[Line, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Required:
    """A verdict on one requirement."""

    word: str
    css: str
    sentence: str
    requirement: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """The whole page. `answers` and `decided` are empty where only questions of quality were asked of both."""

    headline: str
    who: tuple[tuple[str, str], ...]
    state: tuple[str, ...]
    verdicts: tuple[Required, ...]
    findings: tuple[Finding, ...]
    facts: tuple[FactDifference, ...]
    about: tuple[str, ...]
    parts: tuple[Part, ...]
    right: RightPart | None
    right_figures: tuple[Figure, ...]
    tests: int
    answers: tuple[tuple[str, str], ...]
    decided: str
    commands: tuple[tuple[str, str], ...]
    version: str
    digests: tuple[str, str]


def write_comparison(
    path: Path, comparison: Comparison, a: EvidenceView, b: EvidenceView, verdicts: GateReport | None = None
) -> None:
    """Writes the page of a comparison of `a` and `b`. The same evidence gives the same bytes. Raises EvidenceError when
    it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, render_comparison_html(comparison, a, b, verdicts).encode())
    except OSError as problem:
        raise not_writable(path.parent, problem) from problem


def render_comparison_html(
    comparison: Comparison, a: EvidenceView, b: EvidenceView, verdicts: GateReport | None = None
) -> str:
    """The page as text."""
    title = f"{comparison.b.target} against {comparison.a.target} · longproof"
    return render_page("compare.html.j2", title, page=build(comparison, a, b, verdicts))


def build(comparison: Comparison, a: EvidenceView, b: EvidenceView, verdicts: GateReport | None) -> Page:
    """What the page shows, as values."""
    return Page(
        headline=comparison.headline,
        who=(*_who("A", a), *_who("B", b), ("How", how_asked(comparison))),
        state=tuple(_state(comparison)),
        verdicts=tuple(_required(verdicts)),
        findings=comparison.findings,
        facts=tuple(
            FactDifference(name=subject.field_name(fact.name), a=fact.a, b=fact.b, role=role_of(fact) or "factor")
            for fact in comparison.facts.differing
        ),
        about=(*speculations(comparison), *([not_told(comparison)] if comparison.facts.unknown else [])),
        parts=tuple(_parts(comparison, pairs_of(a, b))),
        right=None if comparison.quality is None else right_part(comparison.quality, comparison.confidence),
        right_figures=() if comparison.quality is None else tuple(_right_figures(comparison.quality)),
        tests=sum(row.adjusted_p is not None for row in comparison.rows),
        answers=tuple(answers(comparison)) if asked_byte_for_byte(comparison) else (),
        decided=how_decided(comparison) if comparison.rows else "",
        commands=tuple(_commands(comparison)),
        version=longproof.__version__,
        digests=(comparison.a.evidence_sha256, comparison.b.evidence_sha256),
    )


def _right_figures(quality: QualityCompared) -> Iterator[Figure]:
    """A plot for every family that was asked at two lengths or more."""
    for place, family in enumerate(quality.verdicts):
        rows = sorted((row for row in quality.rows if row.family == family and row.length), key=lambda row: row.length)
        if len({row.length for row in rows}) < 2:
            continue
        shares = [(row.length, *(right / row.pairs.n for right in right_of(row.pairs))) for row in rows]
        lengths, of_a, of_b = zip(*shares, strict=True)
        words = Words(name=f"right-{place}", title=f"{family}: right answers by length", axis="right", unit="fraction")
        yield Figure(
            title=family,
            svg=two_sides(lengths, of_a, of_b, words),
            caption="Shares right of the same questions; the table has the interval of the difference.",
            legend=(
                Legend(glyph="●", role=Role.COLD.value, text="A"),
                Legend(glyph="□", role=Role.WARM.value, text="B"),
            ),
        )


def _commands(comparison: Comparison) -> Iterator[tuple[str, str]]:
    yield "Make this comparison again, from the evidence alone", "longproof compare A B"
    yield "Draw this page again", "longproof compare A B --report FILE"
    asked = comparison.quality.rows if comparison.quality is not None else ()
    lengths = [row.length for row in asked if row.length]
    required = "tpot_ratio <= 1.05" if comparison.rows or not lengths else f"accuracy_difference@{max(lengths)} >= -0.1"
    yield "Hold a requirement against it", f"longproof compare A B --require '{required}'"


def _who(name: str, view: EvidenceView) -> Iterator[tuple[str, str]]:
    for what, value in subject.who(view):
        yield f"{name}, {what.lower()}", value


def _state(comparison: Comparison) -> Iterator[str]:
    if comparison.cut_short is not None:
        yield comparison.cut_short
    open_ends = [side.name for side in (comparison.a, comparison.b) if not side.complete]
    if open_ends:
        yield f"Not complete: {' and '.join(open_ends)}. What was not reached is not compared."


def _required(verdicts: GateReport | None) -> Iterator[Required]:
    for verdict in verdicts.verdicts if verdicts is not None else ():
        word, css = (
            ("Pass", "passed")
            if isinstance(verdict, Pass)
            else ("Fail", "fault")
            if isinstance(verdict, Fail)
            else ("Undecided", "caution")
        )
        yield Required(word=word, css=css, sentence=verdict.sentence, requirement=verdict.requirement)


def _parts(comparison: Comparison, pairs: Sequence[Pair]) -> Iterator[Part]:
    cells = dict.fromkeys((row.metric, row.cell) for row in comparison.rows)
    for place, (metric, cell) in enumerate(cells):
        rows = [row for row in comparison.rows if (row.metric, row.cell) == (metric, cell)]
        yield Part(
            id=f"part-{place}",
            title=f"{METRIC_WORDS[metric].removesuffix(', B / A')}: {cell}",
            lead=METRICS[metric].formula,
            figures=tuple(_figures(place, metric, cell, rows, pairs)),
            rows=tuple(_line(row, _both(pairs, row)) for row in rows),
        )


def _figures(place: int, metric: str, cell: str, rows: Sequence[Row], pairs: Sequence[Pair]) -> Iterator[Figure]:
    yield Figure(
        title="B over A",
        svg=whiskers(
            [_ratio(row) for row in rows],
            Words(name=f"ratio-{place}", title=f"B / A, {cell}, by prompt length", axis="B / A", unit=""),
            reference=1.0,
        ),
        caption="1 is no difference. The pale bar is each row's own interval.",
        legend=(
            Legend(glyph="●", role=Role.WARM.value, text="a difference"),
            Legend(glyph="●", role=Role.TAIL.value, text="the same"),
            Legend(glyph="○", role=Role.MUTED.value, text="undecided"),
        ),
    )
    both = [(row.length, _both(pairs, row)) for row in rows]
    if len(both) < 2:
        return
    series = [
        Series(label=name, points=tuple(_point(length, sides[at]) for length, sides in both), role=role, marker=marker)
        for at, (name, role, marker) in enumerate((("A", Role.COLD, "o"), ("B", Role.WARM, "s")))
    ]
    unit = _UNITS[metric]
    name = METRIC_WORDS[metric].split(",")[0]
    words = Words(name=f"both-{place}", title=f"{name} of A and B against length", axis=name.lower(), unit=unit)
    yield Figure(
        title="Both sides",
        svg=time_by_length(series, words, references=False) if unit == "s" else value_by_length(series, words),
        caption="Every pair's two values, and the lines through their geometric means.",
        legend=(
            Legend(glyph="○", role=Role.COLD.value, text="A"),
            Legend(glyph="□", role=Role.WARM.value, text="B"),
        ),
    )


def _both(pairs: Sequence[Pair], row: Row) -> tuple[list[float], list[float]]:
    """What either side measured in the pairs of a row."""
    own = [pair for pair in pairs if (pair.cell, pair.length) == (row.cell, row.length)]
    own = [pair for pair in own if row.metric in pair.a and row.metric in pair.b]
    return [pair.a[row.metric] for pair in own], [pair.b[row.metric] for pair in own]


def _point(length: int, values: Sequence[float]) -> Point:
    return Point(tokens=length, samples=tuple(values), mean=statistics.geometric_mean(values))


def _ratio(row: Row) -> Whiskers:
    spread = row.interval
    reading = Reading(
        value=row.ratio,
        low=None if spread is None else spread.low,
        high=None if spread is None else spread.high,
        role=_ROLES[row.said],
        filled=row.said is not Said.UNDECIDED,
    )
    label = f"{format_tokens(row.length)} tokens"
    return Whiskers(label=label, note=f"{row.ratio:.3g}, {row.said.value}", readings=(reading,))


def _line(row: Row, both: tuple[list[float], list[float]]) -> Line:
    unit, spread, p = _UNITS[row.metric], row.interval, row.adjusted_p
    a, b = (number(statistics.geometric_mean(values), unit) for values in both)
    return Line(
        tokens=format_tokens(row.length),
        a=a,
        b=b,
        ratio=f"{row.ratio:.3g}",
        spread="" if spread is None else f"[{spread.low:.3g}, {spread.high:.3g}]",
        p=p_value(p),
        n=row.n,
        said=row.said.value,
    )
