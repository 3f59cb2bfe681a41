"""Many prompts of one exact length, without asking the server for each: one is proved, the others differ in the nonce.

    proved      NONCE  filler …      counted by the server, as every prompt of exact length is
    i-th        nonce  filler …      same filler; the nonce's words are redrawn from words that cost the same

Their lengths follow from the proved one's and from the words' costs; each answer's `usage` is the check afterwards.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

from longproof.asking.exact import BuiltPrompt
from longproof.domain.request import ChatMessage, ChatPrompt, GenerationRequest, IdsPrompt, Prompt, TextPrompt

_STEP = 2_654_435_761
"""A prime far above any number of words: i × step runs through all combinations before it meets one again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptStock:
    """`built` is the proved prompt and `nonce` its nonce. `words` are one-token words (they follow a space), `word_ids`
    their ids where prompts are sent as ids; `nonce_ids` is how many ids the nonce has there."""

    built: BuiltPrompt
    nonce: str
    words: tuple[str, ...]
    word_ids: tuple[int, ...]
    nonce_ids: int

    @property
    def length_tokens(self) -> int:
        """Tokens of every prompt of this stock, as the server counts them."""
        return self.built.count.total

    def nonce_of(self, i: int) -> str:
        """The i-th prompt's nonce: no two alike, none that of the proved prompt."""
        first, *others = self.nonce.split(" ")
        drawn = _digits(self._code(i), len(self.words), len(others))
        words = [self.words[digit] if word in self.words else word for word, digit in zip(others, drawn, strict=True)]
        return " ".join([first, *words])

    @property
    def opening(self) -> str | tuple[int, ...]:
        """What the proved prompt has of its own: its nonce, as words or as ids."""
        prompt = self.built.prompt
        return prompt.ids[: self.nonce_ids] if isinstance(prompt, IdsPrompt) else self.nonce

    def opening_of(self, i: int) -> str | tuple[int, ...]:
        """What the i-th prompt has in that place."""
        return self._ids_of(i) if isinstance(self.built.prompt, IdsPrompt) else self.nonce_of(i)

    def prompt(self, i: int) -> Prompt:
        """The i-th prompt."""
        prompt = self.built.prompt
        if isinstance(prompt, IdsPrompt):
            return IdsPrompt(ids=(*self._ids_of(i), *prompt.ids[self.nonce_ids :]))
        nonce = self.nonce_of(i)
        if isinstance(prompt, TextPrompt):
            return TextPrompt(text=prompt.text.replace(self.nonce, nonce, 1))
        return ChatPrompt(messages=_renamed(prompt.messages, self.nonce, nonce))

    def request(
        self, i: int, *, max_tokens: int, timeout_s: float, cold: bool = False, seed: int = 0
    ) -> GenerationRequest:
        """The i-th request. `cold`: ask the engine not to reuse anything, where it has that switch."""
        proved = self.proved(max_tokens=max_tokens, timeout_s=timeout_s, cold=cold, seed=seed)
        return replace(proved, prompt=self.prompt(i))

    def proved(self, *, max_tokens: int, timeout_s: float, cold: bool = False, seed: int = 0) -> GenerationRequest:
        """The same with the prompt that was counted; all others have its length."""
        return GenerationRequest(
            prompt=self.built.prompt,
            max_tokens=max_tokens,
            prompt_tokens=self.built.count.total,
            count_source=self.built.count.source,
            cold=cold,
            seed=seed,
            timeout_s=timeout_s,
        )

    def _ids_of(self, i: int) -> tuple[int, ...]:
        return tuple(self.word_ids[digit] for digit in _digits(self._code(i), len(self.word_ids), self.nonce_ids))

    def _code(self, i: int) -> int:
        start = int.from_bytes(hashlib.sha256(self.nonce.encode()).digest()[:8])
        return start + (i + 1) * _STEP


def _digits(number: int, base: int, places: int) -> Sequence[int]:
    digits: list[int] = []
    for _ in range(places):
        number, digit = divmod(number, base)
        digits.append(digit)
    return digits


def _renamed(messages: Sequence[ChatMessage], nonce: str, fresh: str) -> tuple[ChatMessage, ...]:
    """The messages with the nonce replaced in the first that has it."""
    for at, message in enumerate(messages):
        if nonce in message.content:
            changed = replace(message, content=message.content.replace(nonce, fresh, 1))
            return (*messages[:at], changed, *messages[at + 1 :])
    raise ValueError(f"no message holds the nonce '{nonce}'")
