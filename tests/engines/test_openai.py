"""The generic adapter: what it sends, what it can say of a server it knows nothing about."""

from __future__ import annotations

from typing import Any

import pytest

from longproof.domain.measure import Unknown, value_or_none
from longproof.domain.request import ChatMessage, ChatPrompt, GenerationRequest, IdsPrompt, Prompt, TextPrompt
from longproof.engines.link import Link, Refused
from longproof.engines.metrics_text import largest, metric_values, names, total
from longproof.engines.openai import OpenAIEngine
from longproof.errors import EngineProtocolError, EngineSilent, EngineUnreachable
from longproof.testing.scripted_http import Reply, ScriptedHttp

CHAT = ChatPrompt(messages=(ChatMessage(role="system", content="s"), ChatMessage(role="user", content="é")))
TOKEN = b'data: {"choices":[{"text":"a","finish_reason":"length"}]}\n\ndata: [DONE]\n\n'
LISTED = Reply.json({"data": [{"id": "m", "owned_by": "somebody"}]})


async def body_of(prompt: Prompt, **options: Any) -> dict[str, Any]:
    """What arrives at the server for a request."""
    path = "chat/completions" if isinstance(prompt, ChatPrompt) else "completions"
    async with ScriptedHttp({f"POST /v1/{path}": Reply.stream(TOKEN)}) as server:
        engine = OpenAIEngine(Link(server.url), model="m")
        await engine.send(GenerationRequest(prompt=prompt, max_tokens=5, **options))
        await engine.aclose()
        assert server.received[0].headers["content-type"] == "application/json"
        return server.received[0].json()


async def test_chat_goes_out_as_messages_with_usage_asked_for() -> None:
    assert await body_of(CHAT, seed=7) == {
        "model": "m",
        "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "é"}],
        "max_tokens": 5,
        "temperature": 0.0,
        "seed": 7,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


async def test_ids_and_text_go_out_as_the_prompt() -> None:
    assert (await body_of(IdsPrompt(ids=(1, 2, 3))))["prompt"] == [1, 2, 3]
    assert (await body_of(TextPrompt(text="x\ny")))["prompt"] == "x\ny"


async def test_logprobs_are_asked_for_in_the_words_of_each_route() -> None:
    chat = await body_of(CHAT, top_logprobs=3)
    assert (chat["logprobs"], chat["top_logprobs"]) == (True, 3)
    text = await body_of(TextPrompt(text="x"), top_logprobs=3)
    assert text["logprobs"] == 3
    assert "top_logprobs" not in text


async def test_extra_fields_win_over_ours() -> None:
    body = await body_of(CHAT, extra={"seed": 9, "priority": 1})
    assert (body["seed"], body["priority"]) == (9, 1)


async def test_plain_openai_gets_no_field_that_only_a_dialect_knows() -> None:
    plain = await body_of(CHAT, exact_output=False)
    assert await body_of(CHAT, exact_output=True, cold=True) == plain


@pytest.mark.parametrize(
    ("reply", "alive"),
    [
        (Reply.stream(TOKEN), True),
        (Reply.stream(b'data: {"choices":[],"usage":{"completion_tokens":1}}\n\ndata: [DONE]\n\n'), True),
        (Reply.stream(b"data: [DONE]\n\n"), False),
        (Reply.stream(b'data: {"error":"engine is dead"}\n\n'), False),
        (Reply.json({"error": "no"}, status=500), False),
        (Reply(reset="now"), False),
    ],
)
async def test_alive_means_a_token_came(reply: Reply, alive: bool) -> None:
    async with ScriptedHttp({"POST /v1/chat/completions": reply, "GET /health": Reply.text("ok")}) as server:
        engine = OpenAIEngine(Link(server.url), model="m")
        assert await engine.alive() is alive
        await engine.aclose()


async def test_deployment_says_what_it_cannot_know() -> None:
    async with ScriptedHttp({"GET /v1/models": LISTED}) as server:
        engine = OpenAIEngine(Link(server.url), model="m")
        deployment = await engine.introspect()
        await engine.aclose()
    assert deployment.known() == {"engine": "openai", "model": "m", "other.owned_by": "somebody"}
    assert isinstance(deployment.kv_capacity_tokens, Unknown)
    assert "does not report" in deployment.kv_capacity_tokens.reason
    assert value_or_none(deployment.configured_limit_tokens) is None


async def test_sample_reads_metrics_where_there_are_some() -> None:
    async with ScriptedHttp({"GET /metrics": Reply.text('# TYPE a gauge\na{x="1"} 2\n')}) as server:
        engine = OpenAIEngine(Link(server.url), model="m")
        sample = await engine.sample()
        assert sample.values == {'a{x="1"}': 2.0}
        assert (sample.running, sample.kv_usage) == (None, None)
        server.routes["GET /metrics"] = Reply.text("<html>no metrics</html>")
        with pytest.raises(EngineProtocolError, match="Prometheus"):
            await engine.sample()
        del server.routes["GET /metrics"]
        with pytest.raises(Refused) as refused:
            await engine.sample()
        assert refused.value.absent
        await engine.aclose()


async def test_abort_is_false_when_there_is_no_such_route() -> None:
    engine = OpenAIEngine(Link("localhost:1"), model="m")
    assert not await engine.abort("chatcmpl-1")
    await engine.aclose()


# -- the link ----------------------------------------------------------------------------------------------------------


async def test_calls_share_a_connection_and_generations_do_not() -> None:
    routes = {"GET /v1/models": LISTED, "POST /v1/completions": Reply.stream(TOKEN)}
    async with ScriptedHttp(routes) as server:
        engine = OpenAIEngine(Link(server.url), model="m")
        await engine.served()
        await engine.served()
        assert server.connections == 1
        for _ in range(2):
            await engine.send(GenerationRequest(prompt=TextPrompt(text="x"), max_tokens=1))
        assert server.connections == 3
        await engine.aclose()


async def test_call_is_repeated_when_a_kept_connection_was_closed_without_a_word() -> None:
    async with ScriptedHttp({"GET /a": Reply.json({"a": 1}), "GET /b": Reply(reset="now")}) as server:
        link = Link(server.url)
        answers = iter([Reply.json({"a": 1}), Reply(reset="now"), Reply.json({"a": 2})])
        server.routes["GET /a"] = lambda _request: next(answers)
        assert [await link.get_json("/a"), await link.get_json("/a")] == [{"a": 1}, {"a": 2}]
        with pytest.raises(EngineUnreachable):
            await link.get_json("/b")
        assert [request.target for request in server.received] == ["/a", "/a", "/a", "/b", "/b"]
        await link.aclose()


async def test_generation_is_never_sent_twice() -> None:
    async with ScriptedHttp({"POST /v1/completions": Reply(reset="now")}) as server:
        engine = OpenAIEngine(Link(server.url), model="m")
        await engine.send(GenerationRequest(prompt=TextPrompt(text="x"), max_tokens=1))
        assert len(server.received) == 1
        await engine.aclose()


async def test_call_says_what_came_instead_of_json() -> None:
    routes = {
        "GET /page": Reply.text("<html>"),
        "GET /list": Reply.json([1]),
        "GET /no": Reply.json({"detail": "off"}, 501),
    }
    async with ScriptedHttp(routes) as server:
        link = Link(server.url)
        with pytest.raises(EngineProtocolError, match="<html>"):
            await link.get_json("/page")
        with pytest.raises(EngineProtocolError, match="no object"):
            await link.get_json("/list")
        with pytest.raises(Refused, match="501: off") as refused:
            await link.get_json("/no")
        assert (refused.value.status, refused.value.error.message, refused.value.absent) == (501, "off", True)
        assert [await link.get_json_if_served(f"/{path}") for path in ("page", "list", "no")] == [None, None, None]
        await link.aclose()


async def test_call_gives_up_when_the_server_is_silent() -> None:
    async with ScriptedHttp({"GET /a": Reply(before_s=60)}) as server:
        link = Link(server.url)
        with pytest.raises(EngineSilent, match="ReadTimeout"):
            await link.get_json("/a", timeout_s=0.6)
        await link.aclose()
        await link.aclose()


# -- metrics -----------------------------------------------------------------------------------------------------------

METRICS = """# HELP v:running Requests.
# TYPE v:running gauge
v:running{engine="0",model_name="a \\"b\\""} 2.0
v:running{model_name="a \\"b\\"",engine="1"} 3.0
v:running_more 9
# TYPE v:ttft histogram
v:ttft_bucket{le="0.1"} 1.0
v:ttft_bucket{le="+Inf"} 4.0
v:ttft_sum 1.5
v:ttft_count 4.0
v:nothing NaN
"""


def test_metric_names_keep_their_labels_sorted() -> None:
    values = metric_values(METRICS)
    assert values['v:running{engine="1",model_name="a \\"b\\""}'] == 3.0
    assert values['v:ttft_bucket{le="+Inf"}'] == 4.0
    assert values["v:ttft_sum"] == 1.5
    assert "v:nothing" not in values
    assert names(values) == {"v:running", "v:running_more", "v:ttft_bucket", "v:ttft_sum", "v:ttft_count"}


def test_metric_is_summed_over_engines_and_not_over_names_that_begin_alike() -> None:
    values = metric_values(METRICS)
    assert (total(values, "v:running"), largest(values, "v:running")) == (5.0, 3.0)
    assert (total(values, "v:none"), largest(values, "v:none")) == (None, None)


@pytest.mark.parametrize("text", ["", "<html>", "a{", 'a{b="c} 1', "a b c", "\x00"])
def test_metrics_are_empty_when_the_text_is_something_else(text: str) -> None:
    assert metric_values(text) == {}
