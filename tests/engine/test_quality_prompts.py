"""Haystacks of exact lengths on the real llama.cpp: what was counted is what `usage` reports."""

from __future__ import annotations

from typing import Any

import pytest

from longproof.domain.request import GenerationRequest, Route
from longproof.engines.registry import connect
from longproof.quality.corpora.opening import open_corpus
from longproof.quality.haystack import tokenize_corpus
from longproof.quality.item import Item, Needle
from longproof.quality.prover import Prover, length_check

pytestmark = pytest.mark.engine


@pytest.mark.parametrize(
    ("route", "lengths"), [(Route.CHAT, (130, 171, 256, 333, 511)), (Route.COMPLETIONS, (99, 287))]
)
async def test_haystacks_are_used_as_counted_when_lengths_are_odd(
    embedded_engine: Any, route: Route, lengths: tuple[int, ...]
) -> None:
    server = await embedded_engine(context_tokens=512, slots=1)
    engine = await connect(server.url)
    corpus = await tokenize_corpus(engine, open_corpus(None, kind="prose", seed=3, tokens=512), route=route)
    prover = Prover(engine, route=route)
    needles = (Needle(text="The passcode for Fjord is 711097.", depth=0.3),)
    question = "What is the passcode for Fjord? Answer with the number only."
    item = Item(
        family="literal",
        index=0,
        seed="0/literal/0",
        needles=needles,
        question=question,
        answers=("711097",),
        candidates=("711097",),
    )
    checked = {}
    for length in lengths:
        built = await prover.item(item, corpus, length, nonce="day eye lot air new cup")
        timeline = await engine.send(GenerationRequest(prompt=built.prompt, max_tokens=1, cold=True))
        assert timeline.usage is not None, timeline
        assert abs(built.count.total - length) <= 1
        checked[length] = length_check(built.count, timeline.usage.prompt_tokens)
    await engine.aclose()
    assert all(check.proven for check in checked.values()), checked
