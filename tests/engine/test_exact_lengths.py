"""Prompts of exactly N tokens on the real llama.cpp: sent = used, through ids and through text in the chat template."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from longproof.asking.prompts import PromptBuilder
from longproof.domain.request import CountSource, GenerationRequest, IdsPrompt, Route
from longproof.engines.base import Engine
from longproof.engines.registry import connect

pytestmark = pytest.mark.engine


@pytest.fixture
async def engine(embedded_engine: Any) -> AsyncIterator[Engine]:
    """Window 1,024, one slot: each prompt shares all but one token with the one before."""
    server = await embedded_engine(context_tokens=1024, slots=1)
    found = await connect(server.url)
    yield found
    await found.aclose()


async def test_ids_are_used_as_sent_when_every_length_to_300_is_tried(engine: Engine) -> None:
    builder = PromptBuilder(engine, route=Route.COMPLETIONS, seed=0, salt="exact")
    built = await builder.ids(1023, nonce=builder.nonce("exact"))
    assert isinstance(built.prompt, IdsPrompt)
    used = {}
    for length in (*range(1, 301), 511, 512, 513, 1022, 1023):
        timeline = await engine.send(
            GenerationRequest(
                prompt=IdsPrompt(ids=built.prompt.ids[:length]),
                max_tokens=1,
                prompt_tokens=length,
                count_source=CountSource.IDS,
            )
        )
        assert timeline.usage is not None, timeline
        used[length] = timeline.usage.prompt_tokens
    assert used == {length: length for length in used}


async def test_chat_text_is_used_as_built_when_lengths_are_odd(engine: Engine) -> None:
    builder = PromptBuilder(engine, route=Route.CHAT, seed=0, salt="exact")
    shortest = await builder.minimum_tokens()
    used = {}
    for length in (shortest, shortest + 1, shortest + 2, 101, 128, 257, 600):
        built = await builder.exact(length, nonce=builder.nonce(f"exact/{length}"))
        assert (built.count.total, built.count.source) == (length, CountSource.SERVER)
        timeline = await engine.send(GenerationRequest(prompt=built.prompt, max_tokens=1, prompt_tokens=length))
        assert timeline.usage is not None, timeline
        used[length] = timeline.usage.prompt_tokens
    assert used == {length: length for length in used}
