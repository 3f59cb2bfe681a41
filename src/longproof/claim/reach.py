"""Deciding requirements about a length that was reached, from what was shown and what was refuted."""

from __future__ import annotations

from longproof.claim.requirement import Requirement
from longproof.claim.statements import Claim, Standing, Statement
from longproof.domain.measure import Unknown
from longproof.domain.units import format_tokens
from longproof.domain.verdict import Fail, Pass, Undecided, Verdict


def decide_reach(claim: Claim, requirement: Requirement) -> Verdict:
    """Fails at or above the smallest length that was refuted, passes up to the largest that was shown, else
    undecided."""
    refuted = _refuted(claim, requirement)
    shown = _shown(claim, requirement)
    text, wanted = requirement.text, f"required: {requirement.op} {format_tokens(requirement.limit)} tokens"
    subject = requirement.metric.id
    if refuted is not None and requirement.limit >= refuted[0]:
        tokens, statement = refuted
        sentence = f"{subject}: {format_tokens(tokens)} tokens never completed (n = {statement.n}); {wanted}"
        return Fail(requirement=text, sentence=sentence, statements=(statement.id,))
    if shown is not None and requirement.op.holds(shown[0], requirement.limit):
        tokens, statement = shown
        sentence = f"{subject}: {format_tokens(tokens)} tokens completed every time (n = {statement.n}); {wanted}"
        return Pass(requirement=text, sentence=sentence, statements=(statement.id,))
    if shown is None and refuted is None:
        return Undecided(requirement=text, sentence=f"{subject} was not measured; {wanted}")
    known = [f"{format_tokens(shown[0])} tokens were shown"] if shown else []
    known += [f"{format_tokens(refuted[0])} refuted"] if refuted else []
    return Undecided(
        requirement=text,
        sentence=f"{subject}: {', '.join(known)}, and nothing between was tried; {wanted}",
        statements=tuple(item[1].id for item in (shown, refuted) if item is not None),
    )


def _shown(claim: Claim, requirement: Requirement) -> tuple[float, Statement] | None:
    found = [
        (item.value.value, item)
        for item in claim.statements
        if item.metric == requirement.metric.id
        and item.standing is Standing.SHOWN
        and not isinstance(item.value, Unknown)
    ]
    return max(found, key=lambda pair: pair[0], default=None)


def _refuted(claim: Claim, requirement: Requirement) -> tuple[float, Statement] | None:
    """The smallest refuted length. A refuted total refutes the prompt that leaves room for its output, too."""
    found: list[tuple[float, Statement]] = []
    for item in claim.statements:
        if item.standing is not Standing.REFUTED or isinstance(item.value, Unknown):
            continue
        if item.metric == requirement.metric.id:
            found.append((item.value.value, item))
        elif item.metric == "context" and requirement.metric.id == "prompt_max":
            output = item.conditions.get("output_tokens")
            if output is not None:
                found.append((item.value.value - int(output), item))
    return min(found, key=lambda pair: pair[0], default=None)
