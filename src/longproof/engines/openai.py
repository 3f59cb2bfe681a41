"""Any server that speaks OpenAI's HTTP API, and nothing else is known about it. The other adapters build on this one.

A dialect overrides: `kind`, `dialect`, `exact_output_fields`, `cold_fields`, `logprobs_fields`, `request_headers`,
and whichever of introspect, count, tokenize, detokenize, render, abort, sample, restart its server offers.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import orjson

from longproof.domain.deployment import Deployment, EngineKind
from longproof.domain.events import EngineSample, RequestTimeline
from longproof.domain.measure import Unknown, reported
from longproof.domain.request import (
    ChatMessage,
    ChatPrompt,
    CountSource,
    GenerationRequest,
    IdsPrompt,
    Prompt,
    Route,
    TokenCount,
)
from longproof.engines.base import Capabilities, OnContent
from longproof.engines.link import Link
from longproof.engines.local_tokenizer import LocalTokenizer
from longproof.engines.metrics_text import metric_values
from longproof.engines.served import ServedModel, choose_model, served_models
from longproof.errors import EngineProtocolError, UsageError

_ALIVE_TIMEOUT_S = 120.0


class Owner(Protocol):
    """The process behind an engine, where we own it: as much of `process.OwnedProcess` as an adapter needs."""

    @property
    def url(self) -> str:
        """Where it serves now; a restart may move it."""
        ...

    async def restart(self) -> None:
        """Restarts the process we own and waits until it serves. UsageError where we do not own it."""
        if self._owner is None:
            raise UsageError(
                f"{self.url} is not ours to restart",
                advice="leave the restart probe out, or let longproof start the engine",
            )
        await self._owner.restart()
        self._link.move(self._owner.url)

    async def aclose(self) -> None:
        """Closes connections and stops the process where we own it. Safe to call twice."""
        await self._link.aclose()
        if self._owner is not None:
            await self._owner.stop()

    # -- tokens -------------------------------------------------------------------------------------------------------

    async def count(self, prompt: Prompt) -> TokenCount:
        """Ids are their own count. Texts only by the local tokenizer: contents alone, the template stays unknown and
        uncounted.

        Raises UsageError without a local tokenizer: check `capabilities.counts` first.
        """
        if isinstance(prompt, IdsPrompt):
            return count_of_ids(prompt)
        tokenizer = self._local_tokenizer()
        texts = [m.content for m in prompt.messages] if isinstance(prompt, ChatPrompt) else [prompt.text]
        tokens = sum(len(tokenizer.encode(text)) for text in texts)
        return TokenCount(
            total=tokens,
            content=tokens,
            template=0,
            special=None,
            source=CountSource.LOCAL_TOKENIZER,
            how=f"{tokenizer.name}: contents only, template and special tokens not counted",
        )

    async def tokenize(self, text: str) -> list[int]:
        """Token ids by the local tokenizer. Raises UsageError without one."""
        return self._local_tokenizer().encode(text)

    async def detokenize(self, ids: Sequence[int]) -> str:
        """Text of ids by the local tokenizer. Raises UsageError without one."""
        return self._local_tokenizer().decode(ids)

    async def render(self, messages: Sequence[ChatMessage]) -> str:  # noqa: ARG002 - the port's signature
        """UsageError: plain OpenAI does not show its template."""
        raise UsageError(
            f"{self.url} does not show what its chat template makes of messages", advice="prove the completions route"
        )

    def _local_tokenizer(self) -> LocalTokenizer:
        if self._tokenizer is None:
            raise UsageError(
                f"{self.url} does not count tokens for its clients",
                advice="give the model's tokenizer.json with --tokenizer FILE",
            )
        return self._tokenizer


def message_fields(messages: Sequence[ChatMessage]) -> list[dict[str, str]]:
    """Messages as the API takes them."""
    return [{"role": message.role, "content": message.content} for message in messages]


def count_of_ids(prompt: IdsPrompt) -> TokenCount:
    """Ids are counted by counting them."""
    return TokenCount(
        total=len(prompt.ids),
        content=len(prompt.ids),
        template=0,
        special=None,
        source=CountSource.IDS,
        how="number of ids sent",
    )
