"""An engine's own count of a prompt, as token ids: the judge of our count, and what is used where we have none.

    vLLM 0.32, SGLang 0.5.23    POST /tokenize {messages, add_generation_prompt, tools …}
                                            or {prompt, add_special_tokens}
    llama.cpp                   POST /apply-template {messages, tools …}, then /tokenize {content, add_special}

One engine is asked, never all of them: each would pay its tokenizer for the same text.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Mapping
from typing import cast

from longproof.domain.deployment import EngineKind
from longproof.domain.request import Route
from longproof.engines.json_fields import as_list, as_text
from longproof.engines.link import Link
from longproof.errors import EngineProtocolError
from longproof.gateway.ask import Json
from longproof.gateway.chat_template import Uncountable

_TIMEOUT_S, _TIMEOUT_S_PER_MIB = 10.0, 10.0
TEMPLATE_FIELDS = ("tools", "tool_choice", "chat_template_kwargs", "continue_final_message")
_KINDS = (EngineKind.VLLM, EngineKind.SGLANG, EngineKind.LLAMACPP)


class EngineCount:
    """Counts by one server."""

    def __init__(self, link: Link, kind: EngineKind, model: str) -> None:
        self._link = link
        self._kind = kind
        self._model = model
        self.asked = 0

    @property
    def can_count(self) -> bool:
        """Whether its dialect has a route that counts."""
        return self._kind in _KINDS

    @property
    def url(self) -> str:
        """Who counts."""
        return self._link.url

    async def ids(self, route: Route, fields: Json) -> list[array[int]]:
        """The ids of each prompt of a body.

        Raises EngineMisbehaved for what the server gets wrong, Uncountable where the dialect cannot say it.
        """
        if not self.can_count:
            raise Uncountable(f"{self._kind.value} has no route that counts")
        if route is Route.CHAT:
            return [await self._chat(fields)]
        prompt = fields.get("prompt")
        texts = cast("list[object]", prompt) if isinstance(prompt, list) else [prompt]
        return [await self._text(text) for text in texts]

    async def _chat(self, fields: Json) -> array[int]:
        body: dict[str, object] = {"messages": fields.get("messages")}
        body.update((name, fields[name]) for name in TEMPLATE_FIELDS if fields.get(name) is not None)
        if self._kind is EngineKind.LLAMACPP:
            answer = await self._link.post_json("/apply-template", body, timeout_s=_patience(fields))
            text = as_text(answer.get("prompt"))
            if text is None:
                raise EngineProtocolError("/apply-template answered without prompt", url=self.url)
            return await self._text(text)
        body["add_generation_prompt"] = fields.get("add_generation_prompt", True)
        return await self._ask({"model": self._model, **body})

    async def _text(self, text: object) -> array[int]:
        if not isinstance(text, str):
            raise Uncountable("a prompt that is neither text nor token ids")
        if self._kind is EngineKind.LLAMACPP:
            return await self._ask({"content": text, "add_special": True, "parse_special": True})
        return await self._ask({"model": self._model, "prompt": text, "add_special_tokens": True})

    async def _ask(self, body: dict[str, object]) -> array[int]:
        self.asked += 1
        answer = await self._link.post("/tokenize", body, timeout_s=_patience(body))

        def read() -> array[int]:
            tokens = as_list(self._link.json_of(answer).get("tokens"))
            try:
                return array("I", cast("list[int]", tokens))
            except (TypeError, OverflowError) as problem:
                raise EngineProtocolError("/tokenize answered without token ids", url=self.url) from problem

        return await asyncio.to_thread(read)  # the ids of a long prompt are megabytes of JSON


def _patience(fields: Mapping[str, object]) -> float:
    """How long an engine may take to count, in seconds: it may have to tokenize megabytes, and it may be hanging."""
    texts = [fields.get("prompt"), fields.get("content"), *cast("list[object]", fields.get("messages") or ())]
    chars = sum(len(text) if isinstance(text, str) else _chars(text) for text in texts)
    return _TIMEOUT_S + _TIMEOUT_S_PER_MIB * chars / (1 << 20)


def _chars(message: object) -> int:
    content = cast(Json, message).get("content") if isinstance(message, dict) else None
    return len(content) if isinstance(content, str) else len(repr(content))
