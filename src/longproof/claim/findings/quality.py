"""Reads what `quality.run` asked: how far each task family holds, and what spoke against trusting that.

A length is proven by a bound, never by a share: in a curve the numbers of answers were fixed before (Clopper-Pearson),
in a climb the answers themselves decided when to stop, and only the sequential test's own verdicts and bounds count.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from longproof.claim.findings.quality_doubts import TWINS, doubts
from longproof.claim.quality_replies import PROBE, Cell, FamilyReplies, families_of, plan_of_run
from longproof.claim.statements import Finding, NotShown, Standing, Statement
from longproof.claim.view import EvidenceView
from longproof.domain.measure import Interval, Measured, Provenance, Unknown
from longproof.domain.units import format_tokens
from longproof.quality.judging import Ended
from longproof.quality.plan import NOT_GATING, QualityPlan
from longproof.stats.chance import youden
from longproof.stats.design import Design
from longproof.stats.effective_context import judge
from longproof.stats.fixed_sequence import LengthBracket, LengthCell, fixed_sequence, weakest
from longproof.stats.proportion import clopper_pearson, upper_bound
from longproof.stats.psychometric import estimate
from longproof.stats.sprt import Side, anytime_bound

_MOST_BUDGET = 0.05
"""More answers than this ended by budget: the family says nothing about the window."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyVerdict:
    """What is proven of one family. `word`: cannot, holds to, lost by, undecided, budget, length unproven."""

    family: FamilyReplies
    bracket: LengthBracket
    cannot: bool
    word: str


def read(view: EvidenceView) -> Iterator[Statement | Finding | NotShown]:
    """Per family its controls, lengths, bracket and estimate; then the worst family; then doubts."""
    plan = plan_of_run(view)
    if plan is None:
        return
    families = families_of(view)
    verdicts = [verdict_of(plan, family) for family in families]
    for verdict in verdicts:
        yield from _family(plan, verdict)
    yield from _worst(plan, [verdict for verdict in verdicts if verdict.family.name not in NOT_GATING])
    yield from doubts(families)
    yield from _too_few(plan, families)
    yield from _left_out(view)


def verdict_of(plan: QualityPlan, family: FamilyReplies) -> FamilyVerdict:
    """Judges one family by the rule of its run."""
    replies = [reply for cell in family.full.values() for reply in cell.replies]
    for ended, word in ((Ended.LENGTH_UNPROVEN, "length unproven"), (Ended.BUDGET, "budget")):
        spoilt = sum(reply.judged.ended is ended for reply in replies)
        if replies and spoilt > _MOST_BUDGET * len(replies):
            nothing = LengthBracket(certified_tokens=None, refuted_tokens=None)
            return FamilyVerdict(family=family, bracket=nothing, cannot=False, word=word)
    if plan.mode == "climb":
        outcomes = {length: cell.outcomes for length, cell in family.full.items()}
        judgement = judge(design_of(plan, family), outcomes, family.control.outcomes)
        bracket, cannot = judgement.bracket, judgement.cannot
    else:
        bracket, cannot = _curve(plan, family)
    return FamilyVerdict(family=family, bracket=bracket, cannot=cannot, word=_word(bracket, cannot))


def design_of(plan: QualityPlan, family: FamilyReplies) -> Design:
    """How the answers of a family are judged: at the lengths that are its own, and any other that it was asked at."""
    design = plan.design(family.chance, family.kind)
    return replace(design, lengths_tokens=tuple(sorted({*design.lengths_tokens, *family.full})))


def _curve(plan: QualityPlan, family: FamilyReplies) -> tuple[LengthBracket, bool]:
    """The bracket of fixed numbers of answers, and whether the control alone rules every length out."""
    design, control = design_of(plan, family), family.control
    cannot = control.n > 0 and upper_bound(control.right, control.n, 1 - design.alpha_refuted) < design.bar
    cells = [
        LengthCell(length_tokens=length, right=cell.right, n=cell.n) for length, cell in family.full.items() if cell.n
    ]
    if plan.rule == "retention":
        cells = [_retained(family, cell) for cell in cells]
    cells = [cell for cell in cells if cell.n]
    bracket = fixed_sequence(cells, design.bar, plan.alpha, design.alpha_refuted)
    return bracket, cannot and bracket.certified_tokens is None


def _retained(family: FamilyReplies, cell: LengthCell) -> LengthCell:
    """Only items whose control was right."""
    able = {reply.item.index for reply in family.control.replies if reply.right}
    kept = [r for r in family.full[cell.length_tokens].replies if r.right is not None and r.item.index in able]
    return LengthCell(length_tokens=cell.length_tokens, right=sum(r.right is True for r in kept), n=len(kept))


def _word(bracket: LengthBracket, cannot: bool) -> str:
    if cannot:
        return "cannot"
    holds = "" if bracket.certified_tokens is None else f"holds to {format_tokens(bracket.certified_tokens)}"
    lost = "" if bracket.refuted_tokens is None else f"lost by {format_tokens(bracket.refuted_tokens)}"
    return ", ".join(part for part in (holds, lost) if part) or "undecided"


# -- statements -------------------------------------------------------------------------------------------------------


def _family(plan: QualityPlan, verdict: FamilyVerdict) -> Iterator[Statement]:
    family = verdict.family
    yield _share(plan, family, "control_accuracy", family.control, None, "with the evidence alone")
    if family.closed_book.replies:
        yield _share(plan, family, "closed_book_accuracy", family.closed_book, None, "without any text")
    for length, cell in family.full.items():
        yield _share(plan, family, "accuracy", cell, length, f"at {format_tokens(length)} tokens")
        if family.name in TWINS:
            yield from _youden(family, cell, length)
    yield from _bracket(plan, verdict)
    yield from _estimate(plan, verdict)


def _share(
    plan: QualityPlan, family: FamilyReplies, metric: str, cell: Cell, length: int | None, where: str
) -> Statement:
    others = ", ".join(
        f"{count} {ended.value}" for ended, count in cell.ended.items() if ended not in (Ended.RIGHT, Ended.WRONG)
    )
    apart = f"; apart from these {others}" if others else ""
    known = cell.n > 0
    interval = _interval(plan, cell) if known else None
    said = f"{cell.right} of {cell.n} right" if known else "no reply had a score"
    spread = (
        "" if interval is None else f" ({100 * interval.low:.0f} to {100 * interval.high:.0f} %, {interval.method})"
    )
    return Statement(
        id=f"{PROBE}.{metric}.{family.name}" + ("" if length is None else f".{length}"),
        metric=metric,
        text=f"{family.name} {where}: {said}{spread}{apart}.",
        standing=Standing.SHOWN if known else Standing.NOT_SHOWN,
        unit="fraction",
        value=Measured(value=cell.right / cell.n, provenance=Provenance.MEASURED, source="right / scored")
        if known
        else Unknown(reason="no reply had a score"),
        n=cell.n,
        at_tokens=length,
        interval=interval,
        conditions=_conditions(plan, family),
        evidence=cell.keys,
    )


def _interval(plan: QualityPlan, cell: Cell) -> Interval:
    """Fixed numbers of answers: Clopper-Pearson. Stopped by their own answers: bounds that hold whenever one stops."""
    if plan.mode == "curve":
        return clopper_pearson(cell.right, cell.n)
    return Interval(
        low=anytime_bound(cell.outcomes, Side.ABOVE, plan.alpha / 2),
        high=anytime_bound(cell.outcomes, Side.BELOW, plan.alpha / 2),
        confidence=1 - plan.alpha,
        method="anytime-valid",
    )


def _youden(family: FamilyReplies, cell: Cell, length: int) -> Iterator[Statement]:
    """Present and absent apart: who always says the same has half of all answers right, and tells nothing."""
    halves: dict[bool, list[bool]] = {True: [], False: []}
    for reply in cell.replies:
        if reply.right is not None:
            halves[any(needle.evidence for needle in reply.item.needles)].append(reply.right)
    present, absent = halves[True], halves[False]
    if not present or not absent:
        return
    found = youden(sum(present), len(present), sum(absent), len(absent))
    yield Statement(
        id=f"{PROBE}.youden.{family.name}.{length}",
        metric="youden",
        text=(
            f"At {format_tokens(length)} tokens {sum(present)} of {len(present)} present keys and {sum(absent)} of"
            f" {len(absent)} absent ones were told right: J = {found.value:.2f}."
        ),
        standing=Standing.SHOWN,
        unit="ratio",
        value=Measured(value=found.value, provenance=Provenance.DERIVED, source="TPR + TNR - 1"),
        n=len(present) + len(absent),
        at_tokens=length,
        interval=found.interval,
        conditions={"family": family.name},
        evidence=cell.keys,
    )


def _bracket(plan: QualityPlan, verdict: FamilyVerdict) -> Iterator[Statement]:
    family, bracket = verdict.family, verdict.bracket
    lost = _lost(plan, verdict)
    why = " (cannot: it is lost with the evidence alone)" if verdict.cannot else ""
    yield from _reach(
        "family_context", family.name, f"{family.name}", bracket.certified_tokens, lost, why, plan, family
    )


def _worst(plan: QualityPlan, verdicts: list[FamilyVerdict]) -> Iterator[Statement]:
    """What every family of the plan keeps. A family that could not be asked leaves the worst one unknown."""
    if not verdicts:
        return
    brackets = [
        LengthBracket(
            certified_tokens=None if verdict.cannot else verdict.bracket.certified_tokens,
            refuted_tokens=_lost(plan, verdict),
        )
        for verdict in verdicts
    ]
    found = weakest(brackets)
    asked = {verdict.family.name for verdict in verdicts}
    certified = found.certified_tokens if asked >= {*plan.families} - NOT_GATING else None
    worst = min(verdicts, key=lambda verdict: _rank(verdict, plan)).family.name
    one = len(verdicts) == 1
    whose = worst if one else f"worst of {len(verdicts)} families ({worst})"
    subject = f"Effective context, {whose}"
    yield from _reach("effective_context", "worst", subject, certified, found.refuted_tokens, "", plan, None)


def _lost(plan: QualityPlan, verdict: FamilyVerdict) -> int | None:
    """What cannot be done at all is lost by the shortest length already."""
    return min(plan.lengths_of(verdict.family.kind)) if verdict.cannot else verdict.bracket.refuted_tokens


def _rank(verdict: FamilyVerdict, plan: QualityPlan) -> tuple[int, int]:
    return _lost(plan, verdict) or 2 * max(plan.lengths), verdict.bracket.certified_tokens or 0


def _reach(
    metric: str,
    name: str,
    subject: str,
    certified: int | None,
    refuted: int | None,
    why: str,
    plan: QualityPlan,
    family: FamilyReplies | None,
) -> Iterator[Statement]:
    threshold = f"{100 * plan.threshold:g} % right" + (" of what it can" if plan.rule == "retention" else "")
    conditions = _conditions(plan, family)

    def statement(ending: str, text: str, standing: Standing, tokens: int | None) -> Statement:
        cell = family.full.get(tokens) if family is not None and tokens is not None else None
        return Statement(
            id=f"{PROBE}.{metric}.{name}{ending}",
            metric=metric,
            text=text,
            standing=standing,
            unit="tokens",
            value=Unknown(reason="no length was decided")
            if tokens is None
            else Measured(value=float(tokens), provenance=Provenance.MEASURED, source="fixed sequence of tests"),
            n=0 if cell is None else cell.n,
            conditions=conditions,
            evidence=() if cell is None else cell.keys,
        )

    if certified is not None:
        text = f"{subject}: {threshold} is proven up to {format_tokens(certified)} tokens."
        yield statement("", text, Standing.SHOWN, certified)
    if refuted is not None:
        text = f"{subject}: {threshold} is lost by {format_tokens(refuted)} tokens{why}."
        yield statement(".lost", text, Standing.REFUTED, refuted)
    if certified is None and refuted is None:
        yield statement("", f"{subject}: undecided at every length that was asked.", Standing.NOT_SHOWN, None)


def _estimate(plan: QualityPlan, verdict: FamilyVerdict) -> Iterator[Statement]:
    family = verdict.family
    design = design_of(plan, family)
    cells = {length: family.full.get(length, Cell()) for length in design.lengths_tokens}
    if verdict.cannot or sum(cell.n for cell in cells.values()) == 0 or len(cells) < 2:
        return
    found = estimate(
        design.lengths_tokens,
        [cell.right for cell in cells.values()],
        [cell.n for cell in cells.values()],
        threshold=design.bar,
        chance=family.chance,
    )
    low = "below the shortest" if found.low_tokens is None else f"{found.low_tokens:,.0f}"
    high = "beyond the longest" if found.high_tokens is None else f"{found.high_tokens:,.0f}"
    where = "beyond the longest length" if found.reaches_longest else "below the shortest length"
    at = where if found.tokens is None else f"about {found.tokens:,.0f} tokens"
    yield Statement(
        id=f"{PROBE}.effective_context_estimate.{family.name}",
        metric="effective_context_estimate",
        text=f"{family.name} falls below the threshold at {at} (estimate, 95 %: {low} to {high}).",
        standing=Standing.NOT_SHOWN if found.tokens is None else Standing.SHOWN,
        unit="tokens",
        value=Unknown(reason=where)
        if found.tokens is None
        else Measured(value=found.tokens, provenance=Provenance.DERIVED, source=found.method),
        n=sum(cell.n for cell in cells.values()),
        interval=None
        if found.low_tokens is None or found.high_tokens is None
        else Interval(low=found.low_tokens, high=found.high_tokens, confidence=found.confidence, method=found.method),
        conditions=_conditions(plan, family),
        evidence=tuple(key for cell in cells.values() for key in cell.keys),
    )


def _conditions(plan: QualityPlan, family: FamilyReplies | None) -> dict[str, str]:
    rule = "retention" if plan.rule == "retention" else "absolute"
    said = {"threshold": f"{plan.threshold:g}", "rule": rule, "together": str(plan.together)}
    if family is None:
        return {"families": ",".join(plan.families), **said}
    return {"family": family.name, **said, **({"chance": f"{family.chance:g}"} if family.chance else {})}


def _too_few(plan: QualityPlan, families: Sequence[FamilyReplies]) -> Iterator[NotShown]:
    """A curve whose number of answers cannot certify anything, however good they are: all of n right put the lower
    bound at alpha^(1/n). The bar is higher where guesses are right by chance."""
    if plan.mode == "climb":
        return
    needs = {f.name: math.ceil(math.log(plan.alpha) / math.log(design_of(plan, f).bar)) for f in families}
    short = {name: n for name, n in needs.items() if n > plan.answers}
    if short:
        told = ", ".join(f"{n} for {name}" for name, n in short.items())
        yield NotShown(
            topic=f"{PROBE}.answers",
            text=(
                f"That any length keeps {100 * plan.threshold:g} % right: {plan.answers} answers at each cannot show"
                f" it, even if all are right; it takes {told}."
            ),
            how=f"--answers {max(short.values())} or more, or --certify",
        )


def _left_out(view: EvidenceView) -> Iterator[NotShown]:
    for _, note in view.notes(PROBE):
        if note.what == "family_left_out":
            family = note.detail["family"]
            yield NotShown(
                topic=f"quality.{family}",
                text=f"How the family {family} does: {note.detail['reason']}.",
                how="give a corpus that has what it needs, with --corpus or --code-corpus",
            )
    unproven = [note for _, note in view.notes(PROBE) if note.what == "length_unproven"]
    if unproven:
        yield NotShown(
            topic=f"{PROBE}.length",
            text=f"{len(unproven)} questions were not asked, because their length could not be proven:"
            f" {unproven[0].detail.get('reason', '')}.",
            how="a server that counts for its clients, or --tokenizer",
        )
