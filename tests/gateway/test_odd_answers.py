"""Engines that answer status 200 with something else than what was asked for: clients get what they can read."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable

import pytest
from gateway_standin import Shell

from longproof.policy.arrivals import EndKind
from longproof.testing.scripted_http import Reply, ScriptedHttp

Start = Callable[..., Awaitable[Shell]]
ROUTE = "POST /v1/chat/completions"
TOKEN = b'data: {"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":null}]}\n\n'
STOP = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
DONE = b"data: [DONE]\n\n"
ERROR = {"error": {"message": "no room", "type": "server_error", "code": 500}}
BUSY = {"error": {"message": "come back", "type": "overloaded", "code": 503}}
ANSWER = {"choices": [{"message": {"content": "x"}}], "usage": {"prompt_tokens": 3, "completion_tokens": 1}}


def event(document: object) -> bytes:
    return b"data: " + json.dumps(document).encode() + b"\n\n"


def ended(gateway: Shell) -> list[EndKind]:
    return [end.kind for end in gateway.controller.ended.values()]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    "reply",
    [
        Reply.text("<html>sign in</html>", content_type="text/html"),
        Reply(),
        Reply.json([1]),
        Reply.text("words"),
    ],
)
async def test_what_is_no_answer_is_told_as_a_failure_of_the_replica(shell: Start, reply: Reply, stream: bool) -> None:
    async with ScriptedHttp({ROUTE: reply}) as engine:
        gateway = await shell([engine.url])
        response = await gateway.chat(stream=stream)
        body = await response.json()
    assert (response.status, body["error"]["code"]) == (502, "replica_unreadable")
    assert ended(gateway) == [EndKind.FAILED]


async def test_a_whole_answer_is_no_stream(shell: Start) -> None:
    async with ScriptedHttp({ROUTE: Reply.json(ANSWER)}) as engine:
        gateway = await shell([engine.url])
        streamed, plain = await gateway.chat(stream=True), await gateway.chat()
        assert (streamed.status, (await streamed.json())["error"]["code"]) == (502, "replica_unreadable")
        assert (plain.status, await plain.json()) == (200, ANSWER)


@pytest.mark.parametrize(
    ("stream", "form"),
    [(True, Reply.json(ERROR)), (False, Reply.json(ERROR)), (True, Reply.stream(event(ERROR), DONE))],
)
async def test_an_error_that_came_with_status_200_gets_its_own(shell: Start, form: Reply, stream: bool) -> None:
    async with ScriptedHttp({ROUTE: form}) as engine:
        gateway = await shell([engine.url])
        response = await gateway.chat(stream=stream)
        assert (response.status, await response.json()) == (500, ERROR)
    assert ended(gateway) == [EndKind.FAILED]


@pytest.mark.parametrize("stream", [True, False])
async def test_the_next_replica_is_asked_when_a_refusal_came_with_status_200(shell: Start, stream: bool) -> None:
    whole = event(BUSY)
    pieces = [whole[at : at + 9] for at in range(0, len(whole), 9)]
    busy = Reply.stream(*[part for piece in pieces for part in (piece, 0.001)]) if stream else Reply.json(BUSY)
    good = Reply.stream(TOKEN, STOP, DONE) if stream else Reply.json(ANSWER)
    async with ScriptedHttp({ROUTE: busy}) as first, ScriptedHttp({ROUTE: good}) as second:
        gateway = await shell([first.url, second.url])
        response = await gateway.chat(stream=stream)
        raw = await response.read()
    assert response.status == 200
    assert b"error" not in raw
    assert ended(gateway) == [EndKind.COMPLETED]


async def test_an_answer_is_whole_and_gets_its_end_when_the_engine_says_no_done(shell: Start) -> None:
    async with ScriptedHttp({ROUTE: Reply.stream(TOKEN, TOKEN, STOP)}) as engine:
        gateway = await shell([engine.url])
        raw = await (await gateway.chat(stream=True)).read()
    assert raw == TOKEN * 2 + STOP + DONE
    assert ended(gateway) == [EndKind.COMPLETED]
    assert gateway.books.ends[0].output_tokens == 2


async def test_comments_come_between_events_when_the_engine_ends_its_lines_with_crlf(shell: Start) -> None:
    crlf = [one.replace(b"\n", b"\r\n") for one in (TOKEN, STOP, DONE)]
    async with ScriptedHttp({ROUTE: Reply.stream(crlf[0], 0.4, *crlf[1:])}) as engine:
        gateway = await shell([engine.url], keepalive_s=0.02)
        raw = await (await gateway.chat(stream=True)).read()
    assert b": waiting\n\n" in raw[len(crlf[0]) :]
    assert raw.replace(b": waiting\n\n", b"") == b"".join(crlf)


async def test_a_stream_that_flows_is_not_silent_when_every_event_has_usage(shell: Start) -> None:
    told = TOKEN.replace(b"]}\n", b'],"usage":{"prompt_tokens":3,"completion_tokens":1}}\n')
    pieces = [part for _ in range(12) for part in (told, 0.2)]
    async with ScriptedHttp({ROUTE: Reply.stream(*pieces, STOP, DONE)}) as engine:
        gateway = await shell([engine.url], silence_s=2)
        raw = await (await gateway.chat(stream=True, stream_options={"include_usage": True})).read()
    assert raw == told * 12 + STOP + DONE  # 2.4 s in all


async def test_an_engine_is_not_called_silent_when_it_is_the_client_who_does_not_read(shell: Start) -> None:
    many = TOKEN * 400
    async with ScriptedHttp({ROUTE: Reply.stream(*[many] * 400, STOP, DONE)}) as engine:
        gateway = await shell([engine.url], silence_s=0.3)
        response = await gateway.chat(stream=True)
        await asyncio.sleep(1)
        raw = await response.read()
    assert b"replica_silent" not in raw
    assert raw.endswith(STOP + DONE)


async def test_an_engines_own_words_are_readable_when_the_status_was_out_already(shell: Start) -> None:
    async with ScriptedHttp(
        {
            ROUTE: Reply(
                status=400,
                headers={"content-type": "application/json"},
                pieces=(json.dumps(ERROR).encode(),),
                before_s=0.3,
            )
        }
    ) as engine:
        gateway = await shell([engine.url], keepalive_s=0.02)
        raw = await (await gateway.chat(stream=True)).read()
    assert raw.startswith(b": waiting")
    (line,) = [line for line in raw.split(b"\n") if line.startswith(b"data: {")]
    assert json.loads(line[6:])["error"]["message"] == "no room"
