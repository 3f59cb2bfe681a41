"""The port every engine adapter fills."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from longproof.domain.deployment import Deployment
from longproof.domain.events import ContentChunk, EngineSample, RequestTimeline
from longproof.domain.request import ChatMessage, GenerationRequest, Prompt, TokenCount
from longproof.engines.request_body import Prepared

OnContent: TypeAlias = Callable[[ContentChunk, str], bool | None]
"""Called for every content chunk with its text. Returning False closes the connection: the request ends as
CANCELLED."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What an engine's dialect can do, beyond plain OpenAI.

    `local_tokenizer`: it does not count for us, but we have a tokenizer of our own. `token_ids`: /v1/completions
    takes ids. `counts`: it counts tokens for us (template included). `exact_output`: it can be told to produce
    exactly max_tokens. `cold`: a request can ask not to reuse cached prefixes. `logprobs`: it returns top logprobs.
    `chat`, `completions`: the routes it serves. `metrics`: it exposes Prometheus metrics. `aborts`: it has an abort
    endpoint. `restarts`: we own the process. `disaggregated`: two servers, one for prefill and one for decode.
    `fields_refused`: request fields that the server turned down by name and that are no longer sent; grows with use.
    """

    chat: bool = True
    completions: bool = True
    token_ids: bool = False
    counts: bool = False
    local_tokenizer: bool = False
    exact_output: bool = False
    cold: bool = False
    logprobs: bool = False
    metrics: bool = False
    aborts: bool = False
    restarts: bool = False
    disaggregated: bool = False
    fields_refused: tuple[str, ...] = ()


class Engine(Protocol):
    """One running server. All methods raise `EngineMisbehaved` for what the server gets wrong outside a generation
    request; `send` never does: whatever happens to a request is in its timeline."""

    @property
    def url(self) -> str:
        """Base URL without a trailing slash or /v1."""
        ...

    @property
    def model(self) -> str:
        """The served model name that requests carry."""
        ...

    @property
    def capabilities(self) -> Capabilities: ...

    async def introspect(self) -> Deployment:
        """All that the server tells of itself, with provenance per field."""
        ...

    async def count(self, prompt: Prompt) -> TokenCount:
        """Tokens of a prompt as the server will count it, template and special tokens included."""
        ...

    async def tokenize(self, text: str) -> list[int]:
        """Token ids of a text, no special tokens added."""
        ...

    async def detokenize(self, ids: Sequence[int]) -> str:
        """Text of token ids."""
        ...

    async def render(self, messages: Sequence[ChatMessage]) -> str:
        """The text that the server's template makes of messages (generation prompt included)."""
        ...

    async def prepare(self, request: GenerationRequest) -> Prepared:
        """Makes a request's body, off the clock: for a load's next request, whose time has not come."""
        ...

    async def send(
        self,
        request: GenerationRequest | Prepared,
        *,
        on_content: OnContent | None = None,
        leave: asyncio.Event | None = None,
    ) -> RequestTimeline:
        """Sends one request as a stream and records what happens, to the end or to `request.timeout_s`.

        When `leave` is set the connection is closed at once, before the first byte too, and the request ends as
        CANCELLED.
        """
        ...

    async def abort(self, engine_request_id: str) -> bool:
        """Asks the server to abort a request, by its own id or ours (`GenerationRequest.request_id`); False where the
        dialect has no such endpoint."""
        ...

    async def sample(self, *, wanted: frozenset[str] | None = None) -> EngineSample:
        """The engine's metrics now; with `wanted` only those of these bare names (the gauges that every engine has
        must be among them)."""
        ...

    def memory_bytes(self) -> int | None:
        """Resident memory of the engine's processes now; None where we do not own them, or they have ended."""
        ...

    async def alive(self) -> bool:
        """Whether it produces a token: /health can be 200 while inference is impossible."""
        ...

    async def restart(self) -> None:
        """Restarts the process we own and waits until it serves. UsageError where we do not own it."""
        ...

    async def aclose(self) -> None:
        """Closes connections; stops the process where we own it. Safe to call twice."""
        ...
