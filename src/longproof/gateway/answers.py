"""An engine's answer in one piece, as far as the gateway holds it, and its errors in OpenAI's form.

Engines and proxies before them also send errors with status 200: as the first event of a stream (vLLM 0.32), or as the
whole body. `misplaced_error` finds those, and the status they should have had.
"""

from __future__ import annotations

import orjson

from longproof.engines.json_fields import as_int, as_object, as_text
from longproof.engines.server_error import error_from_body
from longproof.gateway.engine_connection import Answer, Lost
from longproof.gateway.errors import Problem

MOST_ANSWER_BYTES = 256 << 20
"""Of an answer that is no stream: 128 choices of 8,192 tokens with 20 log probabilities each are less."""
_MOST_ERROR_BYTES = 1 << 20
_MOST_WORDS = 2_000
_ERROR_WITHIN_BYTES = 64
_BAD_ANSWER = 502


class AnswerTooLarge(Lost):
    """An engine's answer is longer than the gateway will hold; the rest of it was not read."""

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(f"its answer is longer than {limit_bytes:,} bytes")


async def whole_body(answer: Answer, limit_bytes: int = MOST_ANSWER_BYTES) -> bytes:
    """All of a body. Lost; AnswerTooLarge, which leaves the answer to be dropped."""
    announced = answer.headers.get("content-length", "")
    if announced.isdecimal() and int(announced[:20]) > limit_bytes:
        raise AnswerTooLarge(limit_bytes)
    body = await answer.read(limit_bytes + 1)
    if len(body) > limit_bytes:
        raise AnswerTooLarge(limit_bytes)
    return body


async def error_body(answer: Answer) -> bytes:
    """An error's body, as far as anybody will read it."""
    body = b""
    try:
        while len(body) < _MOST_ERROR_BYTES and (part := await answer.read_some()):
            body += part
    except Lost:
        pass  # what came of it will do
    return body[:_MOST_ERROR_BYTES]


def in_words(status: int, body: bytes) -> str:
    """An engine's error, for people."""
    return f"it answered {status}: {error_from_body(body).message or 'no reason was given'}"


def engine_problem(status: int, body: bytes) -> Problem | None:
    """An engine's error as one of ours; None where it is in OpenAI's form already and can go on as it is."""
    try:
        found = as_object(orjson.loads(body))
    except orjson.JSONDecodeError:
        found = None
    if found is not None and (as_object(found.get("error")) is not None or as_text(found.get("error"))):
        return None
    said = None if found is None else as_text(found.get("message")) or as_text(found.get("detail"))
    words = said or body.decode("utf-8", "replace").strip()
    return Problem(status=status, code="upstream_error", message=words[:_MOST_WORDS] or "no reason was given")


def misplaced_error(body: bytes) -> int | None:
    """The status that an answer should have had which came with 200 and is an error; None where it is none. What the
    error calls its code, where that is a status of errors, else 502."""
    if b'"error"' not in body[:_ERROR_WITHIN_BYTES]:
        return None
    try:
        found = as_object(orjson.loads(body)) or {}
    except orjson.JSONDecodeError:
        return None
    error = found.get("error")
    if not error or "choices" in found or "output" in found:
        return None
    code = as_int((as_object(error) or {}).get("code"))
    return code if code is not None and 400 <= code < 600 else _BAD_ANSWER


def is_document(answer: Answer) -> bool:
    """Whether what comes can only be read as a whole, by what its header says: no stream of events."""
    kind = answer.headers.get("content-type", "").lower()
    return "json" in kind.partition(";")[0] or "html" in kind
