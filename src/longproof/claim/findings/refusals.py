"""How a server that is full says so: with a time to come again, or without; by status, or inside a stream."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from longproof.claim.busy_phases import Asked
from longproof.claim.findings.words import quote
from longproof.claim.statements import Finding, Severity
from longproof.domain.outcome import Outcome, classify

_NAMED = 20
"""So many records a finding names as its evidence; their number is in its text."""


def retry_after_missing(asked: Sequence[Asked], finding_id: str) -> Iterator[Finding]:
    """429 or 503 without Retry-After: well-behaved clients then come back at once (RFC 9110, 10.2.3)."""
    refused = [item for item in asked if item.timeline.status in (429, 503)]
    silent = [item for item in refused if not item.timeline.headers.get("retry-after")]
    if silent:
        first = silent[0].timeline
        yield Finding(
            id=finding_id,
            severity=Severity.CAUTION,
            text=(
                f"{len(silent)} of {len(refused)} refusals for load (HTTP {first.status}) did not say when to come"
                f" again: no Retry-After{quote(first)}."
            ),
            evidence=tuple(item.key for item in silent[:_NAMED]),
            details={"refused": str(len(refused)), "without": str(len(silent))},
        )


def error_after_200(asked: Sequence[Asked], finding_id: str) -> Iterator[Finding]:
    """HTTP 200, then an error inside the stream: a client that looks at the status takes it for success."""
    broken = [item for item in asked if classify(item.timeline) is Outcome.ERROR_IN_STREAM]
    if broken:
        at_door = sum(item.timeline.first_token_ns is None for item in broken)
        yield Finding(
            id=finding_id,
            severity=Severity.FAULT,
            text=(
                f"{len(broken)} requests under load were answered with HTTP 200 and then an error inside the stream,"
                f" {at_door} of them before any token: a refusal that looks like success"
                f"{quote(broken[0].timeline)}."
            ),
            evidence=tuple(item.key for item in broken[:_NAMED]),
            details={"requests": str(len(broken)), "before_any_token": str(at_door)},
        )
