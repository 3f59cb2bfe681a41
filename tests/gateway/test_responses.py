"""The Responses API: what is understood of a request, what is metered of an answer, what is refused."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web
from gateway_standin import MODEL, Shell

from longproof.gateway.counting import FleetCounting, ModelCounting
from longproof.gateway.errors import ApiError
from longproof.gateway.ports import Counted
from longproof.gateway.responses import ResponseFlow, as_chat, parsed_response, response_usage
from longproof.gateway.wire_body import engine_body
from longproof.policy.arrivals import EndKind

Start = Callable[..., Awaitable[Shell]]
USAGE = {"input_tokens": 34, "input_tokens_details": {"cached_tokens": 16}, "output_tokens": 3, "total_tokens": 37}


def event(kind: str, **fields: object) -> bytes:
    """As vLLM 0.32 and llama.cpp write one."""
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


def stream_of(last: str = "response.completed", usage: object = USAGE) -> list[bytes]:
    return [
        event("response.created", response={"id": "resp_1", "status": "in_progress", "usage": None}),
        event("response.output_item.added", item={"type": "message", "role": "assistant", "content": []}),
        *(event("response.output_text.delta", item_id="m", delta=word) for word in ("a", " red", " one")),
        event("response.output_text.done", text='a red one, and no "usage": {"input_tokens": 1}'),
        event(last, response={"id": "resp_1", "output": [{"text": "response.failed"}], "usage": usage}),
    ]


@dataclass(slots=True)
class Engine:
    """Answers /v1/responses with what the test says, and keeps what it was sent."""

    answer: bytes = b""
    events: list[bytes] = field(default_factory=list[bytes])
    asked: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    url: str = ""

    async def respond(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(await request.json())
        if not self.events:
            return web.Response(body=self.answer, content_type="application/json")
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for one in self.events:
            await response.write(one)
        await response.write_eof()
        return response


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    one, app = Engine(), web.Application()
    app.router.add_post("/v1/responses", one.respond)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    one.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield one
    await runner.cleanup()


async def ask(gateway: Shell, **fields: object) -> tuple[int, bytes]:
    body = {"model": MODEL, "input": "Name a colour.", "max_output_tokens": 8, **fields}
    async with gateway.session.post(f"{gateway.url}/v1/responses", json=body) as response:
        return response.status, await response.read()


async def test_an_answer_comes_through_and_is_metered(shell: Start, engine: Engine) -> None:
    engine.answer = json.dumps({"id": "resp_1", "tools": [{"usage": {"input_tokens": 1}}], "usage": USAGE}).encode()
    gateway = await shell([engine.url])
    assert await ask(gateway, temperature=0) == (200, engine.answer)
    assert engine.asked == [{"model": MODEL, "input": "Name a colour.", "max_output_tokens": 8, "temperature": 0}]
    (spent,) = gateway.books.ends
    assert (spent.input_tokens, spent.cached_tokens, spent.output_tokens, spent.reported) == (34, 16, 3, True)


@pytest.mark.parametrize(
    ("last", "ending"), [("response.completed", EndKind.COMPLETED), ("response.incomplete", EndKind.COMPLETED)]
)
async def test_a_stream_comes_through_unchanged_and_is_metered(
    shell: Start, engine: Engine, last: str, ending: EndKind
) -> None:
    engine.events = stream_of(last)
    gateway = await shell([engine.url])
    status, raw = await ask(gateway, stream=True)
    assert (status, raw) == (200, b"".join(engine.events))
    assert "stream_options" not in engine.asked[0]  # this API has none: its last event has usage anyway
    (spent,) = gateway.books.ends
    assert (spent.input_tokens, spent.cached_tokens, spent.output_tokens) == (34, 16, 3)
    assert [end.kind for end in gateway.controller.ended.values()] == [ending]
    assert len(gateway.controller.names("first")) == 1


async def test_a_response_that_failed_counts_as_failed(shell: Start, engine: Engine) -> None:
    engine.events = stream_of("response.failed", usage=None)
    gateway = await shell([engine.url])
    status, raw = await ask(gateway, stream=True)
    assert (status, raw) == (200, b"".join(engine.events))
    assert [end.kind for end in gateway.controller.ended.values()] == [EndKind.FAILED]


async def test_a_stream_that_breaks_off_says_so(shell: Start, engine: Engine) -> None:
    engine.events = stream_of()[:-1]
    gateway = await shell([engine.url])
    _, raw = await ask(gateway, stream=True)
    assert b"replica_lost" in raw
    (spent,) = gateway.books.ends
    assert (spent.ending, spent.output_tokens, spent.reported) == (EndKind.FAILED, 3, False)  # what was passed on


@pytest.mark.parametrize(
    "fields",
    [
        {"kv_transfer_params": {"remote_host": "10.0.0.9"}},
        {"id_slot": 3},
        {"tools": [{"type": "mcp", "server_url": "http://10.0.0.9"}]},
        {"tools": [{"type": "web_search_preview"}]},
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "http://10.0.0.9/x"}]}]},
        {"input": [{"type": "computer_call_output", "output": {"image_url": "http://10.0.0.9/x"}}]},
    ],
)
async def test_what_steers_an_engine_is_not_the_clients_to_say(
    shell: Start, engine: Engine, fields: dict[str, object]
) -> None:
    gateway = await shell([engine.url])
    status, raw = await ask(gateway, **fields)
    assert status == 400
    assert json.loads(raw)["error"]["code"] in ("field_not_allowed", "media_not_allowed")
    assert engine.asked == []


@pytest.mark.parametrize(
    "fields",
    [
        {"previous_response_id": "resp_0"},
        {"conversation": "conv_1"},
        {"prompt": {"id": "p"}},
        {"background": True},
        {"input": [{"type": "item_reference", "id": "msg_1"}]},
        {"input": []},
        {"input": 7},
        {"input": ["x"]},
        {"max_output_tokens": "many"},
        {"stream": "yes"},
    ],
)
async def test_what_nobody_here_can_know_the_length_of_is_refused(
    shell: Start, engine: Engine, fields: dict[str, object]
) -> None:
    gateway = await shell([engine.url])
    status, raw = await ask(gateway, **fields)
    assert status == 400
    assert json.loads(raw)["error"]["param"] in (*fields, "item_reference")
    assert engine.asked == []


def test_input_becomes_the_chat_that_engines_make_of_it() -> None:
    parts = [{"type": "input_text", "text": "Look."}]
    messages, plain = as_chat(
        {
            "instructions": "Be brief.",
            "input": [{"role": "user", "content": parts}, {"type": "message", "role": "assistant", "content": "Yes."}],
        }
    )
    assert messages == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Look."}]},
        {"role": "assistant", "content": "Yes."},
    ]
    assert plain
    assert as_chat({"input": "Hi"}) == ([{"role": "user", "content": "Hi"}], True)


@pytest.mark.parametrize(
    "item",
    [
        {"role": "user", "content": [{"type": "input_image", "image_url": "data:image/png;base64,AAAA"}]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "4"},
        {"type": "reasoning", "summary": []},
    ],
)
async def test_where_engines_differ_only_the_bound_is_used(item: dict[str, object]) -> None:
    body = json.dumps({"model": MODEL, "input": [item]}).encode()
    ask_ = parsed_response(body, request_id="r")
    counting = FleetCounting({MODEL: ModelCounting(model=MODEL, block_tokens=16)})
    counted = await counting.count(ask_)
    counting.close()
    assert not counted.exact
    assert counted.input_tokens >= counting.bound(ask_).input_tokens
    assert isinstance(counted, Counted)


def test_the_tenants_salt_takes_the_clients_place() -> None:
    body = json.dumps({"model": MODEL, "input": "Hi", "cache_salt": "mine", "stream": True}).encode()
    ask_ = parsed_response(body, request_id="r")
    assert engine_body(ask_, usage_in_streams=True, salt="") == body
    sent = json.loads(engine_body(ask_, usage_in_streams=True, salt="theirs"))
    assert sent == {"model": MODEL, "input": "Hi", "cache_salt": "theirs", "stream": True}


@pytest.mark.parametrize("size", [1, 2, 3, 7, 50, 10_000])
def test_a_stream_is_read_wherever_it_is_cut(size: int) -> None:
    whole, flow = b"".join(stream_of()), ResponseFlow()
    out = b"".join(flow.take(whole[at : at + size]) for at in range(0, len(whole), size)) + flow.end()
    assert out == whole
    assert (flow.tokens, flow.done, flow.failed) == (3, True, False)
    assert flow.usage is not None
    assert (flow.usage.prompt_tokens, flow.usage.cached_tokens, flow.usage.completion_tokens) == (34, 16, 3)


def test_events_are_told_apart_by_their_data_when_no_line_names_them() -> None:
    flow = ResponseFlow()
    flow.take(b"".join(one[one.index(b"data:") :] for one in stream_of()))
    assert (flow.tokens, flow.done, flow.failed, flow.usage is not None) == (3, True, False, True)


@pytest.mark.parametrize(
    "error", [b'event: error\ndata: {"type":"error","message":"gone"}\n\n', b'data: {"error":{"message":"gone"}}\n\n']
)
def test_an_error_among_its_events_is_a_failure(error: bytes) -> None:
    flow = ResponseFlow()
    for at in range(0, len(error), 7):
        flow.take(error[at : at + 7])
    assert (flow.failed, flow.done, flow.closing(1)) == (True, False, b"")


def test_a_last_event_that_is_not_ended_still_counts() -> None:
    flow = ResponseFlow()
    whole = b"".join(stream_of()).rstrip(b"\n")
    out = flow.take(whole)
    assert not flow.done
    assert out + flow.end() == whole
    assert flow.done


def test_half_an_event_is_never_passed_on() -> None:
    whole, flow = b"".join(stream_of()), ResponseFlow()
    out = flow.take(whole[:-40]) + flow.end()
    assert out == b"".join(stream_of()[:-1])
    assert not flow.done


@pytest.mark.parametrize(
    "usage",
    [None, 7, {}, {"input_tokens": -1, "output_tokens": 2}, {"input_tokens": "many"}, {"output_tokens": 3}],
)
def test_usage_that_is_none_is_not_believed(usage: object) -> None:
    assert response_usage(json.dumps({"usage": usage}).encode()) is None
    assert response_usage(b"<html>") is None


def test_more_cached_than_there_is_reads_as_unknown() -> None:
    found = response_usage(
        json.dumps({"usage": {"input_tokens": 5, "input_tokens_details": {"cached_tokens": 6}}}).encode()
    )
    assert found is not None
    assert (found.prompt_tokens, found.cached_tokens) == (5, None)


def test_a_model_must_be_named() -> None:
    with pytest.raises(ApiError):
        parsed_response(b'{"input": "Hi"}', request_id="r")
