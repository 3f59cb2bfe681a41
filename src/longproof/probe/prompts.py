"""Prompts of an exact length, as the server under test counts it, each with a fresh nonce at its very front."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from longproof.domain.request import Prompt, Route, TokenCount
from longproof.engines.base import Engine


@dataclass(frozen=True, slots=True, kw_only=True)
class Insert:
    """A text that must stand in the prompt as it is. `depth`: 0 = right after the nonce, 1 = right before the question."""

    depth: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltPrompt:
    """A prompt and its length; `count.source` says who counted."""

    prompt: Prompt
    count: TokenCount


class LengthUnproven(Exception):  # noqa: N818 - not an error: a probe notes it and goes on
    """No prompt of exactly the wanted length can be promised. `closest_tokens`: the nearest length that can, None = none."""

    def __init__(self, why: str, *, wanted_tokens: int, closest_tokens: int | None = None) -> None:
        super().__init__(why)
        self.why = why
        self.wanted_tokens = wanted_tokens
        self.closest_tokens = closest_tokens


class PromptBuilder:
    """Builds prompts for one engine and one route. Same seed, nonce and server → same prompt."""

    def __init__(self, engine: Engine, *, route: Route, seed: int, salt: str) -> None:
        self._engine = engine
        self._route = route
        self._seed = seed
        self._salt = salt

    def nonce(self, key: str) -> str:
        """Plain words that no earlier session used: from the session's salt and the question's key."""
        raise NotImplementedError

    async def exact(
        self,
        total_tokens: int,
        *,
        nonce: str,
        inserts: Sequence[Insert] = (),
        question: str = "",
        tail_nonce: str | None = None,
    ) -> BuiltPrompt:
        """A prompt of `total_tokens` as the server counts it, template and special tokens included.

        `tail_nonce`: the last part of the filler is drawn anew, everything before stays byte for byte. Raises LengthUnproven.
        """
        raise NotImplementedError

    async def ids(self, total_tokens: int, *, nonce: str) -> BuiltPrompt:
        """`total_tokens` plain-word token ids, the nonce's first. Raises LengthUnproven where the engine takes no ids."""
        raise NotImplementedError

    async def minimum_tokens(self) -> int:
        """The shortest prompt of this route: template and nonce, nothing else."""
        raise NotImplementedError
