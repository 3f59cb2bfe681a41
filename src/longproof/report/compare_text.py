"""A comparison on the terminal: what differs, B over A for every cell, what each row shows, and the answers."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from longproof.claim.compare import Comparison, Row, Said
from longproof.claim.compare_facts import FactDifference
from longproof.claim.compare_quality import Right
from longproof.claim.gate import GateReport
from longproof.domain.units import format_tokens
from longproof.evidence.codec import encode
from longproof.report import subject
from longproof.report.blocks import clean, heading, item, pairs, table
from longproof.report.compare_right import RightPart, p_value, right_part
from longproof.report.json_report import gate_json
from longproof.report.text import render_gate, show
from longproof.report.untrusted import one_line

METRIC_WORDS = {
    "ttft_ratio": "Time to first token, B / A",
    "tpot_ratio": "Time per output token, B / A",
    "output_rate_ratio": "Output tokens per second, all together, B / A",
}
_STYLES = {Said.HIGHER: "yellow", Said.LOWER: "yellow", Said.SAME: "green", Said.UNDECIDED: "dim"}
_RIGHT_STYLES = {Right.MORE: "yellow", Right.LESS: "yellow", Right.SAME: "green", Right.UNDECIDED: "dim"}
_FOLLOWS = {"engine_build": "a hash of the whole configuration: something differs"}
_WIDTH = 19
_LEAST_SPAN = math.log(1.25)
_MOST_SPAN = math.log(8)
_MOST_UNKNOWN = 6


def print_comparison(comparison: Comparison, verdicts: GateReport | None, *, as_json: bool = False) -> None:
    """Puts a comparison on standard output, and the verdicts on its requirements behind it."""
    if as_json:
        sys.stdout.write(comparison_json(comparison, verdicts) + "\n")
        return
    parts: list[RenderableType] = [render_comparison(comparison)]
    if verdicts is not None:
        parts += [heading("Required"), render_gate(verdicts)]
    show(Group(*parts))


def comparison_json(comparison: Comparison, verdicts: GateReport | None) -> str:
    """The whole comparison, and the gate's document under ``gate`` where something was required."""
    document = json.loads(encode(comparison))
    if verdicts is not None:
        document["gate"] = json.loads(gate_json(verdicts))
    return json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False)


def render_comparison(comparison: Comparison) -> Group:
    """The whole card."""
    return Group(*_card(comparison))


def _card(comparison: Comparison) -> Iterator[RenderableType]:
    yield Text(one_line(comparison.headline), style="bold")
    yield Text()
    yield pairs(_sides(comparison))
    yield heading("In what they differ")
    yield from _facts(comparison)
    rows = comparison.rows
    for metric, cell in dict.fromkeys((row.metric, row.cell) for row in rows):
        yield heading(f"{METRIC_WORDS[metric]}: {cell}")
        yield _ratios([row for row in rows if (row.metric, row.cell) == (metric, cell)], _span(rows))
    if rows:
        yield item("", how_decided(comparison), style="dim")
    if comparison.quality is not None:
        yield from _quality(right_part(comparison.quality, comparison.confidence))
    if asked_byte_for_byte(comparison):
        yield heading("Answers and outcomes")
        yield pairs(answers(comparison))
    yield heading("Findings")
    if not comparison.findings:
        yield item("", "none")
    for finding in comparison.findings:
        yield item(finding.severity.value.upper(), f"{one_line(finding.text)} ({finding.id})", style="yellow")


def _quality(part: RightPart) -> Iterator[RenderableType]:
    """Right answers to the same items, family by family, and how far either side holds."""
    yield heading("Right answers to the same questions, B against A")
    for verdict in part.verdicts:
        yield item("", verdict)
    if part.rows:
        grid = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
        grid.add_column("  family", no_wrap=True)
        for head in ("tokens", "A", "B", "only A", "only B", "B - A", "p"):
            grid.add_column(head, justify="right", no_wrap=True)
        grid.add_column("")
        for row in part.rows:
            said = Text(row.said, style=_RIGHT_STYLES[Right(row.said)])
            counts = (row.a, row.b, str(row.only_a), str(row.only_b))
            grid.add_row(f"  {row.family}", row.tokens, *counts, row.difference, row.p, said)
        yield grid
    for place, note in enumerate(part.notes):
        yield item("" if part.rows and place == 0 else "○", note, style="dim" if part.rows and place == 0 else "")


def how_decided(comparison: Comparison) -> str:
    """The rule behind every row's last word."""
    tests = sum(row.adjusted_p is not None for row in comparison.rows)
    effect = 100 * (comparison.least_effect - 1)
    return (
        f"{tests} comparisons. A difference is named when its p-value, adjusted for all of them (Holm), is at most"
        f" {1 - comparison.confidence:.2g} and it is at least {effect:.3g} %; 'same' when the row's"
        f" {100 * comparison.confidence:g} % interval lies within that."
    )


def _sides(comparison: Comparison) -> list[tuple[str, str]]:
    states = [
        (side.name, f"{side.target}{'' if side.complete else ' (not complete)'}")
        for side in (comparison.a, comparison.b)
    ]
    cut = [] if comparison.cut_short is None else [("Cut short", comparison.cut_short)]
    return [*states, ("How", how_asked(comparison)), *cut]


def how_asked(comparison: Comparison) -> str:
    """In turns or not, and what that means."""
    if comparison.in_turns:
        return "asked in turns by one client"
    return "proved one after the other: what else changed between the two proofs is in the ratios too"


def _facts(comparison: Comparison) -> Iterator[RenderableType]:
    facts = comparison.facts
    if facts.differing:
        grid = table("fact", "A", "B", "")
        for fact in facts.differing:
            grid.add_row(
                subject.field_name(fact.name),
                clean(fact.a),
                clean(fact.b),
                role_of(fact),
            )
        yield grid
    else:
        yield item("", "Nothing that both servers tell differs.")
    for line in speculations(comparison):
        yield item("", line)
    if facts.unknown:
        yield item("○", not_told(comparison))


def speculations(comparison: Comparison) -> Iterator[str]:
    """What each side's own counters say of its speculation; nothing where they say nothing."""
    for side in (comparison.a, comparison.b):
        if side.speculation is not None:
            share = side.speculation.accepted_share
            good = "none drafted" if share is None else f"{100 * share:.3g} % accepted"
            drafted = format_tokens(side.speculation.drafted_tokens)
            yield f"{side.name} speculated, by its own counters: {drafted} tokens drafted, {good}."


def not_told(comparison: Comparison) -> str:
    """Which facts a side keeps to itself."""
    names = [f"{subject.field_name(name)} ({sides})" for name, sides, _ in comparison.facts.unknown]
    more = f" and {len(names) - _MOST_UNKNOWN} more" if len(names) > _MOST_UNKNOWN else ""
    return f"Not told, so perhaps different: {', '.join(names[:_MOST_UNKNOWN])}{more}."


def role_of(fact: FactDifference) -> str:
    """What stands beside a fact that is not the factor."""
    return "" if fact.role == "factor" else _FOLLOWS.get(fact.name, "follows from the rest")


def _ratios(rows: Sequence[Row], span: float) -> RenderableType:
    grid = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    grid.add_column("  tokens", justify="right", no_wrap=True)
    for head in ("B / A", "interval", "p", "n"):
        grid.add_column(head, justify="right", no_wrap=True)
    low, high = f"{math.exp(-span):.2g}", f"{math.exp(span):.2g}"
    middle = "1".center(_WIDTH - 2 * max(len(low), len(high)))
    grid.add_column(f"{low:<{max(len(low), len(high))}}{middle}{high:>{max(len(low), len(high))}}", no_wrap=True)
    grid.add_column("")
    for row in rows:
        spread = "–" if row.interval is None else f"{row.interval.low:.3g} to {row.interval.high:.3g}"
        p = p_value(row.adjusted_p)
        said = Text(row.said.value, style=_STYLES[row.said])
        tokens = format_tokens(row.length)
        grid.add_row(tokens, f"{row.ratio:.3g}", spread, p, str(row.n), _bar(row, span), said)
    return grid


def _span(rows: Sequence[Row]) -> float:
    """Half the axis, as a logarithm: the farthest ratio, within reason."""
    farthest = max(abs(math.log(row.ratio)) for row in rows)
    return min(_MOST_SPAN, max(_LEAST_SPAN, 1.2 * farthest))


def _bar(row: Row, span: float) -> str:
    """``   ├─●─┤    │   ``: the interval on a logarithmic axis with 1 in the middle."""

    def place(ratio: float) -> int:
        return round((min(1.0, max(-1.0, math.log(ratio) / span)) + 1) / 2 * (_WIDTH - 1))

    cells = [" "] * _WIDTH
    cells[_WIDTH // 2] = "│"
    if row.interval is not None and row.interval.low > 0:
        low, high = place(row.interval.low), place(row.interval.high)
        for at in range(low, high + 1):
            cells[at] = "─"
        cells[low], cells[high] = "├", "┤"
    cells[place(row.ratio)] = "●"
    return "".join(cells)


def asked_byte_for_byte(comparison: Comparison) -> bool:
    """Whether any prompt of the proof itself went to both, questions of quality aside: else nothing can be said of
    their outputs and outcomes."""
    outcomes = comparison.outcomes
    return bool(outcomes.both + outcomes.only_a + outcomes.only_b + outcomes.neither)


def answers(comparison: Comparison) -> list[tuple[str, str]]:
    """What both said to the same prompts, and which side completed what."""
    outputs, outcomes = comparison.outputs, comparison.outcomes
    if outputs.compared:
        lengths = ", ".join(
            f"{entry.equal} of {entry.compared} at {format_tokens(entry.length)}" for entry in outputs.by_length
        )
        said = f"{outputs.equal} of {outputs.compared} the same for byte-identical prompts ({lengths})"
    else:
        said = "not compared: no prompt was sent to both byte for byte"
    again = [f"{name} {equal} of {n}" for name, (n, equal) in (("A", outputs.again_a), ("B", outputs.again_b)) if n]
    alone = f"{outcomes.only_a} by A alone, {outcomes.only_b} by B alone"
    completed = f"{outcomes.both} by both, {alone}, {outcomes.neither} by neither (McNemar p = {outcomes.p_value:.2g})"
    return [
        ("Greedy answers", said),
        ("Asked again", f"same as before: {', '.join(again)}" if again else "nobody was asked twice"),
        ("Completed", completed),
    ]
