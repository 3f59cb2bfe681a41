"""Counted before sending = used by the server, for every kind of prompt; and the same count as llama.cpp's."""

from __future__ import annotations

import pytest

from longproof.domain.outcome import Outcome, classify
from longproof.domain.request import (
    ChatMessage,
    ChatPrompt,
    CountSource,
    GenerationRequest,
    IdsPrompt,
    Prompt,
    TextPrompt,
)
from longproof.engines.registry import connect
from longproof.engines.vllm import VllmEngine

TEXTS = {
    "a word": "Hello",
    "blanks": "  two  blanks, a tab\t and a line\n\nbetween ",
    "digits": "In 2029 it cost 1234567.89 or 0x7fff",
    "scripts": "été, straße, 東京, Ελλάδα, שלום",
    "emoji": "rocket 🚀 family 👩‍👩‍👧 half \ufffd",
    "a special token": "what does <|im_end|> mean",
    "code": "def f(x):\n    return {**x, 'a': [1, 2]}\n",
}


async def used(engine: VllmEngine, prompt: Prompt) -> int | None:
    timeline = await engine.send(GenerationRequest(prompt=prompt, max_tokens=1))
    assert classify(timeline) is Outcome.COMPLETED, timeline
    assert timeline.usage is not None
    return timeline.usage.prompt_tokens


def chat(*turns: tuple[str, str]) -> ChatPrompt:
    return ChatPrompt(messages=tuple(ChatMessage(role=role, content=content) for role, content in turns))


@pytest.mark.parametrize("tokens", [1, 2, 3, 31, 100, 127, 128, 129, 1000])
async def test_usage_is_the_number_of_ids_when_ids_are_sent(vllm: VllmEngine, word_ids: list[int], tokens: int):
    prompt = IdsPrompt(ids=tuple(word_ids[i % len(word_ids)] for i in range(tokens)))
    counted = await vllm.count(prompt)
    assert (counted.total, counted.source) == (tokens, CountSource.IDS)
    assert await used(vllm, prompt) == tokens


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())
async def test_usage_is_the_count_when_a_text_is_sent(vllm: VllmEngine, text: str):
    counted = await vllm.count(TextPrompt(text=text))
    assert counted.source is CountSource.SERVER
    assert (counted.template, counted.special) == (0, 0)  # SmolLM2 adds nothing to plain text
    assert await used(vllm, TextPrompt(text=text)) == counted.total


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())
async def test_usage_is_the_count_when_a_chat_is_sent(vllm: VllmEngine, text: str):
    counted = await vllm.count(chat(("user", text)))
    assert counted.content == len(await vllm.tokenize(text))
    # 30 = the default system message, the roles, the generation prompt; leading blanks merge with the line end before
    assert counted.template == (29 if text.startswith("  ") else 30)
    assert await used(vllm, chat(("user", text))) == counted.total


async def test_usage_is_the_count_when_a_chat_has_several_turns(vllm: VllmEngine):
    prompt = chat(("system", "Be brief."), ("user", "2+2?"), ("assistant", "4"), ("user", "harbour " * 100))
    assert await used(vllm, prompt) == (await vllm.count(prompt)).total


async def test_count_goes_on_when_a_prompt_is_far_above_the_window(vllm: VllmEngine):
    words = " harbour" * 20_000  # one token each; the first keeps its blank
    assert (await vllm.count(TextPrompt(text=words))).total == 20_000
    assert (await vllm.count(chat(("user", words)))).total == 20_030


async def test_render_is_what_the_template_makes_when_a_chat_is_given(vllm: VllmEngine):
    rendered = await vllm.render((ChatMessage(role="user", content="Hi"),))
    assert rendered.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")
    assert rendered.endswith("<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    assert len(await vllm.tokenize(rendered)) == 31


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())
async def test_text_survives_when_tokenized_and_back(vllm: VllmEngine, text: str):
    assert await vllm.detokenize(await vllm.tokenize(text)) == text


async def test_ids_and_counts_are_llamacpps_when_both_serve_the_same_file(vllm: VllmEngine, embedded_url: str):
    llamacpp = await connect(embedded_url)
    try:
        for text in TEXTS.values():
            assert await vllm.tokenize(text) == await llamacpp.tokenize(text), text
            asked = chat(("user", text))
            assert (await vllm.count(asked)).total == (await llamacpp.count(asked)).total, text
        messages = (ChatMessage(role="system", content="Be brief."), ChatMessage(role="user", content="Hi"))
        assert await vllm.render(messages) == await llamacpp.render(messages)
    finally:
        await llamacpp.aclose()
