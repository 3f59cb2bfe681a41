"""Metrics are sampled on the side: on a beat, only what is wanted, and a failed scrape is counted and no more."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from longproof.asking.sampler import WATCHED, sampling
from longproof.domain.events import EngineSample
from longproof.engines.link import Link
from longproof.engines.llamacpp import LlamaCppEngine
from longproof.engines.metrics_text import names
from longproof.engines.openai import OpenAIEngine
from longproof.engines.registry import connect
from longproof.engines.vllm import VllmEngine
from longproof.testing.behaviour import Behaviour
from longproof.testing.dialects import LLAMACPP, VLLM
from longproof.testing.lying_engine import lying_engine
from longproof.testing.scripted_http import Received, Reply, ScriptedHttp

GAUGES = "vllm:num_requests_running 1\nvllm:num_requests_waiting 2\nvllm:kv_cache_usage_perc 0.5\n"
REST = "vllm:other 1\nprocess_resident_memory_bytes 7e9\n" + "".join(
    f'vllm:time_bucket{{le="{border}"}} {border}\n' for border in range(100)
)


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - the server counts, it does not announce
            await asyncio.sleep(0.005)


async def test_samples_come_in_order_and_once_when_they_are_taken() -> None:
    async with ScriptedHttp({"GET /metrics": Reply.text(GAUGES + REST)}) as server:
        engine = VllmEngine(Link(server.url), model="m")
        async with sampling(engine, 0.01) as sampler:
            await _until(lambda: len(server.received) >= 3)
            first = sampler.take()
            seen = len(server.received)
            await _until(lambda: len(server.received) >= seen + 3)
        both = [*first, *sampler.take()]
        after = len(server.received)
        await asyncio.sleep(0.05)
        assert len(server.received) == after  # it stops with its context
        assert sampler.take() == ()
        assert sampler.take_failed() == 0
        assert [sample.at_ns for sample in both] == sorted({sample.at_ns for sample in both})
        assert len(both) in (after, after - 1)  # the last may have been under way
        sample: EngineSample = both[0]
        assert (sample.running, sample.waiting, sample.kv_usage) == (1, 2, 0.5)
        assert sample.values["process_resident_memory_bytes"] == 7e9
        assert "vllm:other" not in sample.values
        await engine.aclose()


async def test_all_that_the_dialect_keeps_is_sampled_when_nothing_is_named() -> None:
    async with ScriptedHttp({"GET /metrics": Reply.text(GAUGES + REST)}) as server:
        engine = VllmEngine(Link(server.url), model="m")
        async with sampling(engine, 5.0, None) as sampler:
            taken: list[EngineSample] = []

            def came() -> bool:
                taken.extend(sampler.take())
                return bool(taken)

            await _until(came)
        (sample,) = taken
        assert names(sample.values) == {
            "vllm:num_requests_running",
            "vllm:num_requests_waiting",
            "vllm:kv_cache_usage_perc",
            "vllm:other",
        }
        await engine.aclose()


async def test_failed_scrapes_are_counted_and_sampling_goes_on() -> None:
    def answer(request: Received) -> Reply:
        number = len(server.received)
        return Reply(reset="now") if number <= 4 else Reply.text("", status=500) if number == 5 else Reply.text(GAUGES)

    async with ScriptedHttp({"GET /metrics": answer}) as server:
        engine = VllmEngine(Link(server.url), model="m")
        async with sampling(engine, 0.01) as sampler:
            await _until(lambda: len(server.received) >= 7)
        # a call is sent a second time when its connection breaks: 4 resets are 2 failed scrapes, the 500 is the third
        assert sampler.take_failed() == 3
        assert sampler.take_failed() == 0
        assert sampler.take()
        await engine.aclose()


async def test_slow_server_is_not_asked_again_before_it_has_answered() -> None:
    under_way, most = 0, 0

    class Slow(VllmEngine):
        async def sample(self, *, wanted: frozenset[str] | None = None) -> EngineSample:
            nonlocal under_way, most
            under_way += 1
            most = max(most, under_way)
            await asyncio.sleep(0.05)
            under_way -= 1
            return EngineSample(at_ns=0)

    engine = Slow(Link("http://127.0.0.1:9"), model="m")
    async with sampling(engine, 0.01) as sampler:
        await asyncio.sleep(0.3)
    assert most == 1
    assert sampler.take()
    await engine.aclose()


async def test_mistake_of_ours_is_not_a_failed_scrape() -> None:
    class Wrong(VllmEngine):
        async def sample(self, *, wanted: frozenset[str] | None = None) -> EngineSample:
            raise ZeroDivisionError

    engine = Wrong(Link("http://127.0.0.1:9"), model="m")
    with pytest.raises(ZeroDivisionError):
        async with sampling(engine, 0.01):
            await asyncio.sleep(0.05)
    await engine.aclose()


async def test_nothing_is_asked_of_a_server_without_metrics() -> None:
    async with ScriptedHttp({}) as server:
        engine = OpenAIEngine(Link(server.url), model="m")
        async with sampling(engine, 0.01) as sampler:
            await asyncio.sleep(0.05)
        assert (server.received, sampler.take(), sampler.take_failed()) == ([], (), 0)
        await engine.aclose()


@pytest.mark.parametrize("dialect", [VLLM, LLAMACPP])
async def test_every_engine_s_own_gauges_are_among_the_watched(dialect: Behaviour) -> None:
    async with lying_engine(Behaviour(dialect=dialect)) as url:
        engine = await connect(url)
        whole = await engine.sample()
        watched = await engine.sample(wanted=WATCHED)
        assert (watched.running, watched.waiting, watched.kv_usage) == (whole.running, whole.waiting, whole.kv_usage)
        assert watched.running == 0
        if isinstance(engine, LlamaCppEngine):
            assert "slots:is_processing" in names(watched.values)
        await engine.aclose()
