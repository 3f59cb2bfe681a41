"""The gate: a claim held against requirements.

A requirement passes when the whole one-sided confidence bound lies on its right side, fails when the whole opposite
bound lies on its wrong side, and is undecided otherwise. What was not measured is undecided, never a pass.

      ├────────┤ limit           pass        (required: at most the limit)
             ├───│────┤          undecided
                 │ ├────────┤    fail
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from longproof.claim.bounds import Bounds, bounds_of, repeats_to_decide
from longproof.claim.metric import Kind
from longproof.claim.metrics import METRICS
from longproof.claim.reach import decide_reach
from longproof.claim.requirement import Requirement, check_confidence, parse_requirement
from longproof.claim.statements import Claim, Severity, Standing, Statement
from longproof.claim.wording import amount, at_length, length_list, limit_words
from longproof.domain.measure import Unknown
from longproof.domain.verdict import Fail, Pass, Undecided, Verdict
from longproof.errors import EXIT_GATE_FAILED, EXIT_OK, EXIT_UNDECIDED


@dataclass(frozen=True, slots=True, kw_only=True)
class GateReport:
    """One verdict per requirement, in their order. `warnings` are what nobody required and a reader must see all the
    same: faults, and a run that did not end. `confidence` held where a requirement named none."""

    verdicts: tuple[Verdict, ...]
    warnings: tuple[str, ...]
    confidence: float

    @property
    def exit_code(self) -> int:
        """0 all pass, 1 any fails, 3 none fails and any is undecided."""
        if any(isinstance(verdict, Fail) for verdict in self.verdicts):
            return EXIT_GATE_FAILED
        return EXIT_UNDECIDED if any(isinstance(verdict, Undecided) for verdict in self.verdicts) else EXIT_OK


def gate(claim: Claim, requirements: Sequence[str], confidence: float = 0.95) -> GateReport:
    """Decides requirements (grammar in `claim.requirement`) from a claim. UsageError for one that cannot be meant."""
    check_confidence(confidence, "the gate")
    asked = [parse_requirement(text) for text in requirements]
    return GateReport(
        verdicts=tuple(decide(claim, requirement, confidence) for requirement in asked),
        warnings=tuple(_warnings(claim, asked)),
        confidence=confidence,
    )


def decide(claim: Claim, requirement: Requirement, confidence: float = 0.95) -> Verdict:
    """The verdict on one requirement. Without a length, or conditions, it must hold at every measured length and under
    all that was measured; the worst verdict counts."""
    metric = requirement.metric
    if metric.kind is Kind.REACH:
        return decide_reach(claim, requirement)
    spoken = [item for item in claim.statements if item.metric == metric.id and not _of_another_thing(item)]
    elsewhere = spoken
    spoken = [item for item in spoken if requirement.meant(item.conditions)]
    if elsewhere and not spoken:
        return Undecided(requirement=requirement.text, sentence=_not_under(requirement, elsewhere))
    lengths = sorted({item.at_tokens for item in spoken if item.at_tokens is not None})
    if requirement.length_tokens is not None:
        spoken = [item for item in spoken if item.at_tokens == requirement.length_tokens]
    if not spoken:
        return Undecided(requirement=requirement.text, sentence=_not_measured(requirement, lengths))
    verdicts = [_decide_one(item, requirement, requirement.confidence or confidence) for item in spoken]
    return min(verdicts, key=lambda verdict: _ORDER[type(verdict)])


_CELL = ("concurrency", "cache", "turn")
_ORDER: dict[type[Verdict], int] = {Fail: 0, Undecided: 1, Pass: 2}


def _of_another_thing(statement: Statement) -> bool:
    return METRICS[statement.metric].cold and statement.conditions.get("cache") == "warm"


def _decide_one(statement: Statement, requirement: Requirement, confidence: float) -> Verdict:
    found = bounds_of(statement, requirement.stat, confidence)
    ids = (statement.id,)
    if isinstance(found, Unknown) or statement.standing is Standing.NOT_SHOWN:
        why = found.reason if isinstance(found, Unknown) else statement.text
        sentence = f"{requirement.metric.id}{at_length(statement)} was not shown: {why}"
        return Undecided(requirement=requirement.text, sentence=sentence, statements=ids)
    op, limit = requirement.op, requirement.limit
    near, far = (found.high, found.low) if op.wants_low else (found.low, found.high)
    if not isinstance(near, Unknown) and op.holds(near, limit):
        side = "at most" if op.wants_low else "at least"
        sentence = _sentence(statement, requirement, found, f"{side} {_amount(near, requirement)}", confidence)
        return Pass(requirement=requirement.text, sentence=sentence, statements=ids)
    if not isinstance(far, Unknown) and not op.holds(far, limit):
        side = "at least" if op.wants_low else "at most"
        sentence = _sentence(statement, requirement, found, f"{side} {_amount(far, requirement)}", confidence)
        return Fail(requirement=requirement.text, sentence=sentence, statements=ids)
    return _undecided(statement, requirement, found, near, confidence)


def _sentence(statement: Statement, requirement: Requirement, found: Bounds, bound: str, confidence: float) -> str:
    """``ttft p95 at 4,096 tokens is at most 4.31 s with 0.95 confidence (n = 59); required: <= 5 s``"""
    if found.inferred:
        said = f"{bound} with {confidence:.4g} confidence (n = {statement.n})"
    else:
        said = _amount(found.estimate, requirement) + (f" (n = {statement.n})" if found.what else "")
    return f"{_subject(statement, requirement, found)} is {said}; required: {limit_words(requirement)}"


def _subject(statement: Statement, requirement: Requirement, found: Bounds) -> str:
    what = f" {found.what}" if found.what else ""
    return f"{requirement.metric.id}{what}{at_length(statement)}{_cell(statement)}"


def _cell(statement: Statement) -> str:
    """`` with concurrency 4, cache cold``: what tells statements of one metric and length apart, where several can
    be."""
    if "concurrency" not in statement.conditions:
        return ""
    named = [f"{name} {statement.conditions[name]}" for name in _CELL if name in statement.conditions]
    return f" with {', '.join(named)}"


def _amount(value: float, requirement: Requirement) -> str:
    return amount(value, requirement.metric.unit)


def _undecided(
    statement: Statement, requirement: Requirement, found: Bounds, near: float | Unknown, confidence: float
) -> Undecided:
    repeats = repeats_to_decide(statement, requirement.stat, requirement.op, requirement.limit, confidence, found)
    bound = f"none ({near.reason})" if isinstance(near, Unknown) else _amount(near, requirement)
    more = "more repeats alone may not decide" if repeats is None else f"about {repeats:,} repeats would decide"
    return Undecided(
        requirement=requirement.text,
        sentence=(
            f"{_subject(statement, requirement, found)} was {_amount(found.estimate, requirement)} (n = {statement.n});"
            f" its bound with {confidence:.4g} confidence: {bound}; required: {limit_words(requirement)}; {more}"
        ),
        statements=(statement.id,),
        repeats_needed=repeats,
    )


def _not_under(requirement: Requirement, elsewhere: Sequence[Statement]) -> str:
    asked = ", ".join(f"{name}={value}" for name, value in requirement.conditions)
    seen = [
        f"{name}={'|'.join(sorted({item.conditions[name] for item in elsewhere if name in item.conditions}))}"
        for name, _ in requirement.conditions
        if any(name in item.conditions for item in elsewhere)
    ]
    measured = f"; measured were {', '.join(seen)}" if seen else ""
    return f"{requirement.metric.id} was not measured under {asked}{measured}"


def _not_measured(requirement: Requirement, lengths: list[int]) -> str:
    metric = requirement.metric
    if requirement.length_tokens is None or not lengths:
        return f"{metric.id} was not measured"
    return f"{metric.id} was not measured at {requirement.length_tokens:,} tokens; measured were {length_list(lengths)}"


def _warnings(claim: Claim, asked: Sequence[Requirement]) -> list[str]:
    said: list[str] = []
    if all(requirement.metric.id != "faults" for requirement in asked):
        said += [f"fault {item.id}: {item.text}" for item in claim.findings if item.severity is Severity.FAULT]
    if not claim.complete:
        said.append("the run did not end: what it had not measured yet is undecided")
    return said
