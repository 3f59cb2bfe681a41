"""What vLLM 0.32 does at the edge of an 8,192-token window, as `send` records it and `classify` names it.

The near-window prompts share their prefix, so only the first of them is computed (about 10 s on two cores).
"""

from __future__ import annotations

import pytest

from longproof.domain.events import EndedBy, RequestTimeline
from longproof.domain.outcome import Outcome, classify
from longproof.domain.request import GenerationRequest, IdsPrompt, Prompt, TextPrompt
from longproof.engines.vllm import VllmEngine

LIMIT_TOKENS = 8_192


async def ask(engine: VllmEngine, prompt: Prompt, max_tokens: int = 16, **extra: object) -> RequestTimeline:
    return await engine.send(GenerationRequest(prompt=prompt, max_tokens=max_tokens, extra=dict(extra)))


def of_length(word_ids: list[int], tokens: int) -> IdsPrompt:
    return IdsPrompt(ids=tuple(word_ids[i % len(word_ids)] for i in range(tokens)))


@pytest.mark.parametrize(
    ("prompt_tokens", "output_tokens", "outcome"),
    [(8_176, 16, Outcome.COMPLETED), (8_190, 2, Outcome.SHORT), (8_191, 1, Outcome.SHORT)],
)
async def test_output_is_clamped_without_a_word_when_it_would_leave_the_window(
    vllm: VllmEngine, word_ids: list[int], prompt_tokens: int, output_tokens: int, outcome: Outcome
):
    timeline = await ask(vllm, of_length(word_ids, prompt_tokens))
    assert classify(timeline) is outcome
    assert timeline.status == 200
    assert timeline.finish_reason == "length"
    assert timeline.usage is not None
    assert (timeline.usage.prompt_tokens, timeline.usage.completion_tokens) == (prompt_tokens, output_tokens)


async def test_refusal_does_not_name_the_window_when_the_prompt_fills_it(vllm: VllmEngine, word_ids: list[int]):
    timeline = await ask(vllm, of_length(word_ids, LIMIT_TOKENS))
    assert classify(timeline) is Outcome.REFUSED_LENGTH
    assert (timeline.status, timeline.ended_by) == (400, EndedBy.HTTP_ERROR)
    assert timeline.error is not None
    assert "max_tokens must be at least 1, got 0" in timeline.error.message
    assert "context" not in timeline.error.message


async def test_refusal_names_the_exact_length_when_ids_are_too_many(vllm: VllmEngine, word_ids: list[int]):
    timeline = await ask(vllm, of_length(word_ids, 8_200))
    assert classify(timeline) is Outcome.REFUSED_LENGTH
    assert timeline.status == 400
    assert timeline.error is not None
    assert "maximum context length is 8192 tokens" in timeline.error.message
    assert "8200 input tokens" in timeline.error.message


async def test_refusal_names_a_bound_when_a_text_is_too_long(vllm: VllmEngine):
    timeline = await ask(vllm, TextPrompt(text=" harbour" * 8_400))
    assert classify(timeline) is Outcome.REFUSED_LENGTH
    assert timeline.error is not None
    assert "at least 8193 input tokens" in timeline.error.message  # it stops tokenizing at the window + 1


async def test_refusal_counts_characters_when_a_text_is_far_too_long(vllm: VllmEngine):
    text = " harbour" * 1_000_000  # 1,000,000 tokens in 8,000,000 characters; 81 × 8,192 = 663,552 are looked at
    timeline = await ask(vllm, TextPrompt(text=text))
    assert classify(timeline) is Outcome.REFUSED_LENGTH
    assert timeline.error is not None
    assert "8000000 characters (more than 663552 characters" in timeline.error.message


async def test_clamp_becomes_a_refusal_when_the_minimum_is_asked_for(vllm: VllmEngine, word_ids: list[int]):
    timeline = await ask(vllm, of_length(word_ids, 8_190), min_tokens=16)
    assert timeline.status == 400
    assert timeline.error is not None
    assert "min_tokens must be less than or equal to max_tokens=2, got 16" in timeline.error.message
    assert classify(timeline) is Outcome.REFUSED_OTHER


async def test_server_still_answers_when_the_edge_was_tried(vllm: VllmEngine):
    assert await vllm.alive()
