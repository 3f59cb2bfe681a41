"""The llama.cpp adapter: the contract against the real embedded engine, and the rest against documented answers."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from longproof.domain.events import EndedBy
from longproof.domain.measure import Measured, Provenance, Unknown, value_or_none
from longproof.domain.outcome import Outcome, classify
from longproof.domain.request import ChatMessage, ChatPrompt, CountSource, GenerationRequest, IdsPrompt, TextPrompt
from longproof.engines.embedded import EmbeddedServer
from longproof.engines.llamacpp import LlamaCppEngine
from longproof.engines.registry import connect
from longproof.errors import EngineProtocolError
from longproof.testing.engine_contract import CONTRACT, Check
from longproof.testing.scripted_http import Answer, Reply, ScriptedHttp

StartEmbedded = Callable[..., Awaitable[EmbeddedServer]]


@pytest.fixture
async def engine(embedded_url: str) -> AsyncIterator[LlamaCppEngine]:
    found = await connect(embedded_url)
    assert isinstance(found, LlamaCppEngine)
    yield found
    await found.aclose()


def chat(text: str) -> ChatPrompt:
    return ChatPrompt(messages=(ChatMessage(role="user", content=text),))


# -- the real engine ---------------------------------------------------------------------------------------------------


@pytest.mark.engine
@pytest.mark.parametrize("check", CONTRACT, ids=lambda check: check.__name__)
async def test_adapter_keeps_the_contract(check: Check, engine: LlamaCppEngine) -> None:
    await check(engine)


@pytest.mark.engine
async def test_deployment_tells_what_one_slot_holds(engine: LlamaCppEngine) -> None:
    found = await engine.introspect()
    # the fixture serves one slot of 1,024 tokens; the model was trained for 8,192
    assert value_or_none(found.configured_limit_tokens) == 1024
    assert value_or_none(found.trained_limit_tokens) == 8192
    assert (value_or_none(found.slots), value_or_none(found.kv_capacity_tokens)) == (1, 1024)
    assert isinstance(found.kv_capacity_tokens, Measured)
    assert found.kv_capacity_tokens.provenance is Provenance.DERIVED
    assert value_or_none(found.weight_dtype) == "Q4_1"
    assert value_or_none(found.model_file) == "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert isinstance(found.kv_dtype, Unknown)
    assert isinstance(found.engine_version, Unknown)  # this build calls itself b0-unknown


@pytest.mark.engine
async def test_template_is_told_from_content_and_special_tokens(engine: LlamaCppEngine) -> None:
    # SmolLM2 puts its own system message before a lone user: <|im_start|> three times (system, user, assistant) and
    # <|im_end|> twice are 5 special tokens; "Hi" is one token of the 31
    count = await engine.count(chat("Hi"))
    assert (count.total, count.content, count.template, count.special) == (31, 1, 30, 5)
    assert count.source is CountSource.SERVER
    # a marker inside the content is the content's: the template still adds 5
    marked = await engine.count(chat("Hi <|im_end|>"))
    assert (marked.content, marked.special) == (3, 5)


@pytest.mark.engine
async def test_count_is_usage_for_random_text(engine: LlamaCppEngine) -> None:
    seed = 20261129
    print("seed", seed)
    rng = random.Random(seed)
    alphabet = "abc ABC 123 .,;:!?'\"\n\t()[]{}<|>_im_startend/é漢🙂\u200d"
    for _ in range(6):
        messages = [
            ChatMessage(role=role, content="".join(rng.choices(alphabet, k=rng.randint(0, 40))))
            for role in rng.choice((["user"], ["system", "user"], ["user", "assistant", "user"]))
        ]
        prompt = ChatPrompt(messages=tuple(messages))
        timeline = await engine.send(GenerationRequest(prompt=prompt, max_tokens=1))
        assert timeline.usage is not None
        assert (await engine.count(prompt)).total == timeline.usage.prompt_tokens, messages


@pytest.mark.engine
async def test_count_is_the_same_when_an_older_build_has_no_count_route(engine: LlamaCppEngine) -> None:
    prompt = chat("The quick brown fox <|im_end|> jumps")
    counted = await engine.count(prompt)
    engine.chat_path = "/v1/no-such-route"
    derived = await engine.count(prompt)
    assert (derived.total, derived.content, derived.special) == (counted.total, counted.content, counted.special)
    assert "apply-template" in derived.how


@pytest.mark.engine
async def test_timings_and_cached_tokens_tell_warm_from_cold(engine: LlamaCppEngine) -> None:
    ids = tuple(await engine.tokenize("one two three four five six seven eight " * 20))[:128]
    request = GenerationRequest(prompt=IdsPrompt(ids=ids), max_tokens=1, cold=True)
    cold = await engine.send(request)
    warm = await engine.send(GenerationRequest(prompt=IdsPrompt(ids=ids), max_tokens=1))
    assert cold.usage is not None
    assert warm.usage is not None
    assert (cold.usage.cached_tokens, cold.engine_timings["prompt_n"]) == (0, 128.0)
    # the last token is computed again, to have something to sample from
    assert (warm.usage.cached_tokens, warm.engine_timings["prompt_n"]) == (127, 1.0)


@pytest.mark.engine
async def test_output_is_short_when_the_window_ends_first(engine: LlamaCppEngine) -> None:
    ids = tuple(await engine.tokenize("and so on, " * 600))[:1020]
    timeline = await engine.send(GenerationRequest(prompt=IdsPrompt(ids=ids), max_tokens=16))
    # 1,024 - 1,020 = 4 tokens of room
    assert timeline.usage is not None
    assert timeline.usage.completion_tokens == 4
    assert classify(timeline) is Outcome.SHORT


@pytest.mark.engine
async def test_refusal_carries_the_server_s_numbers_when_the_prompt_is_too_long(engine: LlamaCppEngine) -> None:
    timeline = await engine.send(GenerationRequest(prompt=IdsPrompt(ids=(40,) * 1024), max_tokens=1))
    assert timeline.error is not None
    assert timeline.error.type == "exceed_context_size_error"
    assert timeline.error.fields == {"n_prompt_tokens": 1024, "n_ctx": 1024}


@pytest.mark.engine
async def test_sample_shows_the_running_request_and_its_slot(engine: LlamaCppEngine) -> None:
    started, sampled = asyncio.Event(), asyncio.Event()

    def listen(_chunk: object, _text: str) -> bool:
        started.set()
        return not sampled.is_set()

    request = GenerationRequest(prompt=chat("Count to one hundred."), max_tokens=400)
    task = asyncio.create_task(engine.send(request, on_content=listen))
    await started.wait()
    busy = await engine.sample()
    sampled.set()
    assert busy.running == 1
    assert busy.values['slots:is_processing{id="0"}'] == 1.0
    assert busy.values['slots:n_prompt_tokens{id="0"}'] > 30
    assert (await task).ended_by is EndedBy.CANCELLED
    assert await engine.alive()  # the slot is free again when this has answered
    idle = await engine.sample()
    assert (idle.running, idle.waiting, idle.kv_usage) == (0, 0, None)


@pytest.mark.engine
async def test_owned_engine_is_known_restarted_and_its_death_recorded(embedded_engine: StartEmbedded) -> None:
    server = await embedded_engine(context_tokens=512, slots=2, k_type="q8_0", v_type="q8_0")
    engine = await connect(server.url, owner=server.process, known=server.deployment)
    assert engine.capabilities.restarts
    found = await engine.introspect()
    # two slots of 512 with a pool each: only whoever started it knows that this makes 1,024
    assert value_or_none(found.kv_capacity_tokens) == 1024
    assert (value_or_none(found.kv_dtype), value_or_none(found.kv_unified)) == ("q8_0", False)
    assert isinstance(found.model_sha256, Measured)
    await engine.restart()
    assert await engine.alive()
    request = GenerationRequest(prompt=chat("Tell a long story."), max_tokens=400)
    timeline = await engine.send(request, on_content=lambda _chunk, _text: server.process.kill())
    assert timeline.ended_by is EndedBy.CUT
    assert len(timeline.chunks) >= 1
    assert classify(await engine.send(request)) is Outcome.UNREACHABLE
    assert not await engine.alive()
    await engine.aclose()
    assert not server.process.running


# -- documented answers ------------------------------------------------------------------------------------------------

MODELS: Answer = Reply.json(
    {"data": [{"id": "m", "owned_by": "llamacpp", "meta": {"n_ctx": 256, "n_ctx_train": 4096}}]}
)


def props(slots: int = 1, **fields: object) -> Reply:
    return Reply.json({"total_slots": slots, "default_generation_settings": {"n_ctx": 256}, **fields})


async def scripted(routes: dict[str, Answer], server: ScriptedHttp) -> LlamaCppEngine:
    server.routes.update({"GET /v1/models": MODELS, "GET /props": props(), **routes})
    found = await connect(server.url)
    assert isinstance(found, LlamaCppEngine)
    return found


async def test_capacity_is_unknown_when_several_slots_may_share_one_pool() -> None:
    async with ScriptedHttp({}) as server:
        engine = await scripted({"GET /props": props(4)}, server)
        found = await engine.introspect()
        await engine.aclose()
    assert isinstance(found.kv_capacity_tokens, Unknown)
    assert "hold 256 together" in found.kv_capacity_tokens.reason
    assert "1024 if not" in found.kv_capacity_tokens.reason  # 4 x 256
    assert value_or_none(found.slot_limit_tokens) == 256


@pytest.mark.parametrize(
    ("build", "version"), [("b9123-1a2b3c4", "b9123"), ("b0-unknown", None), ("x", None), ("", None)]
)
async def test_version_is_read_from_the_build_when_it_is_one(build: str, version: str | None) -> None:
    async with ScriptedHttp({}) as server:
        engine = await scripted({"GET /props": props(build_info=build)}, server)
        found = await engine.introspect()
        await engine.aclose()
    assert value_or_none(found.engine_version) == version


async def test_file_name_is_kept_without_the_path_it_lies_in() -> None:
    async with ScriptedHttp({}) as server:
        engine = await scripted({"GET /props": props(model_path="C:\\models\\a.gguf")}, server)
        assert value_or_none((await engine.introspect()).model_file) == "a.gguf"
        await engine.aclose()


async def test_deployment_has_what_v1_shows_when_a_proxy_hides_the_rest() -> None:
    async with ScriptedHttp({"GET /v1/models": MODELS}) as server:
        engine = await connect(server.url)
        found = await engine.introspect()
        await engine.aclose()
    assert (value_or_none(found.configured_limit_tokens), value_or_none(found.trained_limit_tokens)) == (256, 4096)
    assert isinstance(found.slots, Unknown)
    assert "not reachable" in found.slots.reason


async def test_sample_comes_from_slots_when_metrics_are_off() -> None:
    off = Reply.json({"error": {"message": "This server does not support metrics endpoint", "code": 501}}, status=501)
    slots = [{"id": 0, "is_processing": True, "n_ctx": 256}, {"id": 1, "is_processing": False, "n_ctx": 256}]
    async with ScriptedHttp({}) as server:
        engine = await scripted({"GET /metrics": off, "GET /slots": Reply.json(slots)}, server)
        sample = await engine.sample()
        assert (sample.running, sample.waiting) == (1, None)
        server.routes["GET /slots"] = off
        with pytest.raises(EngineProtocolError, match="--metrics, --slots"):
            await engine.sample()
        await engine.aclose()


async def test_counting_is_a_protocol_error_when_the_answers_lack_their_fields() -> None:
    empty = Reply.json({})
    paths = ("/tokenize", "/detokenize", "/apply-template", "/v1/chat/completions/input_tokens")
    async with ScriptedHttp({}) as server:
        engine = await scripted({f"POST {path}": empty for path in paths}, server)
        failing = (
            engine.tokenize("a"),
            engine.detokenize([1]),
            engine.render(()),
            engine.count(chat("a")),
            engine.count(TextPrompt(text="a")),
        )
        for call in failing:
            with pytest.raises(EngineProtocolError):
                await call
        await engine.aclose()


async def test_text_counts_the_special_tokens_that_the_tokenizer_adds() -> None:
    # a model whose tokenizer puts a BOS (1) first; SmolLM2 has none, so the server is scripted
    def tokenize(request: object) -> Reply:
        added = [1] if request.json()["add_special"] else []  # type: ignore[attr-defined]
        return Reply.json({"tokens": [*added, 7, 8, 9]})

    async with ScriptedHttp({}) as server:
        engine = await scripted({"POST /tokenize": tokenize}, server)
        count = await engine.count(TextPrompt(text="abc"))
        await engine.aclose()
    assert (count.total, count.content, count.template, count.special) == (4, 3, 1, 1)


CHATML = (
    "{%- for message in messages -%}\n"
    "  {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' -}}\n"
    "{%- endfor -%}\n{%- if add_generation_prompt -%}\n  {{- '<|im_start|>assistant\n' -}}\n{%- endif -%}"
)


@pytest.mark.parametrize(
    ("template", "marker_ids", "chat"),
    [
        (CHATML, [236820, 236909, 548], False),  # what /props shows for Gemma-3-270m (base), whose file has none
        (CHATML, [1], True),  # the model knows the marker: it was made for ChatML
        ("{{ messages[0].content }}", [236820, 236909, 548], True),  # a template of its own, without markers
    ],
)
async def test_chat_is_not_offered_when_the_model_has_no_template(
    template: str, marker_ids: list[int], chat: bool
) -> None:
    props = Reply.json({"chat_template": template, "default_generation_settings": {"n_ctx": 256}, "total_slots": 1})
    async with ScriptedHttp({}) as server:
        routes = {"GET /props": props, "POST /tokenize": Reply.json({"tokens": marker_ids})}
        engine = await scripted(routes, server)
        found = await engine.introspect()
        offered = engine.capabilities.chat
        await engine.aclose()
    assert offered is chat
    assert isinstance(found.chat_template_sha256, Measured if chat else Unknown)
