"""An upper bound of a prompt's tokens, in microseconds.

    bytes of the body         a token of a byte-level (or byte-fallback) vocabulary stands for at least one byte, and
                              JSON never writes a text with fewer bytes than UTF-8 does
  × expansion                 what a normalizer can make of them
  + template, messages        what is written around them
  + indentation               what tools grow by when a template prints them indented
  - pictures, + so many each  they are bytes in the body and something else in the prompt

It is a bound for prompts of text; of a picture it is a generous guess.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from longproof.domain.request import Route
from longproof.gateway.ask import Ask, Json

_TEMPLATE_TOKENS = 512
_MESSAGE_TOKENS = 16
_VARIABLE_EXPANSION = 4
"""A template may say more because of a variable than the variable is long."""
_INDENT_BYTES, _PER_NODE_BYTES = 4, 8
_MOST_NODES, _NO_BOUND = 20_000, 1 << 40
"""More tools than this are not looked through on the event loop; there is no bound, and they have to be counted."""
_MEDIA_TOKENS = 16_384
"""Of one picture, sound or film: the most that Qwen2-VL makes of a picture (max_pixels 12,845,056 / 28²)."""
_MOST_MESSAGES = 4_096
"""In longer chats nobody looks for pictures on the event loop; their bytes count as text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Around:
    """What a model adds. `expansion`: see `prompt_tokenizer`, for this body. `template_tokens`: what its template
    writes around a message and more; None = no template is known."""

    expansion: int = 1
    template_tokens: int | None = None


def bound_tokens(ask: Ask, around: Around) -> int:
    """At least as many tokens as the prompt has."""
    fields, size = ask.fields, len(ask.body)
    if ask.route is not Route.CHAT:
        prompt = fields.get("prompt")
        texts = len(cast("list[object]", prompt)) if isinstance(prompt, list) else 1
        return size * around.expansion + texts * _MESSAGE_TOKENS
    messages = cast("list[Json]", fields.get("messages") or ())
    expansion = around.expansion * (_VARIABLE_EXPANSION if fields.get("chat_template_kwargs") else 1)
    media_bytes, media = _media(messages) if len(messages) <= _MOST_MESSAGES else (0, 0)
    return (
        max(size - media_bytes, 0) * expansion
        + media * _MEDIA_TOKENS
        + (around.template_tokens or _TEMPLATE_TOKENS)
        + len(messages) * _MESSAGE_TOKENS
        + _indentation(fields.get("tools"))
    )


def _media(messages: list[Json]) -> tuple[int, int]:
    """Characters of addresses and data of parts that are no text, and how many such parts there are."""
    chars = parts = 0
    for message in messages:
        content = message.get("content")
        for part in cast("list[object]", content) if isinstance(content, list) else ():
            if isinstance(part, dict) and (kind := cast(Json, part).get("type")) != "text":
                parts += 1
                inside = cast(Json, part).get(str(kind))
                values = cast(Json, inside).values() if isinstance(inside, dict) else (inside,)
                chars += sum(len(value) for value in values if isinstance(value, str))
    return chars, parts


def _indentation(tools: object) -> int:
    """Bytes that tools may be longer in a prompt than in the body: a template may print them indented by four."""
    if not tools:
        return 0
    nodes = deepest = 0
    level: list[object] = [tools]
    while level:
        if nodes + len(level) > _MOST_NODES:
            return _NO_BOUND
        nodes, deepest = nodes + len(level), deepest + 1
        below: list[object] = []
        for value in level:
            if isinstance(value, dict):
                below.extend(cast("dict[str, object]", value).values())
            elif isinstance(value, list):
                below.extend(cast("list[object]", value))
        level = below
    return nodes * (_PER_NODE_BYTES + 2 * _INDENT_BYTES * deepest)
