"""The quality step: which families at which lengths with how many answers. Pure."""

from __future__ import annotations

from dataclasses import replace

from longproof.errors import UsageError
from longproof.evidence.records import Step
from longproof.prove.options import ProveOptions
from longproof.prove.parameters import step_of
from longproof.quality.plan import QualityPlan
from longproof.quality.tasks import FAMILIES, chance_of
from longproof.stats.cell import fewest_to_certify

DEFAULT_FAMILIES = ("literal", "multi-key-8", "absent", "code-definition")
"""One that most models hold, one among others alike, one that shows a bias for yes or no, and one of real code."""
_CURVE_ANSWERS = 8
_CERTIFY_ANSWERS = 60
_SHORTEST_TOKENS = 512
_ROOM_TOKENS = 64
"""For the answer, and a little for templates."""
_ALL = "all"


def quality_step(served_tokens: int, options: ProveOptions) -> Step | str:
    """The step, or the reason why there is none. UsageError for families or lengths that cannot be meant."""
    chosen = options.quality
    families = _families(chosen.families)
    room = served_tokens - _ROOM_TOKENS - chosen.thinking_tokens
    lengths = chosen.lengths or _lengths(room)
    if not lengths:
        return f"a window of {served_tokens} tokens has no room for a question with its answer"
    outside = [length for length in lengths if length > room]
    if outside:
        raise UsageError(
            f"--quality-lengths {max(outside):,} leaves no room for the answer: {room:,} tokens are the most here",
            advice=f"use lengths up to {room:,}",
        )
    if not 0 < chosen.threshold < 1:
        raise UsageError(
            f"--threshold {chosen.threshold:g} is no share", advice="use one between 0 and 1, such as 0.85"
        )
    answers = chosen.answers or (_CERTIFY_ANSWERS if chosen.certify else _CURVE_ANSWERS)
    plan = QualityPlan(
        families=families,
        lengths=lengths,
        answers=answers,
        mode="climb" if chosen.certify else "curve",
        threshold=chosen.threshold,
        rule="retention" if chosen.retention else "absolute",
        thinking_tokens=chosen.thinking_tokens,
        together=chosen.together,
        corpus=chosen.corpus,
        code_corpus=chosen.code_corpus,
        seed=options.seed,
    )
    if chosen.certify:
        plan = _able(plan, chosen.answers is None)
    return step_of("quality", plan)


def _able(plan: QualityPlan, free: bool) -> QualityPlan:
    """The plan with as many answers as it takes to certify anything, where nobody chose a number (`free`). UsageError
    for a chosen one that is too small: where guesses are right by chance, the bar is higher."""
    chances = {name: chance_of(FAMILIES[name], min(plan.lengths)) for name in plan.families}
    needs = {
        name: fewest_to_certify(plan.design(chance).test_at(max(plan.lengths))) for name, chance in chances.items()
    }
    hardest = max(needs, key=lambda name: needs[name])
    if plan.answers >= needs[hardest]:
        return plan
    if free:
        return replace(plan, answers=needs[hardest])
    told = ", ".join(f"{n} for {name}" for name, n in needs.items() if n > plan.answers)
    raise UsageError(
        f"--answers {plan.answers} can certify nothing at {plan.threshold:g}, even if all are right: it takes {told}",
        advice=f"use --answers {needs[hardest]} or more; without --certify fewer draw a curve",
    )


def _families(asked: tuple[str, ...] | None) -> tuple[str, ...]:
    if asked is None:
        return DEFAULT_FAMILIES
    if asked == (_ALL,):
        return tuple(FAMILIES)
    unknown = [name for name in asked if name not in FAMILIES]
    if unknown:
        raise UsageError(
            f"there is no task family {', '.join(unknown)}", advice=f"choose from {', '.join(FAMILIES)}, or {_ALL}"
        )
    return asked


def _lengths(room: int) -> tuple[int, ...]:
    """A short one, the longest, and what lies a factor of four between them: 512, 2,048, 8,128 for a window of 8k."""
    if room < _SHORTEST_TOKENS:
        return (room,) if room > 4 * _ROOM_TOKENS else ()
    lengths = [room]
    while lengths[-1] // 4 >= _SHORTEST_TOKENS:
        lengths.append(lengths[-1] // 4)
    return tuple(reversed(lengths))
