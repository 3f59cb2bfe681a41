"""Errors in the server's own words, out of the shapes servers wrap them in.

{"error": {"message", "type", "code", ...}}     OpenAI, vLLM ≥ 0.10, SGLang, llama.cpp (with n_prompt_tokens, n_ctx)
{"error": "words"}                              small servers
{"object": "error", "message", "type", "code"}  older vLLM and SGLang
{"detail": ...}, {"message": ...}               FastAPI and gateways; only believed where the status says error
"""

from __future__ import annotations

import orjson

from longproof.domain.events import ServerError
from longproof.engines.json_fields import JsonObject, as_int, as_object, as_text, decode

KEPT_BODY_BYTES = 8 * 1024
"""So much of an error's body is kept verbatim."""


def error_in(document: JsonObject, *, in_stream: bool, body: bytes) -> ServerError | None:
    """The error that a JSON object is or carries, or None. ``"error": null`` is none."""
    error = document.get("error")
    if not error and document.get("object") == "error":
        error = document
    return _server_error(error, in_stream=in_stream, body=body) if error else None


def error_from_body(body: bytes, *, in_stream: bool = False) -> ServerError:
    """The error that a whole body is, whatever it is made of: for statuses of 400 and above, and for ``event:
    error``."""
    try:
        document = as_object(decode(body))
    except ValueError:
        document = None
    if document is None:
        return ServerError(message=_kept(body).strip(), in_stream=in_stream, body=_kept(body))
    found = error_in(document, in_stream=in_stream, body=body)
    if found is not None:
        return found
    return _server_error(document, in_stream=in_stream, body=body)


def _server_error(error: object, *, in_stream: bool, body: bytes) -> ServerError:
    fields = as_object(error)
    if fields is None:
        message = as_text(error)
        return ServerError(message=_words(error) if message is None else message, in_stream=in_stream, body=_kept(body))
    numbers = {
        as_text(name) or name: number
        for name, value in fields.items()
        if name != "code" and (number := as_int(value)) is not None
    }
    code = fields.get("code")
    return ServerError(
        message=_message(fields),
        type=as_text(fields.get("type")),
        code=None if code is None else _words(code),
        in_stream=in_stream,
        fields=numbers,
        body=_kept(body),
    )


def _message(fields: JsonObject) -> str:
    for name in ("message", "detail", "msg"):
        value = fields.get(name)
        if value:
            return _words(value)
    return _words(fields)


def _words(value: object) -> str:
    text = as_text(value)
    if text is not None:
        return text
    try:
        return orjson.dumps(value).decode()
    except TypeError:  # lone surrogates or numbers beyond 64 bits deep inside
        return repr(value)


def _kept(body: bytes) -> str:
    return body[:KEPT_BODY_BYTES].decode("utf-8", "replace")
