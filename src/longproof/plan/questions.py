"""The three questions about one request, each with its own answer: limit, every stage, now under this load.

`policy.admission.decide` stops at the first "no"; here a later question is asked as well, by the same function on the
same pools, so that a plan can say everything that stands in the way at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from longproof.domain.shapes import RequestShape
from longproof.domain.units import format_tokens
from longproof.domain.verdict import AdmissionVerdict, Admit, Change, Check, Question
from longproof.errors import UsageError
from longproof.policy.admission import AdmissionRule, decide
from longproof.policy.ledger import Ledger, Pool


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningSessions:
    """Load: `count` sessions that hold `tokens` each, now."""

    count: int
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One question's answer. `checks`: at every place it was asked. `binding`: the one with the least to spare, None
    where there was nothing to ask (no limit is set). `change`: the number that would turn a "no" round."""

    question: Question
    fits: bool
    binding: Check | None
    checks: tuple[Check, ...]
    sentence: str
    change: Change | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """The verdict, and an answer to each question in order."""

    verdict: AdmissionVerdict
    answers: tuple[Answer, ...]

    def answer(self, question: Question) -> Answer:
        """The answer to one question."""
        return next(one for one in self.answers if one.question is question)


def judge(
    shape: RequestShape, pools: Sequence[Pool], rule: AdmissionRule, load: Sequence[RunningSessions] = ()
) -> Judgement:
    """All three answers for `shape` beside `load`. Raises UsageError when the load itself does not fit, ValueError when
    no pool is given."""
    ledger = loaded(pools, load)
    verdict = decide(shape, ledger.states(), rule)
    unlimited = verdict
    if not isinstance(verdict, Admit) and verdict.binding.question is Question.LIMIT:
        unlimited = decide(shape, ledger.states(), replace(rule, limit_tokens=None))
    answers = (
        _answer(Question.LIMIT, verdict),
        _answer(Question.CAPACITY, unlimited),
        _answer(Question.LOAD, unlimited),
    )
    return Judgement(verdict=verdict, answers=answers)


def loaded(pools: Sequence[Pool], load: Sequence[RunningSessions]) -> Ledger:
    """A ledger that holds the load. Raises UsageError when it does not fit."""
    ledger = Ledger.of(pools)
    running = 0
    for kind in load:
        for _ in range(kind.count):
            short = ledger.reserve(f"running {running}", {pool.name: kind.tokens for pool in pools})
            if short is not None:
                raise UsageError(
                    f"the load itself does not fit: session {running + 1} of {format_tokens(kind.tokens)} tokens wants"
                    f" {format_tokens(short.wanted_blocks)} of {format_tokens(short.free_blocks)} free at stage"
                    f" {short.pool}",
                    advice="give a load that the server can hold",
                )
            running += 1
    return ledger


def _answer(question: Question, verdict: AdmissionVerdict) -> Answer:
    checks = tuple(check for check in verdict.checks if check.question is question)
    if not checks:
        if question is Question.LIMIT:
            return Answer(question=question, fits=True, binding=None, checks=(), sentence="no limit is set")
        sentence = "it does not fit an idle server, so there is nothing to wait for"
        return Answer(question=question, fits=False, binding=None, checks=(), sentence=sentence)
    failed = [check for check in checks if not check.fits]
    binding = min(failed or checks, key=lambda check: check.margin / max(1, check.available))
    refused = not isinstance(verdict, Admit) and verdict.binding.question is question
    sentence = verdict.reason if not isinstance(verdict, Admit) and refused else _spare(binding)
    return Answer(
        question=question,
        fits=not failed,
        binding=binding,
        checks=checks,
        sentence=sentence,
        change=_placed(verdict.change, binding) if not isinstance(verdict, Admit) and refused else None,
    )


def _placed(change: Change, binding: Check) -> Change:
    """The change with its pool called a stage, as everywhere in a plan."""
    if not binding.where or not change.name.endswith(f" {binding.where}"):
        return change
    return replace(change, name=f"{change.name.removesuffix(binding.where)}stage {binding.where}")


def _spare(check: Check) -> str:
    where = f" at stage {check.where}" if check.where else ""
    return (
        f"{format_tokens(check.needed)} of {format_tokens(check.available)} {check.unit}{where},"
        f" {format_tokens(check.margin)} to spare"
    )
