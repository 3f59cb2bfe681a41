"""Deciding requirements about a length that was reached, from what was shown and what was refuted."""

from __future__ import annotations

import math

from longproof.claim.requirement import Op, Requirement
from longproof.claim.statements import Claim, Standing, Statement
from longproof.domain.measure import Unknown
from longproof.domain.units import format_tokens
from longproof.domain.verdict import Fail, Pass, Undecided, Verdict


def decide_reach(claim: Claim, requirement: Requirement) -> Verdict:
    """Fails from the smallest length that was refuted, passes up to the largest that was shown, undecided between."""
    wanted = _least_tokens(requirement)
    refuted, shown = _refuted(claim, requirement), _shown(claim, requirement)
    text, subject = requirement.text, requirement.metric.id
    required = f"required: {requirement.op} {format_tokens(requirement.limit)} tokens"
    if refuted is not None and wanted >= refuted[0]:
        tokens, statement = refuted
        sentence = f"{subject}: {format_tokens(tokens)} tokens {_words(statement, shown=False)}; {required}"
        return Fail(requirement=text, sentence=sentence, statements=(statement.id,))
    if shown is not None and wanted <= shown[0]:
        tokens, statement = shown
        sentence = f"{subject}: {format_tokens(tokens)} tokens {_words(statement, shown=True)}; {required}"
        return Pass(requirement=text, sentence=sentence, statements=(statement.id,))
    if shown is None and refuted is None:
        return Undecided(requirement=text, sentence=f"{subject} was not measured; {required}")
    known = [f"{format_tokens(shown[0])} tokens were shown"] if shown else ["no length was shown"]
    known += [f"{format_tokens(refuted[0])} refuted"] if refuted else ["none above it was refuted"]
    return Undecided(
        requirement=text,
        sentence=f"{subject}: {', '.join(known)}, and {format_tokens(wanted)} is neither; {required}",
        statements=tuple(item[1].id for item in (shown, refuted) if item is not None),
    )


def _words(statement: Statement, *, shown: bool) -> str:
    if "threshold" in statement.conditions:
        return f"{'keep' if shown else 'lose'} {statement.conditions['threshold']} right"
    return f"{'completed every time' if shown else 'never completed'} (n = {statement.n})"


def _meant(statement: Statement, requirement: Requirement, *, shown: bool) -> bool:
    """Whether a statement answers this requirement. Behind a quality metric, ``@ 0.85`` is the share of right answers:
    what keeps 0.9 keeps 0.85 as well, and what lost 0.8 has lost it."""
    if not requirement.meant(statement.conditions):
        return False
    threshold = statement.conditions.get("threshold")
    if threshold is None or requirement.confidence is None:
        return True
    return float(threshold) >= requirement.confidence if shown else float(threshold) <= requirement.confidence


def _least_tokens(requirement: Requirement) -> int:
    """The smallest whole number of tokens that would do: lengths have no fractions."""
    limit = requirement.limit
    return math.floor(limit) + 1 if requirement.op is Op.ABOVE else math.ceil(limit)


def _shown(claim: Claim, requirement: Requirement) -> tuple[float, Statement] | None:
    found = [
        (item.value.value, item)
        for item in claim.statements
        if item.metric == requirement.metric.id
        and item.standing is Standing.SHOWN
        and not isinstance(item.value, Unknown)
        and _meant(item, requirement, shown=True)
    ]
    return max(found, key=lambda pair: pair[0], default=None)


def _refuted(claim: Claim, requirement: Requirement) -> tuple[float, Statement] | None:
    """The smallest refuted length. A refuted total refutes the prompt that leaves room for its output, too."""
    found: list[tuple[float, Statement]] = []
    for item in claim.statements:
        if item.standing is not Standing.REFUTED or isinstance(item.value, Unknown):
            continue
        if item.metric == requirement.metric.id and _meant(item, requirement, shown=False):
            found.append((item.value.value, item))
        elif item.metric == "context" and requirement.metric.id == "prompt_max":
            output = item.conditions.get("output_tokens")
            if output is not None:
                found.append((item.value.value - int(output), item))
    return min(found, key=lambda pair: pair[0], default=None)
