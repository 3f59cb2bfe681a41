"""The text of a prompt, for whoever has no tokenizer: how much there is of it, and names for its blocks.

    names    blocks of so many bytes, chained as blocks of tokens are: prompts that begin alike have names alike
    size     bytes of UTF-8 and the number of messages, from which a length is estimated (`token_rate`)

The text is what would go into a template, not what the template makes of it: equal names still mean equal beginnings,
since an engine applies one template to all. What changes a prompt's beginning from elsewhere (tools, a template's own
variables) is hashed in front of it. An engine's events never speak of these names.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

import orjson

from longproof.domain.request import Route
from longproof.gateway.ask import Json
from longproof.policy.hashing import BYTES_PER_TOKEN, chain, root

_NAMES_AT_ONCE = 2_048
_SAMPLED_CHARS, _SAMPLES = 2_048, 8
_IN_FRONT = ("tools", "functions", "tool_choice", "chat_template_kwargs", "chat_template", "documents")
_TOOL_INDENTATION = 1.5
"""Templates print tools indented, often: so much longer than in a body without spaces."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextSize:
    """How much text a prompt is. `wide`: bytes beyond the first of a character, per character (0 = all is ASCII, 2 =
    all is Chinese)."""

    size_bytes: int
    messages: int
    wide: float


def text_size(route: Route, fields: Json) -> TextSize | None:
    """At once, whatever the length: of long texts that are not ASCII a sample tells. None: it is not text alone, or it
    is several prompts."""
    size = chars = 0
    for part in _texts(route, fields):
        if part is None:
            return None
        size, chars = size + _utf8_bytes(part), chars + len(part)
    wide = (size - chars) / chars if chars else 0.0
    tools = fields.get("tools") or fields.get("functions")
    if route is Route.CHAT and tools:
        size += int(_TOOL_INDENTATION * len(orjson.dumps(tools)))
    messages = len(cast("list[object]", fields.get("messages") or ())) if route is Route.CHAT else 0
    return TextSize(size_bytes=size, messages=messages, wide=wide)


def text_names(route: Route, fields: Json, *, block_bytes: int, salt: str) -> tuple[int, ...]:
    """Names of the whole blocks of a prompt's text. `block_bytes`: a multiple of 4; names of two sizes never meet, nor
    do those of two salts. Empty for several prompts. Long texts belong into a thread: 1 ms per 300 kB, in parts between
    which the event loop has its turn."""
    if route is not Route.CHAT and not isinstance(fields.get("prompt"), str):
        return ()
    packed = b"".join(_marked(route, fields))
    front = {name: fields[name] for name in _IN_FRONT if fields.get(name)} if route is Route.CHAT else {}
    seed = f"text\x00{block_bytes}\x00{salt}\x00{orjson.dumps(front).decode() if front else ''}"
    tokens, names = block_bytes // BYTES_PER_TOKEN, list[int]()
    parent, step = root(seed), _NAMES_AT_ONCE * block_bytes
    if len(packed) <= step:
        return chain(packed, block_tokens=tokens, parent=parent)
    for start in range(0, len(packed), step):
        names += chain(packed[start : start + step], block_tokens=tokens, parent=names[-1] if names else parent)
        time.sleep(0)
    return tuple(names)


def _texts(route: Route, fields: Json) -> Iterator[str | None]:
    """The pieces of text; None for what is none."""
    if route is not Route.CHAT:
        prompt = fields.get("prompt")
        yield prompt if isinstance(prompt, str) else None
        return
    for message in cast("list[Json]", fields.get("messages") or ()):
        content = message.get("content")
        if isinstance(content, str):
            yield content
        elif isinstance(content, list):
            for part in cast("list[object]", content):
                text = cast(Json, part).get("text") if isinstance(part, dict) else part
                yield text if isinstance(text, str) else None
        elif content is not None:
            yield None
        if calls := message.get("tool_calls"):
            yield repr(calls)


def _marked(route: Route, fields: Json) -> Iterator[bytes]:
    """The bytes that are hashed: texts, and between them marks that no text can be taken for."""
    if route is not Route.CHAT:
        yield _encoded(cast(str, fields["prompt"]))
        return
    for message in cast("list[Json]", fields.get("messages") or ()):
        yield b"\xff" + _encoded(str(message.get("role"))) + b"\xfe"
        content = message.get("content")
        yield _encoded(content if isinstance(content, str) else repr(content))
        if calls := message.get("tool_calls"):
            yield b"\xfd" + _encoded(repr(calls))


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _utf8_bytes(text: str) -> int:
    if text.isascii():
        return len(text)
    if len(text) <= _SAMPLED_CHARS * _SAMPLES:
        return len(_encoded(text))
    step = len(text) // _SAMPLES
    seen = sum(len(_encoded(text[start : start + _SAMPLED_CHARS])) for start in range(0, step * _SAMPLES, step))
    return seen * len(text) // (_SAMPLED_CHARS * _SAMPLES)
