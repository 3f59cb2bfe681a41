"""A body's prompt → token ids, by the model's own tokenizer and template. Runs in worker threads."""

from __future__ import annotations

from array import array
from typing import cast

from longproof.domain.request import Route
from longproof.gateway.ask import Json
from longproof.gateway.chat_template import Uncountable
from longproof.gateway.long_text import LongText
from longproof.gateway.prompt_tokenizer import ModelTokenizer
from longproof.gateway.text_memory import TextMemory


class LocalCount:
    """One model's. Thread-safe."""

    def __init__(self, model: ModelTokenizer, memory: TextMemory) -> None:
        self._model = model
        self._text = LongText(model.tokenizer, memory)
        self.memory = memory
        self.template_tokens = self._template_tokens()

    @property
    def name(self) -> str:
        """Which files it was read from."""
        return self._model.name

    @property
    def has_template(self) -> bool:
        """Whether chats can be counted."""
        return self._model.template is not None

    def expansion(self, body: bytes) -> int:
        """How many times longer than its body a prompt's text can be, at most."""
        most = self._model.expansion
        return most if most == 1 or not body.isascii() or b"\\u" in body else 1

    def ids(self, route: Route, fields: Json) -> list[array[int]]:
        """The ids of each prompt. Raises Uncountable."""
        if route is Route.CHAT:
            return [self._chat(fields)]
        prompt = fields.get("prompt")
        several = isinstance(prompt, list)
        texts = cast("list[object]", prompt) if several else [prompt]
        return [self._prompt(text) for text in texts]

    def _chat(self, fields: Json) -> array[int]:
        if self._model.template is None:
            raise Uncountable(f"{self._model.name} has no chat template")
        text = self._model.template.render(fields)
        bos = self._model.chat_bos
        if bos is None or text.startswith(bos[0]):
            return self._text.encode(text)
        return array("I", [bos[1]]) + self._text.encode(text)

    def _prompt(self, prompt: object) -> array[int]:
        if isinstance(prompt, str):
            ids = array("I", self._model.before)
            ids.extend(self._text.encode(prompt))
            ids.extend(self._model.after)
            return ids
        try:
            return array("I", cast("list[int]", prompt))
        except (TypeError, OverflowError):
            raise Uncountable("a prompt that is neither text nor token ids") from None

    def _template_tokens(self) -> int | None:
        """What the template writes around one empty message, with room for a second one of another role."""
        try:
            return 2 * len(self._chat({"messages": [{"role": "user", "content": ""}]}))
        except Uncountable:
            return None
