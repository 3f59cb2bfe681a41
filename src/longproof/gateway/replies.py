"""What travels with an answer: the controller's refusals, engines' headers, engines' troubles inside a stream."""

from __future__ import annotations

import orjson

from longproof.engines.json_fields import as_object
from longproof.gateway.errors import Problem
from longproof.policy.actions import Dispatch, Refusal

REPLICA = "X-Longproof-Replica"
WARNING = "X-Longproof-Warning"
_FINISHES = (b'"finish_reason":"', b'"finish_reason": "')
_EMPTY = tuple(
    name + space + nothing
    for name, nothings in ((b'"content":', (b'""', b"null")), (b'"text":', (b'""',)), (b'"delta":', (b"{}",)))
    for nothing in nothings
    for space in (b"", b" ")
)
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
    if data.rfind(b"error") < 0:  # asked of every chunk; a third of the time of `in`
        return False
    return any(data.startswith(start) or b"\n\n" + start in data for start in _ERROR_STARTS)


def tokenless_events(data: bytes, *, begun: bool) -> int:
    """Events that carry no token: those that only say whose turn it is, which engines send before the prefill (not
    looked for once a token has `begun` the answer), and those that only say why it ended."""
    said = sum(data.count(reason) for reason in _FINISHES)
    if not begun:
        said += data.count(b'"role"')
    return min(said, sum(data.count(empty) for empty in _EMPTY)) if said else 0
