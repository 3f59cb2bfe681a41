"""What is proven of a model, and what becomes of a request that goes beyond it.

    input + output ≤ admitted      no → beyond what was shown to be admitted and completed
    input          ≤ effective     no → beyond what was shown to be answered well

`on_excess` says what follows: the request is refused, or served with a header that says so, or sent to the pool it is
proven for. A claim that has a problem (expired, of another configuration) binds as before and says so in every answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from longproof.domain.units import format_tokens


class OnExcess(StrEnum):
    """What happens to a request beyond the proven limits."""

    REJECT = "reject"
    WARN = "warn"
    """Served, with a header that says what is not proven."""
    ROUTE = "route"
    """Served by the proven pool alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvenLimits:
    """What a claim says about one model.

    `admitted_tokens`: the longest input + output that was shown to be admitted and completed. `effective_tokens`: the
    longest input up to which quality was shown. None = the claim says nothing about it, and nothing is enforced.
    `problem`: why the claim cannot be relied on (expired, made of another configuration); the limits are applied all
    the same, and every answer says so. `pool`: where OnExcess.ROUTE sends what exceeds them; without one it rejects.
    """

    model: str
    claim: str = ""
    admitted_tokens: int | None = None
    effective_tokens: int | None = None
    on_excess: OnExcess = OnExcess.REJECT
    pool: str | None = None
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Excess:
    """Which proven limit a request goes beyond."""

    code: str
    reason: str
    limit: int
    actual: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GateAnswer:
    """What the claim makes of a request. `refused`: not served, and why. `pool`: served there alone. `warnings`: what
    the answer has to say."""

    refused: Excess | None = None
    pool: str | None = None
    warnings: tuple[str, ...] = ()


_OPEN = GateAnswer()


def judge(limits: ProvenLimits | None, input_tokens: int, output_tokens: int) -> GateAnswer:
    """The gate's answer for one request; with no claim, everything passes."""
    if limits is None:
        return _OPEN
    warnings = () if limits.problem is None else (f"claim-problem: {limits.problem}",)
    excess = _excess(limits, input_tokens, output_tokens)
    if excess is None:
        return GateAnswer(warnings=warnings) if warnings else _OPEN
    if limits.on_excess is OnExcess.WARN:
        return GateAnswer(warnings=(*warnings, f"not-proven: {excess.reason}"))
    if limits.on_excess is OnExcess.ROUTE and limits.pool is not None:
        return GateAnswer(pool=limits.pool, warnings=warnings)
    return GateAnswer(refused=excess, warnings=warnings)


def _excess(limits: ProvenLimits, input_tokens: int, output_tokens: int) -> Excess | None:
    total = input_tokens + output_tokens
    if limits.admitted_tokens is not None and total > limits.admitted_tokens:
        return Excess(
            code="beyond_proven_length",
            reason=f"{format_tokens(input_tokens)} input and {format_tokens(output_tokens)} output tokens"
            f" ({format_tokens(total)} in all) exceed the {format_tokens(limits.admitted_tokens)} tokens that"
            f" {limits.model} was shown to admit and complete",
            limit=limits.admitted_tokens,
            actual=total,
        )
    if limits.effective_tokens is not None and input_tokens > limits.effective_tokens:
        return Excess(
            code="beyond_effective_context",
            reason=f"{format_tokens(input_tokens)} input tokens exceed the {format_tokens(limits.effective_tokens)} up"
            f" to which {limits.model} was shown to answer well",
            limit=limits.effective_tokens,
            actual=input_tokens,
        )
    return None
