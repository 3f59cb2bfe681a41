"""The SGLang adapter against documented responses (tests/engines/sglang_0_5_23), not a live server."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from longproof.domain.events import EndedBy, TopLogprobs, Usage
from longproof.domain.measure import Measured, Provenance, Unknown, value_or_none
from longproof.domain.outcome import Outcome, classify
from longproof.domain.request import ChatMessage, ChatPrompt, CountSource, GenerationRequest, IdsPrompt, TextPrompt
from longproof.engines.registry import connect
from longproof.engines.sglang import SglangEngine
from longproof.errors import EngineProtocolError
from longproof.testing.scripted_http import Received, Reply, ScriptedHttp

DOCUMENTED = Path(__file__).parent / "sglang_0_5_23"
HI = ChatPrompt(messages=(ChatMessage(role="user", content="Hi"),))


def documented(name: str) -> object:
    return json.loads((DOCUMENTED / name).read_text())


def tokenize(request: Received) -> Reply:
    """One token per character; a chat adds four around each message and three at the end, text adds one BOS."""
    asked = request.json()
    if "messages" in asked:
        count = sum(4 + len(message["content"]) for message in asked["messages"]) + 3
    else:
        count = len(asked["prompt"]) + (1 if asked["add_special_tokens"] else 0)
    return Reply.json({"tokens": list(range(count)), "count": count, "max_model_len": 40960})


def stream(request: Received) -> Reply:
    return Reply.stream((DOCUMENTED / "chat_stream.txt").read_text().replace("RID", request.json()["rid"]).encode())


@pytest.fixture
async def server() -> AsyncIterator[ScriptedHttp]:
    routes = {
        "GET /v1/models": Reply.json(documented("models.json"), server="uvicorn"),
        "GET /server_info": Reply.json(documented("server_info.json")),
        "GET /model_info": Reply.json(documented("model_info.json")),
        "GET /metrics": Reply.text((DOCUMENTED / "metrics.txt").read_text()),
        "POST /tokenize": tokenize,
        "POST /detokenize": lambda request: Reply.json({"text": "x" * len(request.json()["tokens"])}),
        "POST /abort_request": Reply(),
        "POST /flush_cache": Reply.text("Cache flushed.\n"),
        "POST /v1/chat/completions": stream,
    }
    async with ScriptedHttp(routes) as running:
        yield running


@pytest.fixture
async def engine(server: ScriptedHttp) -> AsyncIterator[SglangEngine]:
    found = await connect(server.url)
    assert isinstance(found, SglangEngine)
    yield found
    await found.aclose()


async def test_deployment_is_read_from_the_documented_answers(engine: SglangEngine) -> None:
    found = await engine.introspect()
    assert found.known() == {
        "engine": "sglang",
        "engine_version": "0.5.23",
        "model": "qwen",
        "model_file": "Qwen/Qwen3-8B",
        "weight_dtype": "bfloat16",
        "configured_limit_tokens": "40960",
        "slots": "256",
        "kv_capacity_tokens": "486464",
        "kv_blocks": "7601",  # 486,464 / 64
        "block_size_tokens": "64",
        "kv_dtype": "fp8_e4m3",
        "kv_unified": "True",
        "prefix_caching": "True",
        "max_batched_tokens": "8192",
        "layout": "tp=4 pp=1 dp=2 ep=1 cp=1 dcp=1",
        "other.adapter": "written from the responses that SGLang 0.5.23's sources document; "
        "not yet run against a live server",
        "other.allow_auto_truncate": "false",
        "other.attention_backend": "fa3",
        "other.disaggregation_mode": "null",
        "other.enable_cache_report": "true",
        "other.enable_dp_attention": "true",
        "other.enable_hierarchical_cache": "false",
        "other.max_req_input_len": "40954",
        "other.mem_fraction_static": "0.85",
        "other.schedule_policy": "fcfs",
        "other.swa_full_tokens_ratio": "0.8",
    }
    assert isinstance(found.kv_capacity_tokens, Measured)
    assert "first data-parallel rank" in found.kv_capacity_tokens.source
    assert isinstance(found.other["adapter"], Measured)
    assert found.other["adapter"].provenance is Provenance.ASSUMED


async def test_deployment_keeps_no_secret_of_the_server(engine: SglangEngine) -> None:
    assert "do-not-keep" not in repr(await engine.introspect())


async def test_deployment_is_read_from_the_older_routes_when_the_new_ones_are_missing(
    server: ScriptedHttp, engine: SglangEngine
) -> None:
    server.routes["GET /get_server_info"] = server.routes.pop("GET /server_info")
    server.routes["GET /get_model_info"] = server.routes.pop("GET /model_info")
    found = await engine.introspect()
    assert isinstance(found.kv_capacity_tokens, Measured)
    assert found.kv_capacity_tokens.source.startswith("GET /get_server_info max_total_num_tokens")
    assert value_or_none(found.model_file) == "Qwen/Qwen3-8B"


async def test_setting_is_unknown_when_the_server_says_auto_or_off(server: ScriptedHttp, engine: SglangEngine) -> None:
    info = {
        "kv_cache_dtype": "auto",
        "chunked_prefill_size": -1,
        "disable_radix_cache": True,
        "max_running_requests": 8,
    }
    server.routes["GET /server_info"] = Reply.json(info)
    found = await engine.introspect()
    assert isinstance(found.kv_dtype, Unknown)
    assert "auto" in found.kv_dtype.reason
    assert isinstance(found.max_batched_tokens, Unknown)
    assert "chunked prefill is off" in found.max_batched_tokens.reason
    assert (value_or_none(found.prefix_caching), value_or_none(found.slots)) == (False, 8)
    assert isinstance(found.layout, Unknown)
    assert isinstance(found.kv_blocks, Unknown)


async def test_limit_is_unknown_when_neither_the_list_nor_the_info_has_it(
    server: ScriptedHttp, engine: SglangEngine
) -> None:
    server.routes["GET /v1/models"] = Reply.json({"data": [{"id": "qwen", "owned_by": "sglang"}]})
    assert isinstance((await engine.introspect()).configured_limit_tokens, Unknown)


async def test_sample_sums_requests_over_ranks_and_takes_the_fullest_pool(engine: SglangEngine) -> None:
    sample = await engine.sample()
    assert (sample.running, sample.waiting, sample.kv_usage) == (5, 4, 0.75)  # 3 + 2, 0 + 4
    assert sample.values['sglang:cached_tokens_total{engine_type="unified",model_name="qwen"}'] == 128.0


async def test_request_carries_the_dialect_s_fields(server: ScriptedHttp, engine: SglangEngine) -> None:
    timeline = await engine.send(GenerationRequest(prompt=HI, max_tokens=2, cold=True, top_logprobs=2))
    body = server.received[-1].json()
    assert body["rid"] == timeline.request_id == timeline.engine_request_id
    assert body["cache_salt"] == timeline.request_id
    assert (body["ignore_eos"], body["skip_special_tokens"], body["top_logprobs"]) == (True, False, 2)
    assert "min_tokens" not in body


async def test_stream_is_read_from_the_documented_chunks(engine: SglangEngine) -> None:
    timeline = await engine.send(GenerationRequest(prompt=HI, max_tokens=2, top_logprobs=2))
    assert timeline.ended_by is EndedBy.DONE
    assert (timeline.text, timeline.finish_reason, len(timeline.chunks)) == ("Hello!", "length", 2)
    assert timeline.usage == Usage(prompt_tokens=9, completion_tokens=2, cached_tokens=4, reasoning_tokens=0)
    assert timeline.first_logprobs == TopLogprobs(tokens=("Hello", "Hi"), logprobs=(-0.25, -1.75))
    assert timeline.malformed == ()


TOO_LONG = "The input (41000 tokens) is longer than the model's context length (40960 tokens)."
TOO_MUCH = (
    "Requested token count exceeds the model's maximum context length of 40960 tokens. You requested a total of 40970 "
    "tokens: 40950 tokens from the input messages and 20 tokens for the completion. Please reduce the number of tokens "
    "in the input messages or the completion to fit within the limit."
)


@pytest.mark.parametrize("message", [TOO_LONG, TOO_MUCH])
async def test_refusal_is_about_length_in_sglang_s_words(
    server: ScriptedHttp, engine: SglangEngine, message: str
) -> None:
    error = {"object": "error", "message": message, "type": "BadRequestError", "param": None, "code": 400}
    server.routes["POST /v1/chat/completions"] = Reply.json(error, status=400)
    assert classify(await engine.send(GenerationRequest(prompt=HI, max_tokens=2))) is Outcome.REFUSED_LENGTH
    server.routes["POST /v1/chat/completions"] = Reply.stream(f"data: {json.dumps({'error': error})}\n\n".encode())
    timeline = await engine.send(GenerationRequest(prompt=HI, max_tokens=2))
    assert classify(timeline) is Outcome.ERROR_IN_STREAM
    assert timeline.error is not None
    assert (timeline.error.message, timeline.error.code) == (message, "400")


async def test_chat_is_counted_by_the_server_with_its_template(server: ScriptedHttp, engine: SglangEngine) -> None:
    count = await engine.count(HI)
    # 4 around the message, 2 characters, 3 at the end
    assert (count.total, count.content, count.template, count.special) == (9, 2, 7, None)
    assert count.source is CountSource.SERVER
    assert server.received[-2].json() == {"model": "qwen", "messages": [{"role": "user", "content": "Hi"}]}


async def test_text_is_counted_with_the_special_tokens_that_the_server_adds(engine: SglangEngine) -> None:
    count = await engine.count(TextPrompt(text="abc"))
    assert (count.total, count.content, count.template, count.special) == (4, 3, 1, 1)
    assert (await engine.count(IdsPrompt(ids=(5, 6)))).source is CountSource.IDS


async def test_text_and_ids_are_turned_into_each_other(server: ScriptedHttp, engine: SglangEngine) -> None:
    assert await engine.tokenize("ab") == [0, 1]
    assert await engine.detokenize([4, 5, 6]) == "xxx"
    assert server.received[-1].json() == {"model": "qwen", "tokens": [4, 5, 6], "skip_special_tokens": False}
    assert await engine.render(HI.messages) == "x" * 9


async def test_counting_is_a_protocol_error_when_the_answer_lacks_tokens(
    server: ScriptedHttp, engine: SglangEngine
) -> None:
    server.routes["POST /tokenize"] = Reply.json({"tokens": ["a"]})
    server.routes["POST /detokenize"] = Reply.json({})
    for failing in (engine.tokenize("a"), engine.count(HI), engine.detokenize([1])):
        with pytest.raises(EngineProtocolError):
            await failing


async def test_abort_and_flush_say_whether_the_server_took_the_order(
    server: ScriptedHttp, engine: SglangEngine
) -> None:
    assert engine.capabilities.aborts
    assert await engine.abort("rid-1")
    assert server.received[-1].json() == {"rid": "rid-1"}
    assert await engine.flush_cache()
    for path in ("abort_request", "flush_cache"):
        server.routes[f"POST /{path}"] = Reply.json({"error": "admin key"}, status=403)
    assert not await engine.abort("rid-1")
    assert not await engine.flush_cache()
