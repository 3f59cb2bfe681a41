"""Fields of a request that a server refuses by name, and what a request is without them.

Seen of OpenAI's reasoning models: ``max_tokens`` ("Use 'max_completion_tokens' instead") and ``temperature`` ("does not
support 0 with this model"); of strict gateways: ``seed`` and ``stream_options`` as unknown fields (400, or FastAPI's
422 with "Extra inputs are not permitted"). A request that failed at this cost nothing and says nothing about length.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from longproof.domain.events import RequestTimeline

_INSTEAD = {"max_tokens": "max_completion_tokens"}
_DISPENSABLE = ("stream_options", "seed", "temperature")
_STATUSES = (400, 422)
_NOT_KNOWN = re.compile(
    r"unsupported|not support|unrecogni[sz]ed|unknown|unexpected|not (allowed|permitted)|extra (inputs?|fields?)",
    re.IGNORECASE,
)


def refused_field(timeline: RequestTimeline, sent: Collection[str]) -> str | None:
    """The field of those sent that the server refused by name and that a request can do without. None otherwise."""
    if timeline.status not in _STATUSES or timeline.error is None:
        return None
    words = f"{timeline.error.message} {timeline.error.body}"
    if not _NOT_KNOWN.search(words):
        return None
    named = (name for name in (*_INSTEAD, *_DISPENSABLE) if re.search(rf"\b{name}\b", words))
    return next((name for name in named if name in sent), None)


def without(fields: Mapping[str, object], refused: Collection[str]) -> dict[str, object]:
    """The fields without the refused ones, or under the name that replaces theirs."""
    return {
        _INSTEAD.get(name, name) if name in refused else name: value
        for name, value in fields.items()
        if name not in refused or name in _INSTEAD
    }


def described(refused: Collection[str]) -> str:
    """``without seed; max_completion_tokens for max_tokens``"""
    parts = [f"{_INSTEAD[name]} for {name}" if name in _INSTEAD else f"without {name}" for name in sorted(refused)]
    return "; ".join(parts)
