"""The first half of a request to a prefill/decode pair.

    the request's body ─▶ prefill side: one token, not streamed, keep the blocks
                              └─ kv_transfer_params ─▶ the decode side's body: the request as it is, and these

What the two sides are told is `engines.pd_handover`'s. A name that a body has twice counts as its last, so the client's
own values for these never reach an engine: parameters of a transfer name a host and a request whose KV is read.
"""

from __future__ import annotations

from dataclasses import dataclass

import orjson
from yarl import URL

from longproof.engines.json_fields import JsonObject, as_object
from longproof.engines.pd_handover import (
    BOOTSTRAP_ERROR,
    DECODE_ERROR,
    NOTHING_HANDED_ON,
    PARAMS,
    PREFILL_ERROR,
    TRANSFER,
    cached_tokens,
)
from longproof.engines.server_error import error_from_body
from longproof.gateway.answers import whole_body
from longproof.gateway.errors import Problem
from longproof.gateway.upstream import Lost, Refused, Upstream, retry_after_ns

_BUSY = (429, 503)
_ONE_TOKEN: JsonObject = {
    "max_tokens": 1,
    "max_completion_tokens": 1,
    "min_tokens": 0,
    "n": 1,
    "stream": False,
    "stream_options": None,
    PARAMS: TRANSFER,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class HandedOver:
    """What the decode side is sent. `cached_tokens`: of the prompt, what the prefill side had in its cache; the decode
    side calls everything cached that it was handed."""

    body: bytes
    cached_tokens: int | None


class SideFailed(Exception):  # noqa: N818 - named for what happened
    """The prefill side would not, or handed nothing on; `problem` is what the client is told."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


async def hand_over(upstream: Upstream, url: URL, headers: dict[str, str], body: bytes) -> HandedOver:
    """Has the prompt computed. Cancelled, it breaks off at once. Unreached, Lost, Refused, and SideFailed."""
    response = await upstream.send(url, headers, with_fields(body, _ONE_TOKEN))
    try:
        answer = await whole_body(response)
    except Lost as problem:
        raise Lost(f"prefill side: {problem}") from problem
    finally:
        response.drop()  # one that is whole has given its connection back already
    if response.status in _BUSY:
        raise Refused(response.status, retry_after_ns(response.headers.get("retry-after")))
    if response.status != 200:
        raise SideFailed(side_problem("prefill", response.status, answer))
    fields = _object(answer)
    params = as_object(fields.get(PARAMS))
    if not params:
        raise SideFailed(Problem(status=502, code=BOOTSTRAP_ERROR, message=NOTHING_HANDED_ON))
    return HandedOver(body=with_fields(body, {PARAMS: params}), cached_tokens=cached_tokens(fields))


def side_problem(side: str, status: int, body: bytes) -> Problem:
    """A side's own error in the pair's words: whose it is, what it says, its code where it has one."""
    error = error_from_body(body)
    own = PREFILL_ERROR if side == "prefill" else DECODE_ERROR
    if status in (401, 403) or not 400 <= status < 600:
        return Problem(
            status=502, code="replica_refuses_gateway", message=f"{side} side: answered the gateway with {status}"
        )
    code = own if status >= 500 else error.code or error.type or own
    return Problem(status=status, code=code, message=f"{side} side: {error.message}")


def with_fields(body: bytes, fields: JsonObject) -> bytes:
    """A JSON object with more fields at its end, where they overrule those of the same name."""
    return body.rstrip()[:-1] + b"," + orjson.dumps(fields)[1:]


def _object(body: bytes) -> JsonObject:
    try:
        return as_object(orjson.loads(body)) or {}
    except orjson.JSONDecodeError:
        return {}
