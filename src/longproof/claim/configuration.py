"""A claim is about one configuration, and refuses to be held against another."""

from __future__ import annotations

from longproof.claim.statements import Claim
from longproof.domain.deployment import Deployment
from longproof.errors import ConfigurationMismatch
from longproof.evidence.fingerprint import differences, fingerprint
from longproof.evidence.records import Fingerprint

_NAMED = 6


def require_same_configuration(claim: Claim, deployment: Deployment) -> None:
    """ConfigurationMismatch naming every field in which a running deployment differs from the one that was proved."""
    claimed = Fingerprint(facts=claim.facts, digest=claim.fingerprint_digest)
    fields = differences(claimed, fingerprint(deployment))
    if not fields:
        return
    named = "; ".join(f"{field} was {was}, is {now}" for field, was, now in fields[:_NAMED])
    more = f"; and {len(fields) - _NAMED} more" if len(fields) > _NAMED else ""
    raise ConfigurationMismatch(
        f"the claim is about another configuration: {named}{more}",
        advice="prove this deployment, or start it with the configuration that was proved",
        fields=fields,
    )
