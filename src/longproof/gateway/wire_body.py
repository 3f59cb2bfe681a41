"""The body that goes to the engine: the client's own bytes, with what the gateway needs added."""

from __future__ import annotations

from typing import cast

import orjson

from longproof.gateway.ask import Ask, Json
from longproof.gateway.responses import private

_ALLOWANCES = ("max_completion_tokens", "n_predict")
_USAGE = b',"stream_options":{"include_usage":true}}'


def engine_body(ask: Ask, *, usage_in_streams: bool, salt: str, cold: bool = False) -> bytes:
    """What is sent. Usage is asked for in every stream, since metering rests on it; the client's own prefix salt is
    replaced by `salt` where there is one; `cold`: llama.cpp is to use nothing that it has cached. Needs the
    parsed prompt only where something of the client's must change."""
    if ask.responses:
        return private(ask.body, salt=salt, cold=cold) if salt or cold else ask.body
    ask_usage = ask.stream and usage_in_streams and not ask.wants_usage
    if not ask_usage and not salt and not cold:
        return ask.body
    if ask_usage and not salt and not cold and "stream_options" not in ask.fields:
        whole = ask.body.rstrip()
        return whole[:-1] + _USAGE  # an object with a model in it: never empty
    fields = dict(ask.fields)
    if ask_usage:
        fields["stream_options"] = {**cast("Json", fields.get("stream_options") or {}), "include_usage": True}
    if salt:
        fields["cache_salt"] = salt
    if cold:
        fields["cache_prompt"] = False
    return orjson.dumps(fields)


def limit_output(ask: Ask, most_tokens: int) -> int:
    """Make the engine stop where the gateway expects it to, though the client named no allowance. Returns the output
    tokens of all choices. Every name that the body has for it says the same."""
    each = max(1, most_tokens // ask.choices)
    name = "max_output_tokens" if ask.responses else "max_tokens"
    limits: Json = {name: each, **{other: each for other in _ALLOWANCES if other in ask.fields}}
    ask.fields.update(limits)
    ask.body = ask.body.rstrip()[:-1] + b"," + orjson.dumps(limits)[1:]  # of a name that is there twice the last counts
    return each * ask.choices
