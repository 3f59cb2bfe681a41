"""Cold and warm, exact output, logprobs, the engine's own clock, and ending a request early."""

from __future__ import annotations

import asyncio

import pytest

from longproof.domain.engine_metrics import engine_cached_tokens, engine_ttft_ns
from longproof.domain.events import ContentChunk, EngineSample, RequestTimeline
from longproof.domain.outcome import Outcome, classify
from longproof.domain.request import ChatMessage, ChatPrompt, GenerationRequest, IdsPrompt, Prompt
from longproof.engines.link import Link
from longproof.engines.vllm import VllmEngine

HI = ChatPrompt(messages=(ChatMessage(role="user", content="Hi"),))
IDLE_DEADLINE_S = 30.0


@pytest.fixture
def thousand(word_ids: list[int]) -> IdsPrompt:
    return IdsPrompt(ids=tuple(word_ids[i % len(word_ids)] for i in range(1_000)))


async def until_idle(engine: VllmEngine) -> EngineSample:
    """The first sample without running or waiting requests; gauges are one engine step old."""
    async with asyncio.timeout(IDLE_DEADLINE_S):
        while True:
            sample = await engine.sample()
            if sample.running == 0 and sample.waiting == 0:
                return sample
            await asyncio.sleep(0.05)


async def alone(
    engine: VllmEngine, prompt: Prompt, *, cold: bool, max_tokens: int = 8
) -> tuple[RequestTimeline, EngineSample, EngineSample]:
    """One request on an idle server, with the engine's metrics before and after it."""
    before = await until_idle(engine)
    timeline = await engine.send(GenerationRequest(prompt=prompt, max_tokens=max_tokens, cold=cold))
    return timeline, before, await until_idle(engine)


async def test_client_and_engine_agree_on_ttft_when_the_server_is_idle(vllm: VllmEngine, thousand: IdsPrompt):
    off_ns: list[float] = []
    for _ in range(5):
        timeline, before, after = await alone(vllm, thousand, cold=True)
        engine_ns = engine_ttft_ns(before, after)
        assert engine_ns is not None
        assert timeline.ttft_ns is not None
        off_ns.append(abs(timeline.ttft_ns - engine_ns) - 0.05 * engine_ns)
    # 5 % + 5 ms in the best of five: whatever else the machine does comes between the two clocks and only adds
    assert min(off_ns) <= 5_000_000, off_ns


async def test_nothing_is_cached_when_every_request_is_cold(vllm: VllmEngine, thousand: IdsPrompt):
    for _ in range(2):
        timeline, before, after = await alone(vllm, thousand, cold=True)
        assert timeline.usage is not None
        assert timeline.usage.cached_tokens == 0
        assert engine_cached_tokens(before, after) == 0


async def test_whole_blocks_are_cached_when_the_same_prompt_comes_again(vllm: VllmEngine, thousand: IdsPrompt):
    await alone(vllm, thousand, cold=False)
    timeline, before, after = await alone(vllm, thousand, cold=False)
    assert timeline.usage is not None
    # the last token is always computed: floor(999 / 128) = 7 blocks of 128
    assert timeline.usage.cached_tokens == 896
    assert engine_cached_tokens(before, after) == 896


async def test_output_is_exact_when_the_model_would_have_stopped(vllm: VllmEngine):
    stops = await vllm.send(GenerationRequest(prompt=HI, max_tokens=64, exact_output=False))
    assert stops.finish_reason == "stop"
    assert stops.usage is not None
    assert stops.usage.completion_tokens is not None
    assert stops.usage.completion_tokens < 64
    goes_on = await vllm.send(GenerationRequest(prompt=HI, max_tokens=64))
    assert classify(goes_on) is Outcome.COMPLETED
    assert goes_on.usage is not None
    assert goes_on.usage.completion_tokens == 64
    assert "<|im_end|>" in goes_on.text  # where it would have stopped


@pytest.mark.parametrize("prompt", [HI, IdsPrompt(ids=(1, 4093, 198))], ids=["chat", "completions"])
async def test_first_logprobs_are_the_most_likely_when_they_are_asked_for(vllm: VllmEngine, prompt: Prompt):
    timeline = await vllm.send(GenerationRequest(prompt=prompt, max_tokens=2, top_logprobs=3))
    found = timeline.first_logprobs
    assert found is not None
    assert len(found.tokens) == 3
    assert timeline.text.startswith(found.tokens[0])  # temperature 0 takes the likeliest
    assert list(found.logprobs) == sorted(found.logprobs, reverse=True)
    assert all(value <= 0 for value in found.logprobs)


async def test_engine_knows_the_request_under_our_id_when_it_answers(vllm: VllmEngine):
    chat = await vllm.send(GenerationRequest(prompt=HI, max_tokens=1))
    completion = await vllm.send(GenerationRequest(prompt=IdsPrompt(ids=(1, 2)), max_tokens=1))
    assert chat.engine_request_id == f"chatcmpl-{chat.request_id}"
    assert completion.engine_request_id == f"cmpl-{completion.request_id}"


async def test_engine_lets_go_when_we_hang_up_in_decode(vllm: VllmEngine):
    busy: list[int | None] = []
    chunks = 0

    def three_chunks(chunk: ContentChunk, text: str) -> bool:
        nonlocal chunks
        chunks += 1
        return chunks < 3 or 1 not in busy  # the gauge is a step old, and asked for beside

    async def watch() -> None:
        while True:
            busy.append((await vllm.sample()).running)
            await asyncio.sleep(0.02)

    await until_idle(vllm)
    watching = asyncio.create_task(watch())
    timeline = await vllm.send(GenerationRequest(prompt=HI, max_tokens=4_000), on_content=three_chunks)
    watching.cancel()
    assert classify(timeline) is Outcome.CANCELLED
    assert len(timeline.chunks) >= 3
    assert 1 in busy  # the gauge does rise: idle afterwards means something
    idle = await until_idle(vllm)
    assert (idle.running, idle.kv_usage) == (0, 0.0)


async def test_engine_lets_go_when_we_hang_up_in_prefill(vllm: VllmEngine, word_ids: list[int]):
    await until_idle(vllm)
    prompt = IdsPrompt(ids=tuple(word_ids[i % len(word_ids)] for i in range(6_000)))
    timeline = await vllm.send(GenerationRequest(prompt=prompt, max_tokens=8, cold=True, timeout_s=0.5))
    assert classify(timeline) is Outcome.HUNG  # no first token before our timeout
    idle = await until_idle(vllm)
    assert (idle.running, idle.kv_usage) == (0, 0.0)
    assert await vllm.alive()


class Remembering(VllmEngine):
    """Keeps the id of the request in flight: what a gateway does that means to abort."""

    in_flight = ""

    def request_headers(self, request_id: str):
        self.in_flight = request_id
        return super().request_headers(request_id)


@pytest.mark.parametrize(("prompt", "prefix"), [(HI, "chatcmpl"), (IdsPrompt(ids=(1, 2, 3)), "cmpl")])
async def test_request_ends_as_aborted_when_the_engine_is_told_to(vllm: VllmEngine, prompt: Prompt, prefix: str):
    started = asyncio.Event()

    def note(chunk: ContentChunk, text: str) -> None:
        started.set()

    engine = Remembering(Link(vllm.url), model=vllm.model)
    sending = asyncio.create_task(engine.send(GenerationRequest(prompt=prompt, max_tokens=4_000), on_content=note))
    await started.wait()
    assert await engine.abort(f"{prefix}-{engine.in_flight}") is True
    timeline = await sending
    await engine.aclose()
    assert timeline.finish_reason == "abort"
    assert classify(timeline) is Outcome.ABORTED
    assert (await until_idle(vllm)).kv_usage == 0.0


async def test_abort_is_offered_when_the_server_is_in_developer_mode(vllm: VllmEngine):
    assert vllm.capabilities.aborts is False
    await vllm.introspect()
    assert vllm.capabilities.aborts is True
