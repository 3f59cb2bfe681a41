"""Effective context on the page: per family the curve, the bracket and where answers are found, with examples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from longproof.claim.findings.quality import FamilyVerdict, verdict_of
from longproof.claim.quality_replies import Cell, FamilyReplies, Reply, families_of, plan_of_run
from longproof.claim.statements import Claim, Statement
from longproof.claim.view import EvidenceView
from longproof.domain.units import format_tokens
from longproof.quality.plan import QualityPlan
from longproof.report.figures import Figure, Legend
from longproof.report.plot_frame import Words
from longproof.report.quality_plots import Answer, Share, accuracy, depths
from longproof.report.theme import Role
from longproof.report.untrusted import shortened

_MOST_ANSWERS = 300
_MOST_EXAMPLES = 4
_MOST_CHARS = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One reply: the end of its prompt, what was expected, what came, and how it was judged."""

    family: str
    length: str
    end: str
    expected: str
    said: str
    right: bool
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyRow:
    """One family in the table: verdict in words, controls, and right of n at each length."""

    name: str
    word: str
    control: str
    closed_book: str
    shares: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class QualitySection:
    """What the page shows of a quality run."""

    lead: str
    lengths: tuple[str, ...]
    rows: tuple[FamilyRow, ...]
    figures: tuple[Figure, ...]
    examples: tuple[Example, ...]
    statements: tuple[Statement, ...]


def section(claim: Claim, view: EvidenceView) -> QualitySection | None:
    """The section; None where quality was not asked."""
    plan = plan_of_run(view)
    families = families_of(view)
    if plan is None or not families:
        return None
    verdicts = [verdict_of(plan, family) for family in families]
    rule = "of what it can do without filler" if plan.rule == "retention" else "of all answers"
    return QualitySection(
        lead=(
            f"A length is kept when {100 * plan.threshold:g} % {rule} are right, tested; an estimate is no proof."
            f" {'Asked until decided' if plan.mode == 'climb' else f'{plan.answers} items at every length'}, the same"
            " items at each: only the filler grows."
        ),
        lengths=tuple(format_tokens(length) for length in plan.lengths),
        rows=tuple(_row(plan, verdict) for verdict in verdicts),
        figures=tuple(figure for verdict in verdicts for figure in _figures(claim, plan, verdict)),
        examples=tuple(_examples(families)),
        statements=tuple(item for item in claim.statements if item.id.startswith("quality.")),
    )


def _row(plan: QualityPlan, verdict: FamilyVerdict) -> FamilyRow:
    family = verdict.family
    return FamilyRow(
        name=family.name,
        word=verdict.word,
        control=_of(family.control),
        closed_book=_of(family.closed_book),
        shares=tuple(_of(family.full.get(length, Cell())) for length in plan.lengths),
    )


def _of(cell: Cell) -> str:
    return f"{cell.right} of {cell.n}" if cell.n else "–"


def _figures(claim: Claim, plan: QualityPlan, verdict: FamilyVerdict) -> Iterator[Figure]:
    family = verdict.family
    stated = {
        item.at_tokens: item for item in claim.statements if item.id.startswith(f"quality.accuracy.{family.name}.")
    }
    shares = [
        Share(tokens=length, right=cell.right, n=cell.n, low=item.interval.low, high=item.interval.high)
        for length, cell in family.full.items()
        if cell.n and (item := stated.get(length)) is not None and item.interval is not None
    ]
    if len(shares) > 1:
        control = family.control.right / family.control.n if family.control.n else None
        words = Words(
            name=f"accuracy-{family.name}",
            title=f"{family.name}: right answers by length",
            axis="right",
            unit="fraction",
        )
        yield Figure(
            title=f"{family.name}: {verdict.word}",
            svg=accuracy(
                shares,
                control=control,
                bar=plan.design(family.chance).bar,
                certified=verdict.bracket.certified_tokens,
                refuted=verdict.bracket.refuted_tokens,
                words=words,
            ),
            caption=f"The band is the interval of each share; full rule: {rule_words(plan, family.chance)}; dashed:"
            " evidence alone.",
            legend=tuple(_legend(verdict)),
        )
    answers = _answers(family)
    if len({answer.tokens for answer in answers}) > 1:
        words = Words(name=f"depth-{family.name}", title=f"{family.name}: by depth", axis="where it stood", unit="")
        yield Figure(
            title=f"{family.name} by depth",
            svg=depths(answers, words),
            caption=f"Every answer at its length and the depth of its evidence (n = {len(answers)}).",
            legend=(
                Legend(glyph="●", role=Role.GOOD.value, text="right"),
                Legend(glyph="✕", role=Role.BAD.value, text="wrong"),
            ),
        )


def rule_words(plan: QualityPlan, chance: float) -> str:
    """What the threshold is on the scale of the plot: guesses that are right by chance do not count for it."""
    if not chance:
        return f"threshold, {100 * plan.threshold:g} %"
    bar = plan.design(chance).bar
    return f"{100 * bar:.3g} %, the threshold of {100 * plan.threshold:g} % where guessing finds {100 * chance:.3g} %"


def _legend(verdict: FamilyVerdict) -> Iterator[Legend]:
    yield Legend(glyph="●", role=Role.COLD.value, text="share right")
    if verdict.bracket.certified_tokens is not None:
        yield Legend(glyph="▲", role=Role.GOOD.value, text="proven up to here")
    if verdict.bracket.refuted_tokens is not None:
        yield Legend(glyph="✕", role=Role.BAD.value, text="lost by here")


def _answers(family: FamilyReplies) -> list[Answer]:
    found = [
        Answer(tokens=length, depth=float(reply.body.cell.get("depth", reply.item.depth)), right=reply.right)
        for length, cell in family.full.items()
        for reply in cell.replies
        if reply.right is not None
    ]
    return found[:: max(1, -(-len(found) // _MOST_ANSWERS))]


def _examples(families: Sequence[FamilyReplies]) -> Iterator[Example]:
    """For each family a right answer and a wrong one, the longest first."""
    for family in families:
        replies = [(n, r) for n, cell in sorted(family.full.items(), reverse=True) for r in cell.replies]
        for wanted in (True, False):
            found = next(((n, r) for n, r in replies if r.right is wanted), None)
            if found is not None:
                yield _example(*found)


def _example(length: int, reply: Reply) -> Example:
    scored = reply.judged.scored
    return Example(
        family=reply.item.family,
        length=format_tokens(length),
        end=str(reply.body.cell.get("end", reply.item.question))[-_MOST_CHARS:],
        expected=", ".join(reply.item.answers),
        said=shortened(scored.considered if scored is not None else reply.body.timeline.text, _MOST_CHARS),
        right=bool(reply.right),
        why=reply.judged.why,
    )
