"""What travels with an answer: the controller's refusals, engines' headers, engines' troubles inside a stream."""

from __future__ import annotations

import orjson

from longproof.engines.json_fields import as_object
from longproof.gateway.errors import Problem
from longproof.policy.actions import Dispatch, Refusal

REPLICA = "X-Longproof-Replica"
WARNING = "X-Longproof-Warning"
_EMPTY = (b'"content":""', b'"content":null', b'"content": ""', b'"content": null')
_ERROR_STARTS = (b'data: {"error"', b'data:{"error"', b"event: error")


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


def busy_in_stream(first: bytes) -> int | None:
    """429 or 503 where a stream begins with that refusal (vLLM 0.32 refuses streams inside a 200); else None."""
    error = error_at_first(first)
    try:
        found = as_object(orjson.loads(error or b"null")) or {}
    except orjson.JSONDecodeError:
        return None
    code = (as_object(found.get("error")) or {}).get("code")
    return code if isinstance(code, int) and code in (429, 503) else None


def error_at_first(first: bytes) -> bytes | None:
    """The error's JSON where a stream begins with one; else None."""
    if not first.lstrip().startswith(_ERROR_STARTS):
        return None
    start = first.find(b"{")
    end = first.find(b"\n", start)
    return first[start : end if end > 0 else None]


def is_error_event(data: bytes) -> bool:
    """Whether an engine reports in the middle of a stream that it failed."""
    if b"error" not in data:  # asked of every chunk
        return False
    return any(data.startswith(start) or b"\n\n" + start in data for start in _ERROR_STARTS)


def role_events(data: bytes) -> int:
    """Events that only say whose turn it is, which engines send before the prefill: they carry no token."""
    roles = data.count(b'"role"')
    return min(roles, sum(data.count(empty) for empty in _EMPTY)) if roles else 0
