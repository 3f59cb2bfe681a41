"""What an engine says a request took: the `usage` object, found without parsing the answer around it.

Inside a JSON string every quote is escaped, so the bytes ``"usage"`` are a key wherever they stand, whatever a model
may write into its answer.
"""

from __future__ import annotations

from dataclasses import replace

import orjson

from longproof.domain.events import Usage
from longproof.engines.chunk_fields import usage_of
from longproof.engines.json_fields import JsonObject, as_object

_KEY = b'"usage"'
_LONGEST = 4_096
_MOST_NESTED = 16


def has_usage(data: bytes) -> bool:
    """Whether there may be a usage object in it (null is none). Cheap: for every chunk of every stream."""
    at = data.rfind(_KEY)
    return at >= 0 and data.find(b"{", at, at + len(_KEY) + 4) >= 0


def usage_in(data: bytes) -> Usage | None:
    """The last usage object in a body or event; None where there is none, or none that can be read."""
    at = data.rfind(_KEY)
    if at < 0:
        return None
    start = data.find(b"{", at, at + len(_KEY) + 8)
    if start < 0:
        return None
    end = start
    for _ in range(_MOST_NESTED):  # the object ends at one of the next braces: quicker tried than counted byte by byte
        end = data.find(b"}", end, start + _LONGEST) + 1
        if end == 0:
            return None
        if (fields := _object(data[start:end])) is not None:
            return _usage(fields)
    return None


def _object(text: bytes) -> JsonObject | None:
    try:
        return as_object(orjson.loads(text))
    except orjson.JSONDecodeError:
        return None


def _usage(fields: JsonObject) -> Usage | None:
    found = usage_of(fields)
    if found.prompt_tokens is None or min(found.prompt_tokens, found.completion_tokens or 0) < 0:
        return None
    if found.cached_tokens is not None and not 0 <= found.cached_tokens <= found.prompt_tokens:
        return replace(found, cached_tokens=None)  # more than the whole prompt cannot have come from a cache
    return found
