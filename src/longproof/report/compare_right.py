"""Right answers of two sides held against each other, as words and numbers for the card and the page."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from longproof.claim.compare_quality import LEAST_DIFFERENCE, QualityCompared, QualityRow, right_of
from longproof.domain.units import format_tokens
from longproof.report.numbers import DASH

_LEAST_P = 0.001
_NOT_PAIRED = "No question was the same on both sides: prove both with the same seed, answers and corpora."


@dataclass(frozen=True, slots=True, kw_only=True)
class RightLine:
    """One family at one length. `a`, `b`: right of asked; `difference`: the interval of B's share minus A's."""

    family: str
    tokens: str
    a: str
    b: str
    only_a: int
    only_b: int
    difference: str
    p: str
    said: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RightPart:
    """`verdicts`: how far either side holds, a sentence per family. `notes`: how it was decided, what had no pair."""

    verdicts: tuple[str, ...]
    rows: tuple[RightLine, ...]
    notes: tuple[str, ...]


def right_part(quality: QualityCompared, confidence: float) -> RightPart:
    """What a comparison says about right answers."""
    return RightPart(
        verdicts=tuple(f"{family}: A {of_a}; B {of_b}." for family, (of_a, of_b) in quality.verdicts.items()),
        rows=tuple(_line(row) for row in quality.rows),
        notes=tuple(_notes(quality, confidence)),
    )


def p_value(value: float | None) -> str:
    """A p-value in a table; a dash where there is none."""
    return DASH if value is None else "< 0.001" if value < _LEAST_P else f"{value:.2g}"


def _line(row: QualityRow) -> RightLine:
    of_a, of_b = right_of(row.pairs)
    return RightLine(
        family=row.family,
        tokens=format_tokens(row.length) if row.length else "evidence",
        a=f"{of_a}/{row.pairs.n}",
        b=f"{of_b}/{row.pairs.n}",
        only_a=row.pairs.only_first,
        only_b=row.pairs.only_second,
        difference=f"{row.interval.low:+.2f} to {row.interval.high:+.2f}",
        p=p_value(row.adjusted_p),
        said=row.said.value,
    )


def _notes(quality: QualityCompared, confidence: float) -> Iterator[str]:
    if not quality.rows:
        yield _NOT_PAIRED
        return
    yield (
        f"Shares right, B minus A, with {100 * confidence:g} % intervals (Tango). A difference is named when McNemar's"
        f" p-value, adjusted for all {len(quality.rows)} cells (Holm), is at most {1 - confidence:.2g}; 'same' when the"
        f" interval lies within {100 * LEAST_DIFFERENCE:g} points. Without p: a side stopped on its own answers."
    )
    texts = quality.same_text + quality.other_text
    if texts:
        other = quality.other_text
        rest = f"; in {other} another nonce or tokenizer took other lines for the same length" if other else ""
        yield f"{quality.same_text} of {texts} questions under filler were the same text on both sides{rest}."
    if quality.unpaired:
        yield f"{quality.unpaired} questions of A were not asked of B, or not the same ones."
