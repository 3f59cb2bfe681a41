"""The gateway's counting and its block index against a real vLLM."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

from longproof.clock import SystemClock
from longproof.domain.deployment import EngineKind
from longproof.domain.kv_event import KvEvent, KvStored
from longproof.domain.request import Route
from longproof.engines.link import Link
from longproof.engines.vllm import VllmEngine
from longproof.gateway.count_check import check_counting
from longproof.gateway.count_shape import Shape
from longproof.gateway.counting import FleetCounting, ModelCounting
from longproof.gateway.engine_count import EngineCount
from longproof.gateway.index_check import CheckRules, Probed
from longproof.gateway.index_health import IndexHealth, IndexState
from longproof.gateway.kv_stream import KvSource
from longproof.gateway.local_count import LocalCount
from longproof.gateway.model_tokenizer import load_model_tokenizer
from longproof.gateway.text_memory import TextMemory
from longproof.gateway.watch import Watch, Watched, WatchRules
from longproof.policy.hashing import block_names

BLOCK = 128
"""vLLM's default on CPUs."""
TEXTS = (
    "don't stop: 12345 Größe naïve 東京 😀\r\n\r\n\t  def f(x):\n\n\n    return  x  # it's IT'S",
    "<|im_start|>user\n<|im_end|>   <|endoftext|> \u00a0\u2003x\u0301y\u200d",
)


class Index:
    """A controller that only keeps blocks."""

    def __init__(self) -> None:
        self.blocks: set[int] = set()
        self.usage: float | None = None

    def on_sample(self, replica: str, sample: object, now_ns: int) -> list[object]:
        self.usage = sample.kv_usage  # type: ignore[attr-defined]
        return []

    def on_kv_event(self, replica: str, event: KvEvent, now_ns: int) -> None:
        if isinstance(event, KvStored):
            self.blocks |= set(event.blocks)

    def on_replica(self, replica: str, state: object, now_ns: int) -> list[object]:
        return []


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(120):
        while not condition():  # noqa: ASYNC110 - what is waited for happens in threads and in the engine
            await asyncio.sleep(0.02)


def counting_of(server: Any, link: Link) -> ModelCounting:
    local = LocalCount(load_model_tokenizer(server.model_dir), TextMemory())
    engine = EngineCount(link, EngineKind.VLLM, server.model)
    return ModelCounting(model=server.model, block_tokens=BLOCK, local=local, engine=engine)


@asynccontextmanager
async def watching(server: Any, vllm: VllmEngine, **source: object) -> AsyncIterator[tuple[Watch, Index, Link]]:
    index, link = Index(), Link(server.url)
    counting = counting_of(server, link)
    with ThreadPoolExecutor(1) as pool:
        await check_counting(counting, pool)
    fleet = FleetCounting({server.model: counting})
    settings = {"endpoint": server.kv_events, "block_tokens": BLOCK, "engine_block_tokens": BLOCK, **source}
    watched = Watched(
        name="a",
        engine=vllm,
        connect=lambda: asyncio.sleep(0, vllm),
        sources=(KvSource(replica="a", **settings),),  # type: ignore[arg-type]
        probed=lambda states: Probed(replica="a", model=server.model, link=link, block_tokens=BLOCK, states=states),
    )
    rules = WatchRules(check=CheckRules(count=fleet.count))
    watch = Watch([watched], index, lambda _: None, SystemClock(), rules)  # type: ignore[arg-type]
    watch.start()
    try:
        yield watch, index, link
    finally:
        await watch.close()
        fleet.close()
        await link.aclose()


async def test_every_shape_is_trusted_when_vllm_reads_the_same_files(vllm_server: Any) -> None:
    link = Link(vllm_server.url)
    counting = counting_of(vllm_server, link)
    assert counting.local is not None
    assert counting.engine is not None
    with ThreadPoolExecutor(1) as pool:
        check = await check_counting(counting, pool)
    assert check.trusted == tuple(Shape), check.reasons
    for text in TEXTS:
        for route, fields in (
            (Route.COMPLETIONS, {"prompt": text}),
            (Route.CHAT, {"messages": [{"role": "user", "content": text}]}),
        ):
            assert counting.local.ids(route, fields) == await counting.engine.ids(route, fields), text
    await link.aclose()


async def test_a_prompts_blocks_are_known_by_our_names_when_vllm_has_stored_them(
    vllm_server: Any, vllm: VllmEngine, word_ids: list[int]
) -> None:
    async with watching(vllm_server, vllm, replay=vllm_server.kv_replay) as (watch, index, link):
        await until(lambda: watch.index_health()[0].state is not IndexState.CHECKING)
        assert watch.index_health() == (IndexHealth(replica="a", state=IndexState.OK),)
        ids = (word_ids * 20)[:300]
        for _ in range(2):
            await link.post("/v1/completions", {"model": vllm_server.model, "prompt": ids, "max_tokens": 1})
        # 300 tokens are two whole blocks of 128
        wanted = set(block_names(ids, block_tokens=BLOCK))
        assert len(wanted) == 2
        await until(lambda: wanted <= index.blocks)
        salted = {"model": vllm_server.model, "prompt": ids, "max_tokens": 1, "cache_salt": "tenant"}
        await link.post("/v1/completions", salted)
        await until(lambda: set(block_names(ids, block_tokens=BLOCK, salt="tenant")) <= index.blocks)
        figures = watch.feed.states[0].translator.figures  # type: ignore[union-attr]
        assert (figures.orphans, figures.conflicts, figures.unread, figures.unfit) == (0, 0, 0, 0)
        await until(lambda: index.usage is not None)


async def test_degraded_by_topic_when_vllm_publishes_under_none(vllm_server: Any, vllm: VllmEngine) -> None:
    async with watching(vllm_server, vllm, topic="kv@a") as (watch, _, _):
        await until(lambda: watch.index_health()[0].state is IndexState.DEGRADED)
        assert watch.index_health()[0].reason == "events come under the topic '', not under 'kv@a' (kv_topic)"
