"""Two servers as one engine: the fake pair hands KV on as vLLM's NixlConnector does, and fails where it is told to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from longproof.domain.events import EndedBy
from longproof.domain.measure import Measured
from longproof.domain.outcome import Outcome, classify
from longproof.domain.request import ChatMessage, ChatPrompt, GenerationRequest, IdsPrompt, TextPrompt
from longproof.engines.openai import OpenAIEngine
from longproof.engines.pd import PdEngine
from longproof.engines.pd_handover import BOOTSTRAP_ERROR, DECODE_ERROR, DECODE_TTFT_NS, HANDOVER_NS, PREFILL_NS
from longproof.engines.registry import connect
from longproof.engines.request_body import Series
from longproof.errors import UsageError
from longproof.testing.behaviour import Behaviour
from longproof.testing.dialects import VLLM
from longproof.testing.engine_log import Ending
from longproof.testing.lies import Refuse, SlowPrefill
from longproof.testing.lies_of_load import PdBootstrapFail, PdTransferSlow
from longproof.testing.lying_engine import lying_engine
from longproof.testing.pd_pair import PdPair

SIDE = Behaviour(dialect=VLLM, window_tokens=4096)


def asked(tokens: int = 400, **changes: object) -> GenerationRequest:
    prompt = IdsPrompt(ids=tuple(range(100, 100 + tokens)))
    fields: dict[str, object] = {"max_tokens": 8, "prompt_tokens": tokens, "timeout_s": 20.0, "cold": True, **changes}
    return GenerationRequest(prompt=prompt, **fields)  # type: ignore[arg-type] - passed through


@asynccontextmanager
async def engine(pair: PdPair) -> AsyncIterator[PdEngine]:
    async with pair as (prefill, decode):
        one, two = await connect(prefill), await connect(decode)
        assert isinstance(one, OpenAIEngine)
        assert isinstance(two, OpenAIEngine)
        both = PdEngine(one, two)
        yield both
        await both.aclose()


async def test_the_decode_side_computes_nothing_when_a_request_goes_through_both() -> None:
    pair = PdPair(SIDE, SIDE)
    async with engine(pair) as both:
        timeline = await both.send(asked())
        alone = await both.alone(asked())
        sample = await both.sample()
    assert classify(timeline) is Outcome.COMPLETED
    assert timeline.usage is not None
    assert (timeline.usage.prompt_tokens, timeline.usage.completion_tokens, timeline.usage.cached_tokens) == (400, 8, 0)
    assert timeline.text == alone.text
    assert pair.prefill.log.requests[0].output_tokens == 1
    assert pair.decode.log.requests[0].transferred_tokens == 400
    parts = [timeline.engine_timings[name] for name in (PREFILL_NS, HANDOVER_NS, DECODE_TTFT_NS)]
    assert timeline.ttft_ns == pytest.approx(sum(parts))
    assert sample.values['prefill.vllm:prompt_tokens_total{engine="0",model_name="fake-135m"}'] == 400
    assert sample.values['decode.vllm:external_prefix_cache_hits_total{engine="0",model_name="fake-135m"}'] == 400


async def test_a_series_of_prepared_requests_has_its_own_prompts_when_it_goes_through_both() -> None:
    """Of each only the opening differs; both sides read the prompt that the body has."""
    pair = PdPair(SIDE, SIDE)
    async with engine(pair) as both:
        for prompt, opening in (
            (asked().prompt, (100, 101)),
            (TextPrompt(text="one two three"), "one"),
            (ChatPrompt(messages=(ChatMessage(role="user", content="one two three"),)), "one"),
        ):
            series = Series(await both.prepare(replace(asked(), prompt=prompt)), opening)
            other = (7, 8) if isinstance(opening, tuple) else "seven"
            before = len(pair.prefill.log.requests)
            timeline = await both.send(series.prepared(other))
            assert classify(timeline) is Outcome.COMPLETED
            prefill, decode = pair.prefill.log.requests[before:], pair.decode.log.requests[before:]
            assert [list(side.read_ids) for side in prefill] == [list(side.read_ids) for side in decode]
            again = await both.send(replace(asked(), prompt=prompt))
            assert list(pair.prefill.log.requests[-1].read_ids) != list(prefill[0].read_ids)
            assert classify(again) is Outcome.COMPLETED


async def test_each_side_keeps_its_facts_when_the_pair_tells_of_itself() -> None:
    pair = PdPair(SIDE.but(kv_capacity_tokens=64_000), SIDE.but(kv_capacity_tokens=32_000))
    async with engine(pair) as both:
        deployment = await both.introspect()
    capacity, prefill = deployment.kv_capacity_tokens, deployment.other["prefill.kv_capacity_tokens"]
    assert isinstance(capacity, Measured)
    assert isinstance(prefill, Measured)
    assert (capacity.value, prefill.value) == (32_000, "64000")


async def test_two_models_are_no_pair_when_they_are_named() -> None:
    async with engine(PdPair(SIDE, SIDE.but(model="other"))) as both:
        with pytest.raises(UsageError, match="model"):
            await both.introspect()


async def test_the_decode_sides_failure_has_its_words_when_it_cannot_reach_the_kv() -> None:
    async with engine(PdPair(SIDE, SIDE.lying(PdBootstrapFail(after_s=0.01)))) as both:
        timeline = await both.send(asked())
    assert classify(timeline) is Outcome.ERROR_IN_STREAM
    assert timeline.error is not None
    assert timeline.error.type == DECODE_ERROR
    assert timeline.error.message.startswith("decode side (InternalServerError): ")
    assert PREFILL_NS in timeline.engine_timings


async def test_nothing_is_sent_to_the_decode_side_when_the_prefill_side_has_no_connector() -> None:
    plain, decode = lying_engine(SIDE), lying_engine(SIDE.but(kv_connector=True))
    async with plain as one, decode as two:
        prefill, other = await connect(one), await connect(two)
        assert isinstance(prefill, OpenAIEngine)
        assert isinstance(other, OpenAIEngine)
        both = PdEngine(prefill, other)
        timeline = await both.send(asked())
        await both.aclose()
    assert classify(timeline) is Outcome.REFUSED_OTHER
    assert timeline.error is not None
    assert timeline.error.type == BOOTSTRAP_ERROR
    assert not decode.log.requests


async def test_a_refusal_for_length_stays_one_when_the_prefill_side_gives_it() -> None:
    async with engine(PdPair(SIDE, SIDE)) as both:
        timeline = await both.send(asked(5_000))
    assert classify(timeline) is Outcome.REFUSED_LENGTH
    assert timeline.status == 400


async def test_a_busy_prefill_side_is_busy_when_it_says_so() -> None:
    async with engine(PdPair(SIDE.lying(Refuse(status=503)), SIDE)) as both:
        timeline = await both.send(asked())
    assert classify(timeline) is Outcome.REFUSED_BUSY


@pytest.mark.parametrize("where", ["prefill", "decode"])
async def test_time_runs_out_on_the_side_that_takes_it_when_one_is_slow(where: str) -> None:
    slow = SIDE.lying(SlowPrefill(delay_s=30.0)) if where == "prefill" else SIDE.lying(PdTransferSlow(least_s=30.0))
    pair = PdPair(slow, SIDE) if where == "prefill" else PdPair(SIDE, slow)
    async with engine(pair) as both:
        timeline = await both.send(asked(timeout_s=0.4 if where == "prefill" else 1.5))
    assert timeline.ended_by is EndedBy.TIMEOUT
    assert classify(timeline) is Outcome.HUNG
    assert (PREFILL_NS in timeline.engine_timings) is (where == "decode")


async def test_the_prefill_side_stops_when_we_leave_during_it() -> None:
    pair = PdPair(SIDE.lying(SlowPrefill(delay_s=60.0)), SIDE)
    leave = asyncio.Event()
    async with engine(pair) as both:
        sending = asyncio.create_task(both.send(asked(), leave=leave))
        while not pair.prefill.log.requests:  # noqa: ASYNC110 - the engine lives in another thread
            await asyncio.sleep(0.01)
        leave.set()
        timeline = await sending
        while pair.prefill.log.requests[0].ending is None:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.01)
    assert classify(timeline) is Outcome.CANCELLED
    assert pair.prefill.log.requests[0].ending is Ending.DISCONNECTED


async def test_it_is_unreachable_when_a_side_is_gone() -> None:
    pair = PdPair(SIDE, SIDE)
    async with engine(pair) as both:
        assert await both.alive()
        pair.prefill.crash()
        gone = await both.send(asked())
        assert not await both.alive()
    assert classify(gone) is Outcome.UNREACHABLE
    assert gone.transport_error is not None
    assert gone.transport_error.startswith("prefill side: ")
