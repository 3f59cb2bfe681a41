"""What travels with an answer: refusals and failures, and what is told of where a request went."""

from __future__ import annotations

from longproof.clock import NS_PER_S
from longproof.engines.server_error import error_from_body
from longproof.gateway.errors import Problem
from longproof.gateway.fleet import Replica
from longproof.gateway.ports import MeterUnavailable
from longproof.policy.actions import Dispatch, Refusal

REPLICA = "X-Longproof-Replica"
WARNING = "X-Longproof-Warning"


def problem_of(refusal: Refusal) -> Problem:
    """A refusal by the controller."""
    return Problem(
        status=refusal.status,
        code=refusal.code,
        message=refusal.reason,
        limit=refusal.limit,
        actual=refusal.actual,
        unit=refusal.unit,
        retry_after_ns=refusal.retry_after_ns,
    )


def dispatch_headers(dispatch: Dispatch) -> dict[str, str]:
    """What the client is told of where it went, and of what is not proven about it."""
    headers = {REPLICA: dispatch.replica}
    if dispatch.warnings:
        headers[WARNING] = "; ".join(dispatch.warnings).encode("ascii", "replace").decode()
    return headers


def lost(replica: Replica, why: str) -> Problem:
    """Its connection broke."""
    message = f"the connection to replica {replica.name} was lost before the answer was complete: {why}"
    return Problem(status=502, code="replica_lost", message=message)


def silent(replica: Replica, silence_s: float) -> Problem:
    """It was given up."""
    message = f"replica {replica.name} sent nothing for {silence_s:g} s"
    return Problem(status=504, code="replica_silent", message=message)


def in_its_words(status: int, body: bytes) -> Problem:
    """An engine's error, where its own form cannot go on as it is."""
    error = error_from_body(body)
    return Problem(status=status, code=error.code or error.type or "upstream_error", message=error.message[:2_000])


def unusable(replica: Replica, status: int) -> Problem:
    """It does not take the gateway's requests; its own words are not the client's business."""
    message = f"replica {replica.name} answered the gateway with status {status}"
    return Problem(status=502, code="replica_refuses_gateway", message=message)


def unmetered(problem: MeterUnavailable) -> Problem:
    """Nothing can be written down."""
    message = f"nothing is served while usage cannot be written down: {problem}"
    return Problem(status=503, code="meter_unavailable", message=message, retry_after_ns=5 * NS_PER_S)


def unreadable(replica: Replica, answered: str, *, streamed: bool) -> Problem:
    """What it answered with status 200 is nothing that was asked for."""
    wanted = "a stream" if streamed else "a JSON object"
    message = f"replica {replica.name} was asked for {wanted} and answered {answered}"
    return Problem(status=502, code="replica_unreadable", message=message)
