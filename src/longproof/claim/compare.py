"""Two proofs held against each other: B over A, pair by pair, with intervals, and only where they differ in one thing.

    A ─┐  facts differ in one factor?  ── no ─▶ refusal, naming all that differ
       ├─ questions the same?          ── no ─▶ refusal
    B ─┘  pairs ─▶ ratios (t on paired logarithms, Holm over all of them) ─▶ Comparison ─▶ text, JSON, gate
          prompts that are the same byte for byte ─▶ outputs equal or not, and is each side equal to itself?

A difference is named when chance makes one like it with at most 1 - confidence, all comparisons together, and when it
is at least `LEAST_EFFECT`. "The same" needs evidence too: an interval that lies within that effect.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import longproof
from longproof.claim.compare_facts import FactsCompared, compare_facts, require_same_questions
from longproof.claim.compare_findings import findings_of, pooled_of
from longproof.claim.compare_outputs import OutputsCompared, compare_outputs
from longproof.claim.compare_pairs import Pair, cut_short, pairs_of
from longproof.claim.compare_quality import (
    QualityCompared,
    compare_quality,
    finding_of,
    headline_of,
    statements_of,
)
from longproof.claim.compare_speculation import Speculation, speculation_of
from longproof.claim.derive import CLAIM_FORMAT
from longproof.claim.gate import GateReport, gate
from longproof.claim.metrics import METRICS
from longproof.claim.requirement import check_confidence
from longproof.claim.sampled import describe_spread
from longproof.claim.statements import Claim, Finding, Standing, Statement
from longproof.claim.view import EvidenceView
from longproof.domain.measure import Interval, Measured, Provenance, Unknown
from longproof.domain.units import format_tokens
from longproof.errors import EvidenceError
from longproof.evidence.records import IN_TURNS, RequestBody
from longproof.stats.multiple import holm
from longproof.stats.paired import PairedTest, paired_test
from longproof.stats.proportion import clopper_pearson
from longproof.stats.ratio import paired_ratio
from longproof.stats.tables import mcnemar

LEAST_EFFECT = 1.05
"""One part in twenty: less than that nobody notices, and hardly anything measures."""


class Said(StrEnum):
    """What a row shows."""

    HIGHER = "higher"
    LOWER = "lower"
    SAME = "same"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One metric of one cell and length. `ratio` is B / A; `interval` is this row's own; `adjusted_p` counts all rows.
    None where there are too few pairs for one."""

    metric: str
    cell: str
    length: int
    n: int
    ratio: float
    interval: Interval | None
    adjusted_p: float | None
    said: Said
    samples: tuple[float, ...]
    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcomes:
    """Pairs of single requests by which side completed them; `p_value` by McNemar's exact test."""

    both: int
    only_a: int
    only_b: int
    neither: int
    p_value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of the two proofs."""

    name: str
    target: str
    evidence_sha256: str
    complete: bool
    speculation: Speculation | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What may be said about B against A. `in_turns`: the two were asked in turns; if not, whatever changed between the
    two proofs beside the servers' facts is in the ratios too. `cut_short`: what a budget left out, in words. `quality`:
    None where not both were asked about it."""

    a: Side
    b: Side
    facts: FactsCompared
    confidence: float
    least_effect: float
    in_turns: bool
    cut_short: str | None
    rows: tuple[Row, ...]
    outcomes: Outcomes
    outputs: OutputsCompared
    quality: QualityCompared | None
    findings: tuple[Finding, ...]
    statements: tuple[Statement, ...]
    headline: str


def compare(a: EvidenceView, b: EvidenceView, *, factors: Sequence[str] = (), confidence: float = 0.95) -> Comparison:
    """Compares two proofs. Raises ConfigurationMismatch where they differ in more than one thing or asked differently,
    EvidenceError where no question was asked of both, UsageError for a factor or confidence that makes no sense."""
    check_confidence(confidence, "the comparison")
    require_same_questions(a.header, b.header)
    facts = compare_facts(a.header, b.header, factors)
    pairs = pairs_of(a, b)
    quality = compare_quality(a, b, confidence)
    if not pairs and (quality is None or not quality.rows):
        raise EvidenceError(
            "the two proofs have no question in common: no length, arm and repeat that both were asked",
            advice="prove both with the same --lengths, --repeats and probes, or compare with --url-a and --url-b",
        )
    rows = _rows(pairs, confidence)
    outputs = compare_outputs(a, b, pairs)
    outcomes = _outcomes(pairs)
    sides = _side("A", a), _side("B", b)
    differs = any(row.said in (Said.HIGHER, Said.LOWER) for row in rows)
    pooled = pooled_of(pairs, confidence)
    return Comparison(
        a=sides[0],
        b=sides[1],
        facts=facts,
        confidence=confidence,
        least_effect=LEAST_EFFECT,
        in_turns=_in_turns(a, b),
        cut_short=cut_short(a, pairs),
        rows=rows,
        outcomes=outcomes,
        outputs=outputs,
        quality=quality,
        findings=(
            *findings_of(
                facts,
                outputs,
                told=facts.told or _drafted(sides[0]) != _drafted(sides[1]),
                pooled=pooled,
                differs=differs,
                least_effect=LEAST_EFFECT,
                only=(outcomes.only_a, outcomes.only_b),
                p_outcomes=outcomes.p_value,
                alpha=1 - confidence,
            ),
            *(finding_of(quality) if quality is not None else ()),
        ),
        statements=(
            *(_statement(row) for row in rows),
            *_equal(outputs),
            *(statements_of(quality) if quality is not None else ()),
        ),
        headline=_headline(rows, facts, quality),
    )


def gate_comparison(comparison: Comparison, requirements: Sequence[str]) -> GateReport:
    """Requirements such as ``tpot_ratio <= 1.05`` on a comparison, by the gate's own rules."""
    claim = Claim(
        format=CLAIM_FORMAT,
        longproof_version=longproof.__version__,
        headline=comparison.headline,
        target=f"{comparison.b.target} against {comparison.a.target}",
        fingerprint_digest="",
        facts={},
        unknown={},
        conditions={},
        complete=comparison.a.complete and comparison.b.complete,
        statements=comparison.statements,
        findings=comparison.findings,
        not_shown=(),
        evidence_sha256="",
    )
    return gate(claim, requirements, comparison.confidence)


def _rows(pairs: Sequence[Pair], confidence: float) -> tuple[Row, ...]:
    cells = dict.fromkeys((metric, pair.cell, pair.length) for pair in pairs for metric in pair.a)
    order = sorted(cells, key=lambda at: (list(METRICS).index(at[0]), at[1], at[2]))
    groups = [(at, [pair for pair in pairs if _measures(pair, at)]) for at in order]
    groups = [(at, group) for at, group in groups if group]
    tests = [paired_test([(pair.b[at[0]], pair.a[at[0]]) for pair in group], confidence) for at, group in groups]
    adjusted = iter(holm([test.p_value for test in tests if isinstance(test, PairedTest)]))
    return tuple(
        _row(at, group, test, next(adjusted) if isinstance(test, PairedTest) else None, confidence)
        for (at, group), test in zip(groups, tests, strict=True)
    )


def _measures(pair: Pair, at: tuple[str, str, int]) -> bool:
    metric, cell, length = at
    return (pair.cell, pair.length) == (cell, length) and metric in pair.a and metric in pair.b


def _row(
    at: tuple[str, str, int], group: Sequence[Pair], test: PairedTest | Unknown, p: float | None, confidence: float
) -> Row:
    metric, cell, length = at
    found = paired_ratio([(pair.b[metric], pair.a[metric]) for pair in group], confidence)
    assert not isinstance(found, Unknown)  # a group has a pair at least
    interval = found.interval if isinstance(found.interval, Interval) else None
    return Row(
        metric=metric,
        cell=cell,
        length=length,
        n=len(group),
        ratio=found.value,
        interval=interval,
        adjusted_p=p,
        said=Said.UNDECIDED if isinstance(test, Unknown) or p is None else _says(test, p, 1 - confidence),
        samples=tuple(pair.b[metric] / pair.a[metric] for pair in group),
        keys=tuple(pair.keys[0] for pair in group),
    )


def _says(test: PairedTest, adjusted_p: float, alpha: float) -> Said:
    ratio, spread = test.ratio.value, test.interval
    if adjusted_p <= alpha and max(ratio, 1 / ratio) >= LEAST_EFFECT:
        return Said.HIGHER if ratio > 1 else Said.LOWER
    within = spread.low >= 1 / LEAST_EFFECT and spread.high <= LEAST_EFFECT
    return Said.SAME if within else Said.UNDECIDED


def _outcomes(pairs: Sequence[Pair]) -> Outcomes:
    done = [pair.done for pair in pairs if pair.single is not None]
    only_a, only_b = done.count((True, False)), done.count((False, True))
    return Outcomes(
        both=done.count((True, True)),
        only_a=only_a,
        only_b=only_b,
        neither=done.count((False, False)),
        p_value=mcnemar(only_a, only_b),
    )


def _side(name: str, view: EvidenceView) -> Side:
    return Side(
        name=name,
        target=view.header.target,
        evidence_sha256=view.digest,
        complete=view.complete,
        speculation=speculation_of(view),
    )


def _drafted(side: Side) -> bool:
    return side.speculation is not None and side.speculation.drafted_tokens > 0


def _in_turns(a: EvidenceView, b: EvidenceView) -> bool:
    """Whether A's requests and B's lie between each other on one clock: one client asked both."""

    def span(view: EvidenceView) -> tuple[int, int]:
        at = [r.body.timeline.submitted_ns for r in view.records if isinstance(r.body, RequestBody)]
        return (min(at), max(at)) if at else (0, 0)

    (a_first, a_last), (b_first, b_last) = span(a), span(b)
    told = any(True for _ in a.requests("compare")) or any(note.what == IN_TURNS for _, note in a.notes("run"))
    return told and a_first < b_last and b_first < a_last


def _statement(row: Row) -> Statement:
    spread: Interval | Unknown = row.interval or Unknown(reason=f"n = {row.n}")
    words = {"ttft_ratio": "Time to first token", "tpot_ratio": "Time per output token"}
    return Statement(
        id=f"compare.{row.metric}.{row.cell}.{row.length}",
        metric=row.metric,
        text=(
            f"{words.get(row.metric, 'Output tokens per second')}, {row.cell}, {format_tokens(row.length)} tokens: B"
            f" has {row.ratio:.3g} of A's {describe_spread(row.metric, row.n, spread)}."
        ),
        standing=Standing.SHOWN,
        unit="ratio",
        value=Measured(value=row.ratio, provenance=Provenance.MEASURED, source=METRICS[row.metric].formula),
        n=row.n,
        at_tokens=row.length,
        interval=row.interval,
        samples=row.samples,
        conditions={"cell": row.cell},
        evidence=row.keys,
    )


def _equal(outputs: OutputsCompared) -> list[Statement]:
    return [
        Statement(
            id=f"compare.output_equal.{item.length}",
            metric="output_equal",
            text=(
                f"{item.equal} of {item.compared} greedy answers to the same prompts of {format_tokens(item.length)}"
                " tokens are the same on both sides."
            ),
            standing=Standing.SHOWN,
            unit="fraction",
            value=Measured(
                value=item.equal / item.compared,
                provenance=Provenance.MEASURED,
                source=METRICS["output_equal"].formula,
            ),
            n=item.compared,
            at_tokens=item.length,
            interval=clopper_pearson(item.equal, item.compared),
        )
        for item in outputs.by_length
    ]


def _headline(rows: Sequence[Row], facts: FactsCompared, quality: QualityCompared | None) -> str:
    """What differs, in times and in what is right."""
    about = facts.factor or "No difference in what the servers tell"
    said = [_times(rows)] if rows else []
    said += [headline_of(quality)] if quality is not None and quality.rows else []
    return f"{about}: {'; '.join(said) or 'nothing to compare'}."


def _times(rows: Sequence[Row]) -> str:
    """``B's time per output token is lower at 512 and 2,048 tokens (0.61 and 0.72), …``"""
    clear = [row for row in rows if row.said in (Said.HIGHER, Said.LOWER)]
    if not clear:
        same = sum(row.said is Said.SAME for row in rows)
        return f"no difference shown in {len(rows)} comparisons, {same} of them shown to be the same"
    words = {
        "ttft_ratio": "time to first token",
        "tpot_ratio": "time per output token",
        "output_rate_ratio": "output rate",
    }
    parts: list[str] = []
    for metric, name in words.items():
        for said in (Said.LOWER, Said.HIGHER):
            mine = [row for row in clear if row.metric == metric and row.said is said]
            if mine:
                most = max(mine, key=lambda row: abs(math.log(row.ratio)))
                parts.append(
                    f"B's {name} is {said.value} in {len(mine)} of {sum(row.metric == metric for row in rows)} cells"
                    f" (most: {most.ratio:.3g} of A's, {most.cell} at {format_tokens(most.length)} tokens)"
                )
    return "; ".join(parts)
