"""What is sent: prompts, their counted length, and the request around them."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias


class Route(StrEnum):
    """Which OpenAI route a request takes."""

    CHAT = "chat"
    COMPLETIONS = "completions"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatMessage:
    """One message of a chat; `role` is system, user or assistant."""

    role: str
    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatPrompt:
    """Messages that the server's template turns into tokens."""

    messages: tuple[ChatMessage, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class IdsPrompt:
    """Token ids sent as they are to /v1/completions: no template, no special tokens added, length exact by
    construction."""

    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TextPrompt:
    """Plain text for /v1/completions; the server may add special tokens."""

    text: str


Prompt: TypeAlias = ChatPrompt | IdsPrompt | TextPrompt


class CountSource(StrEnum):
    """Who counted the tokens."""

    SERVER = "server"
    """The server's own tokenizer and template."""
    IDS = "ids"
    """We sent ids; their number is the count."""
    LOCAL_TOKENIZER = "local tokenizer"
    """A tokenizer on our side: a fallback, not proven to be the server's."""
    USAGE = "usage"
    """Only the server's usage after the fact: nothing independent to check it against."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenCount:
    """Tokens of a prompt. `total` = `content` + `template`; `special` is how many of the template's tokens are special
    (BOS, role markers) where the server lets us see, else None = not told apart."""

    total: int
    content: int
    template: int
    special: int | None
    source: CountSource
    how: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """One request. `prompt_tokens` is our own count (None when nobody could count before sending).

    `exact_output`: ask the engine, in its own dialect, to produce exactly `max_tokens` (ignore EOS, min_tokens).
    `cold`: ask it, in its own dialect where it has one, not to reuse cached prefixes. `top_logprobs` > 0 asks for that
    many alternatives per token. `timeout_s` ends the request from our side; that is recorded as an outcome. `extra`
    goes into the body verbatim. `request_id`: ours for it, by which it can be aborted; None = one is drawn.
    """

    prompt: Prompt
    max_tokens: int
    prompt_tokens: int | None = None
    count_source: CountSource | None = None
    exact_output: bool = True
    cold: bool = False
    temperature: float = 0.0
    seed: int = 0
    top_logprobs: int = 0
    timeout_s: float = 600.0
    extra: dict[str, object] = field(default_factory=dict[str, object])
    request_id: str | None = None

    @property
    def route(self) -> Route:
        """Chat prompts go to /v1/chat/completions, everything else to /v1/completions."""
        return Route.CHAT if isinstance(self.prompt, ChatPrompt) else Route.COMPLETIONS
