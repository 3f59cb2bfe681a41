"""Evidence as the limits that the gateway enforces: claim → `ProvenLimits`, held against what really runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path

from longproof.claim.derive import claim_of, load_view
from longproof.claim.statements import Claim, Standing
from longproof.domain.deployment import Deployment
from longproof.domain.measure import Measured
from longproof.errors import UsageError
from longproof.evidence.fingerprint import differences, fingerprint
from longproof.evidence.records import Fingerprint
from longproof.gateway.config import ClaimSection
from longproof.policy.claim_gate import ProvenLimits

_NAMED = 3


def proven_limits(
    sections: Sequence[ClaimSection],
    directory: Path,
    running: Mapping[str, Sequence[Deployment]],
    today: date,
) -> dict[str, ProvenLimits]:
    """Limits by model. `running`: the deployments of each served model. EvidenceError for evidence that cannot be
    trusted; UsageError for a claim that shows no length, or is about no served model."""
    found: dict[str, ProvenLimits] = {}
    for section in sections:
        path = directory / section.path
        view = load_view(path)
        claim = claim_of(view)
        model = section.model or claim.facts.get("model", "")
        if model not in running:
            raise UsageError(
                f"the claim in {path} is about '{model}', which is not served here; served are: {', '.join(running)}",
                advice='name the served model: [[claim]] model = "…"',
            )
        admitted, effective = _shown(claim, "context"), _shown(claim, "effective_context")
        if admitted is None and effective is None:
            raise UsageError(
                f"the claim in {path} shows neither a length that was served nor an effective context",
                advice="prove one first: longproof prove URL",
            )
        found[model] = ProvenLimits(
            model=model,
            claim=path.name,
            admitted_tokens=admitted,
            effective_tokens=effective,
            on_excess=section.on_excess,
            pool=section.pool,
            problem=_problem(section, view.header.fingerprint, running[model], today),
        )
    return found


def _shown(claim: Claim, metric: str) -> int | None:
    """The number of a reach that was shown; the smallest, where several conditions were."""
    values = [
        int(statement.value.value)
        for statement in claim.statements
        if statement.metric == metric and statement.standing is Standing.SHOWN and isinstance(statement.value, Measured)
    ]
    return min(values, default=None)


def _problem(section: ClaimSection, claimed: Fingerprint, deployments: Sequence[Deployment], today: date) -> str | None:
    """Why it cannot be relied on as it stands; None = it can. A fact that only one side knows is no contradiction."""
    if section.expires is not None and today > section.expires:
        return f"the claim expired on {section.expires.isoformat()}"
    known = claimed.facts
    for deployment in deployments:
        actual = fingerprint(deployment)
        other = [
            f"{name} is {now}, claimed {was}"
            for name, was, now in differences(claimed, actual)
            if name in known and name in actual.facts and not name.startswith("other.")
        ]
        if other:
            more = f" and {len(other) - _NAMED} more" if len(other) > _NAMED else ""
            return f"the claim is about another configuration: {'; '.join(other[:_NAMED])}{more}"
    return None
