"""What speaks against taking a quality run at its word: leaks, damage by the cache, windows, biases.

Every accusation needs a test at 1 % and an effect that a user would mind.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from scipy.special import bdtrc

from longproof.claim.findings.quality_again import LEVEL, asked_again
from longproof.claim.quality_replies import FamilyReplies, Reply
from longproof.claim.statements import Finding, NotShown, Severity, Statement
from longproof.domain.measure import Unknown
from longproof.domain.units import format_tokens
from longproof.stats.agreement import count_pairs, worse
from longproof.stats.depth import depth_trend, distance_break

TWINS = frozenset({"absent", "absent-free"})
"""Families of pairs of which one has the evidence, and the other lacks it."""
_LEAST_SLOPE = 1.0
"""Log odds from head to tail that a user would mind."""


def doubts(families: Sequence[FamilyReplies]) -> Iterator[Statement | Finding | NotShown]:
    """All doubts about all families."""
    for family in families:
        yield from _leak(family)
        yield from _bias(family)
        yield from _memory(family)
        yield from _all_lost(family)
        yield from _hard_control(family)
        yield from _depth(family)
    yield from asked_again(families)


def _leak(family: FamilyReplies) -> Iterator[Finding]:
    """Right without any text more often than guessing explains."""
    cell = family.closed_book
    guess = max(family.chance, 0.01)  # a free value is hit by chance hardly ever
    if cell.n and cell.right > family.chance * cell.n and float(bdtrc(cell.right - 1, cell.n, guess)) < LEVEL:
        yield Finding(
            id="quality.closed_book_leak",
            severity=Severity.CAUTION,
            text=(
                f"{family.name}: {cell.right} of {cell.n} were right without any text: the model knows or guesses them,"
                " and its answers say less about the window."
            ),
            evidence=cell.keys,
            details={"family": family.name},
        )


def _bias(family: FamilyReplies) -> Iterator[Finding]:
    """Always yes or always no: half of all answers right, and nothing told."""
    if family.name not in TWINS:
        return
    replies = [r for cell in (family.control, *family.full.values()) for r in cell.replies if r.right is not None]
    present = [r for r in replies if any(needle.evidence for needle in r.item.needles)]
    absent = [r for r in replies if r not in present]
    for always, right, wrong in (("no", absent, present), ("yes", present, absent)):
        good, bad = _share(right), _share(wrong)
        if len(right) >= 4 and len(wrong) >= 4 and good >= 0.75 and bad <= 0.25:
            yield Finding(
                id="quality.says_always_the_same",
                severity=Severity.CAUTION,
                text=(
                    f"Asked whether a key is there, the model says {always}: {sum(r.right is True for r in right)} of"
                    f" {len(right)} right where that is true, {sum(r.right is True for r in wrong)} of {len(wrong)}"
                    " where it is not."
                ),
                evidence=tuple(r.key for r in replies),
                details={"says": always},
            )


def _share(replies: Sequence[Reply]) -> float:
    return sum(r.right is True for r in replies) / len(replies) if replies else 0.0


def _memory(family: FamilyReplies) -> Iterator[Finding]:
    """Answers that name what the text had before it was changed: recited, not read."""
    replies = [r for cell in family.full.values() for r in cell.replies if r.judged.scored is not None]
    recited = [r for r in replies if "memory" in r.judged.why]
    if recited:
        yield Finding(
            id="quality.recited_from_memory",
            severity=Severity.CAUTION,
            text=(
                f"{family.name}: {len(recited)} of {len(replies)} answers gave the value that the text had before it"
                " was changed: remembered, although the prompt says otherwise."
            ),
            evidence=tuple(r.key for r in recited),
            details={"family": family.name},
        )


def _all_lost(family: FamilyReplies) -> Iterator[Finding]:
    """Nothing right under any filler although the model can do it: rather a template or a cut prompt than ability."""
    cells = list(family.full.values())
    n = sum(cell.n for cell in cells)
    able = family.control.n and family.control.right / family.control.n >= 0.75
    if able and n >= 6 and not any(cell.right for cell in cells):
        yield Finding(
            id="quality.all_lost",
            severity=Severity.CAUTION,
            text=(
                f"{family.name}: {family.control.right} of {family.control.n} right with the evidence alone, 0 of {n}"
                " under filler of any length: check template, truncation and rope settings before blaming the model."
            ),
            evidence=tuple(key for cell in cells for key in cell.keys),
            details={"family": family.name},
        )


def _hard_control(family: FamilyReplies) -> Iterator[Finding]:
    """More right under filler than without it: what stands close together may be harder to tell apart."""
    if not family.full:
        return
    length, cell = min(family.full.items())
    alone = {reply.item.index: reply.right for reply in family.control.replies if reply.right is not None}
    both = [(alone[r.item.index], r.right) for r in cell.replies if r.right is not None and r.item.index in alone]
    if not both:
        return
    counted = count_pairs([right for _, right in both], [right for right, _ in both])
    if worse(counted) < LEVEL:
        yield Finding(
            id="quality.control_is_harder",
            severity=Severity.CAUTION,
            text=(
                f"{family.name}: {counted.only_first} of {counted.n} items were right only at {format_tokens(length)}"
                f" tokens and {counted.only_second} only with the evidence alone (p = {worse(counted):.2g}):"
                " close together, the evidence is harder to tell apart; the shortest length says better what the model"
                " can do."
            ),
            evidence=(*family.control.keys, *cell.keys),
            details={"family": family.name},
        )


def _depth(family: FamilyReplies) -> Iterator[Finding]:
    asked = [(length, r) for length, cell in family.full.items() for r in cell.replies if r.right is not None]
    if not asked:
        return
    depths = [float(r.body.cell.get("depth", r.item.depth)) for _, r in asked]
    right, lengths = [bool(r.right) for _, r in asked], [length for length, _ in asked]
    keys = tuple(r.key for _, r in asked)
    distances = [
        int(r.body.cell.get("distance", round((1 - depth) * length)))
        for depth, (length, r) in zip(depths, asked, strict=True)
    ]
    cut = distance_break(distances, right, lengths)
    if not isinstance(cut, Unknown) and cut.looks_like_window(LEVEL):
        yield Finding(
            id="quality.window_bug",
            severity=Severity.FAULT,
            text=(
                f"{family.name}: what stands within {cut.power_of_two:,} tokens of the end is found"
                f" ({cut.near_right} of {cut.near_n}), what stands farther is not ({cut.far_right} of {cut.far_n}): a"
                " window that somebody set, not a lack of ability."
            ),
            evidence=keys,
            details={"family": family.name, "window_tokens": str(cut.power_of_two)},
        )
        return
    trend = depth_trend(depths, right, lengths)
    if not isinstance(trend, Unknown) and trend.p_value < LEVEL and abs(trend.slope) >= _LEAST_SLOPE:
        where = "near the end" if trend.slope > 0 else "near the beginning"
        yield Finding(
            id="quality.depth_matters",
            severity=Severity.CAUTION,
            text=(
                f"{family.name}: answers are found more often {where} (log odds {trend.slope:+.1f} from head to tail,"
                f" p = {trend.p_value:.2g}, n = {trend.n})."
            ),
            evidence=keys,
            details={"family": family.name},
        )
