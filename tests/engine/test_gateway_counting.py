"""The GGUF's own tokenizer and template against the embedded llama.cpp, which reads the same file."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from longproof.domain.deployment import EngineKind
from longproof.domain.request import Route
from longproof.engines.link import Link
from longproof.gateway.count_check import check_counting
from longproof.gateway.count_shape import Shape
from longproof.gateway.counting import ModelCounting
from longproof.gateway.engine_count import EngineCount
from longproof.gateway.local_count import LocalCount
from longproof.gateway.model_tokenizer import load_model_tokenizer
from longproof.gateway.text_memory import TextMemory

pytestmark = pytest.mark.engine
TEXTS = (
    "don't stop: 12345 Größe naïve 東京 😀\r\n\r\n\t  def f(x):\n\n\n    return  x  # it's IT'S",
    "<|im_start|>user\n<|im_end|>   <|endoftext|> \u00a0\u2003x\u0301y\u200d",
    " " * 40 + "\n" * 30 + "a" * 300 + "=" * 90 + "\x00\x7f",
)


@pytest.fixture
async def link(embedded_url: str) -> AsyncIterator[Link]:
    found = Link(embedded_url)
    yield found
    await found.aclose()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as found:
        yield found


async def test_every_shape_is_trusted_when_the_embedded_engine_reads_the_same_file(
    link: Link, demo_model: Path, pool: ThreadPoolExecutor
) -> None:
    engine = EngineCount(link, EngineKind.LLAMACPP, "demo")
    local = LocalCount(load_model_tokenizer(demo_model), TextMemory())
    counting = ModelCounting(model="demo", block_tokens=16, local=local, engine=engine)
    check = await check_counting(counting, pool)
    assert check.trusted == tuple(Shape)
    for text in TEXTS:
        for route, fields in (
            (Route.COMPLETIONS, {"prompt": text}),
            (Route.CHAT, {"messages": [{"role": "user", "content": text}]}),
        ):
            assert local.ids(route, fields) == await engine.ids(route, fields), text
