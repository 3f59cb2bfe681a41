"""Effective context of two proofs held against each other: the same items, who was right, and how often that differs.

    A ─┐  item i of family f at length L, the same item on both sides?
       ├─ yes ─▶ right on both, on A alone, on B alone, on neither ─▶ McNemar, Holm over all cells
    B ─┘  no  ─▶ not paired: another seed or corpus

A difference is named when chance makes one like it with at most 1 - confidence, all cells together. Cells that stopped
on their own answers (``--certify``) have no such test: their brackets are held side by side.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from longproof.claim.findings.quality import verdict_of
from longproof.claim.metrics import METRICS
from longproof.claim.quality_replies import FamilyReplies, Reply, families_of, plan_of_run
from longproof.claim.statements import Finding, Severity, Standing, Statement
from longproof.claim.view import EvidenceView
from longproof.domain.measure import Interval, Measured, Provenance
from longproof.domain.units import format_tokens
from longproof.quality.plan import QualityPlan
from longproof.stats.agreement import Pairs, count_pairs, different, paired_difference
from longproof.stats.multiple import holm

LEAST_DIFFERENCE = 0.05
"""Of all answers: "the same" needs an interval within it."""


class Right(StrEnum):
    """What a cell shows of B."""

    MORE = "more"
    LESS = "less"
    SAME = "same"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityRow:
    """One family at one length; `length` 0: the evidence alone. `interval` is of the share right of B minus that of A;
    `adjusted_p` counts all rows, None where a side stopped on its own answers."""

    family: str
    length: int
    pairs: Pairs
    interval: Interval
    adjusted_p: float | None
    said: Right
    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityCompared:
    """`verdicts`: family → (A's, B's) in words. `unpaired`: asked items of A that B was not asked, or not the same.
    `same_text`, `other_text`: pairs under filler by whether both read the same text behind the nonce; another nonce or
    tokenizer may need other units for the same length. Both 0 where the evidence does not tell."""

    rows: tuple[QualityRow, ...]
    verdicts: Mapping[str, tuple[str, str]]
    unpaired: int
    same_text: int
    other_text: int


def compare_quality(a: EvidenceView, b: EvidenceView, confidence: float = 0.95) -> QualityCompared | None:
    """None where not both sides were asked about the same family."""
    plans = plan_of_run(a), plan_of_run(b)
    mine = {family.name: family for family in families_of(a)}
    theirs = {family.name: family for family in families_of(b)}
    both = [name for name in mine if name in theirs]
    if plans[0] is None or plans[1] is None or not both:
        return None
    cells = [cell for name in both for cell in _cells(mine[name], theirs[name])]
    texts = [a == b for cell in cells if cell.length for a, b in _texts(cell)]
    counted = [(cell, _pairs(cell)) for cell in cells]
    counted = [(cell, pairs) for cell, pairs in counted if pairs is not None]
    fixed = all(plan.mode == "curve" for plan in (plans[0], plans[1]))
    adjusted = iter(holm([different(pairs) for _, pairs in counted]) if fixed else [None] * len(counted))
    rows = [_row(cell, pairs, p, confidence) for (cell, pairs), p in zip(counted, adjusted, strict=True)]
    return QualityCompared(
        rows=tuple(rows),
        verdicts={name: (_word(plans[0], mine[name]), _word(plans[1], theirs[name])) for name in both},
        unpaired=sum(cell.unpaired for cell in cells),
        same_text=sum(texts),
        other_text=len(texts) - sum(texts),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cell:
    family: str
    length: int
    replies: tuple[tuple[Reply, Reply], ...]
    unpaired: int


def _cells(mine: FamilyReplies, theirs: FamilyReplies) -> Iterator[_Cell]:
    """The evidence alone, then the lengths that both were asked at."""
    yield _cell(mine.name, 0, mine.control.replies, theirs.control.replies)
    for length in sorted(mine.full.keys() & theirs.full.keys()):
        yield _cell(mine.name, length, mine.full[length].replies, theirs.full[length].replies)


def _cell(family: str, length: int, mine: Sequence[Reply], theirs: Sequence[Reply]) -> _Cell:
    others = {reply.item.index: reply for reply in theirs}
    together = [(reply, others[reply.item.index]) for reply in mine if reply.item.index in others]
    same = tuple((one, other) for one, other in together if one.item == other.item)
    return _Cell(family=family, length=length, replies=same, unpaired=len(mine) - len(same))


def _texts(cell: _Cell) -> Iterator[tuple[object, object]]:
    for a, b in cell.replies:
        read = a.body.cell.get("text_sha256"), b.body.cell.get("text_sha256")
        if None not in read:
            yield read


def _pairs(cell: _Cell) -> Pairs | None:
    scored = [(a.right, b.right) for a, b in cell.replies if a.right is not None and b.right is not None]
    return count_pairs([a for a, _ in scored], [b for _, b in scored]) if scored else None


def _row(cell: _Cell, pairs: Pairs, p: float | None, confidence: float) -> QualityRow:
    interval = paired_difference(pairs, confidence)
    return QualityRow(
        family=cell.family,
        length=cell.length,
        pairs=pairs,
        interval=interval,
        adjusted_p=p,
        said=_says(pairs, interval, p, 1 - confidence),
        keys=tuple(a.key for a, _ in cell.replies),
    )


def _says(pairs: Pairs, interval: Interval, p: float | None, alpha: float) -> Right:
    if p is None:
        return Right.UNDECIDED
    if p <= alpha:
        return Right.MORE if pairs.difference > 0 else Right.LESS
    within = interval.low >= -LEAST_DIFFERENCE and interval.high <= LEAST_DIFFERENCE
    return Right.SAME if within else Right.UNDECIDED


def _word(plan: QualityPlan, family: FamilyReplies) -> str:
    return verdict_of(plan, family).word


# -- what is said -----------------------------------------------------------------------------------------------------


def right_of(pairs: Pairs) -> tuple[int, int]:
    """How many A and B had right."""
    return pairs.both + pairs.only_first, pairs.both + pairs.only_second


def where(row: QualityRow) -> str:
    """``at 4,096 tokens``"""
    return f"at {format_tokens(row.length)} tokens" if row.length else "with the evidence alone"


def statements_of(compared: QualityCompared) -> Iterator[Statement]:
    """One difference of shares per family and length; controls are no length and are left to the rows."""
    for row in compared.rows:
        if not row.length:
            continue
        of_a, of_b = right_of(row.pairs)
        yield Statement(
            id=f"compare.accuracy_difference.{row.family}.{row.length}",
            metric="accuracy_difference",
            text=(
                f"{row.family} {where(row)}: B had {of_b} of {row.pairs.n} right, A {of_a}; {row.pairs.only_second}"
                f" only B, {row.pairs.only_first} only A."
            ),
            standing=Standing.SHOWN,
            unit="ratio",
            value=Measured(
                value=row.pairs.difference,
                provenance=Provenance.MEASURED,
                source=METRICS["accuracy_difference"].formula,
            ),
            n=row.pairs.n,
            at_tokens=row.length,
            interval=row.interval,
            conditions={"family": row.family},
            evidence=row.keys,
        )


def finding_of(compared: QualityCompared) -> Iterator[Finding]:
    """What B finds less, or more often: one finding, with the clearest cell."""
    for said in (Right.LESS, Right.MORE):
        clear = [row for row in compared.rows if row.said is said]
        if clear:
            most = max(clear, key=lambda row: abs(row.pairs.difference))
            of_a, of_b = right_of(most.pairs)
            yield Finding(
                id="compare.accuracy_differs",
                severity=Severity.CAUTION,
                text=(
                    f"B is right {said.value} often than A in {len(clear)} of {len(compared.rows)} cells; most in"
                    f" {most.family} {where(most)}: {of_b} of {most.pairs.n} against {of_a}"
                    f" (McNemar, adjusted p = {most.adjusted_p:.2g})."
                ),
                evidence=most.keys,
                details={"family": most.family, "length": str(most.length)},
            )


def headline_of(compared: QualityCompared) -> str:
    """``B is right less often in 2 of 9 cells (most: multi-key-8 at 4,096 tokens, 3 of 20 against 15)``"""
    parts: list[str] = []
    for said in (Right.LESS, Right.MORE):
        clear = [row for row in compared.rows if row.said is said]
        if clear:
            most = max(clear, key=lambda row: abs(row.pairs.difference))
            of_a, of_b = right_of(most.pairs)
            parts.append(
                f"B is right {said.value} often in {len(clear)} of {len(compared.rows)} cells of quality (most:"
                f" {most.family} {where(most)}, {of_b} of {most.pairs.n} against {of_a})"
            )
    same = sum(row.said is Right.SAME for row in compared.rows)
    none = f"no difference of quality shown in {len(compared.rows)} cells, {same} of them shown to be the same"
    return "; ".join(parts) or none
