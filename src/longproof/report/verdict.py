"""The numbers that are often taken for one: what is configured, what the KV pool holds, what was measured, and, where
it was asked, how much of that the model uses."""

from __future__ import annotations

from dataclasses import dataclass

from longproof.claim.statements import Claim, Finding, Severity, Standing
from longproof.claim.view import EvidenceView
from longproof.domain.measure import Measured, Unknown
from longproof.report.numbers import percent, plural, sample_size, tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """One of the numbers. `tokens` None = unknown, and `source` then says why. `relation` compares it with the
    configured limit in words, since a difference of two tokens in 8,192 cannot be seen in any drawing."""

    name: str
    role: str
    tokens: int | None
    provenance: str
    source: str
    relation: str

    @property
    def text(self) -> str:
        if self.tokens is None:
            return "not proven" if self.role == "effective" else "unknown"
        return tokens(self.tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """How many of each the claim holds."""

    shown: int
    refuted: int
    undecided: int
    faults: int
    cautions: int
    not_shown: int


def three_numbers(claim: Claim, view: EvidenceView) -> tuple[Mark, ...]:
    """Configured limit, KV capacity and measured boundary, in this order; then effective context where it was asked."""
    deployment = view.header.deployment
    limit, capacity = deployment.configured_limit_tokens, deployment.kv_capacity_tokens
    limit_tokens = limit.value if isinstance(limit, Measured) else None
    return (
        _told("Configured limit", "limit", limit, ""),
        _told("KV capacity", "capacity", capacity, _capacity_relation(capacity, limit_tokens)),
        _boundary(claim, limit_tokens),
        *_effective(claim),
    )


def boundary_tokens(claim: Claim) -> int | None:
    """The largest total that was shown to complete, or None."""
    statement = claim.statement("context")
    if statement is None or statement.standing is not Standing.SHOWN or not isinstance(statement.value, Measured):
        return None
    return round(statement.value.value)


def tally(claim: Claim) -> Tally:
    """Counts for the line below the headline."""
    standings = [statement.standing for statement in claim.statements]
    return Tally(
        shown=standings.count(Standing.SHOWN),
        refuted=standings.count(Standing.REFUTED),
        undecided=standings.count(Standing.NOT_SHOWN),
        faults=sum(finding.severity is Severity.FAULT for finding in claim.findings),
        cautions=sum(finding.severity is Severity.CAUTION for finding in claim.findings),
        not_shown=len(claim.not_shown),
    )


def faults_first(claim: Claim) -> tuple[Finding, ...]:
    """Findings with the faults in front, otherwise in the claim's order."""
    return tuple(sorted(claim.findings, key=lambda finding: finding.severity is not Severity.FAULT))


def _told(name: str, role: str, reading: Measured[int] | Unknown, relation: str) -> Mark:
    if isinstance(reading, Unknown):
        return Mark(name=name, role=role, tokens=None, provenance="unknown", source=reading.reason, relation="")
    return Mark(
        name=name,
        role=role,
        tokens=reading.value,
        provenance=reading.provenance.value,
        source=reading.source,
        relation=relation,
    )


def _capacity_relation(capacity: Measured[int] | Unknown, limit_tokens: int | None) -> str:
    if isinstance(capacity, Unknown) or not limit_tokens:
        return ""
    ratio = capacity.value / limit_tokens
    if capacity.value < limit_tokens:
        return f"holds {percent(ratio)} of one sequence at the limit"
    return f"holds {ratio:,.2f} sequences at the limit" if ratio != 1 else "holds exactly one sequence at the limit"


def _boundary(claim: Claim, limit_tokens: int | None) -> Mark:
    statement = claim.statement("context")
    measured = boundary_tokens(claim)
    if statement is None:
        return _no_boundary("the boundary probe did not run")
    if measured is None:
        return _no_boundary(statement.text)
    source = statement.value.source if isinstance(statement.value, Measured) else ""
    return Mark(
        name="Measured boundary",
        role="measured",
        tokens=measured,
        provenance=f"measured, {sample_size(statement.n)}",
        source=source,
        relation=_boundary_relation(measured, limit_tokens),
    )


def _effective(claim: Claim) -> tuple[Mark, ...]:
    """The longest length that the worst family is proven to keep; what is not proven is no number."""
    said = [item for item in claim.statements if item.metric == "effective_context"]
    if not said:
        return ()
    shown = next((item for item in said if item.standing is Standing.SHOWN), None)
    lost = next((item for item in said if item.standing is Standing.REFUTED), None)
    kept = f"{100 * float(said[0].conditions['threshold']):g} % right"
    proven = shown is not None and isinstance(shown.value, Measured)
    return (
        Mark(
            name="Effective context",
            role="effective",
            tokens=round(shown.value.value) if shown is not None and isinstance(shown.value, Measured) else None,
            provenance="proven" if proven else "not shown",
            source=f"{kept} in every family: {said[0].conditions['families'].replace(',', ', ')}",
            relation=f"lost by {tokens(lost.value.value)} tokens"
            if lost is not None and isinstance(lost.value, Measured)
            else "not lost at any length that was asked",
        ),
    )


def _no_boundary(why: str) -> Mark:
    return Mark(name="Measured boundary", role="measured", tokens=None, provenance="not shown", source=why, relation="")


def _boundary_relation(measured: int, limit_tokens: int | None) -> str:
    if limit_tokens is None:
        return ""
    gap = limit_tokens - measured
    if gap == 0:
        return "equals the configured limit"
    side = "below" if gap > 0 else "above"
    return f"{plural(abs(gap), 'token')} {side} the limit ({percent(abs(gap) / limit_tokens)})"
