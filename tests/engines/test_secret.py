"""The API key never comes back out of what a server said."""

from __future__ import annotations

import pytest

from longproof.domain.request import ChatMessage, ChatPrompt, GenerationRequest
from longproof.engines.link import Link, Refused
from longproof.engines.openai import OpenAIEngine
from longproof.engines.secret import WITHHELD, Secret
from longproof.testing.scripted_http import Reply, ScriptedHttp

KEY = "sk-very-secret-1"
CHAT = ChatPrompt(messages=(ChatMessage(role="user", content="Hi"),))


async def test_a_key_repeated_in_an_error_is_struck_out_of_the_timeline() -> None:
    error = {"error": {"message": f"bad key Bearer {KEY}", "type": KEY, "code": KEY}}
    refusal = Reply.json(error, status=400, **{"x-echo": KEY})
    async with ScriptedHttp({"POST /v1/chat/completions": refusal}) as server:
        engine = OpenAIEngine(Link(server.url, api_key=KEY), model="m")
        timeline = await engine.send(GenerationRequest(prompt=CHAT, max_tokens=1))
        await engine.aclose()
        assert server.received[0].headers["authorization"] == f"Bearer {KEY}"
    assert KEY not in repr(timeline)
    assert timeline.error is not None
    assert timeline.error.message == f"bad key Bearer {WITHHELD}"


async def test_a_key_repeated_in_a_stream_is_struck_out_of_the_timeline() -> None:
    pieces = f'data: {{"id":"{KEY}","choices":[{{"delta":{{"content":"{KEY}"}}}}]}}\n\ndata: {KEY}\n\n'.encode()
    async with ScriptedHttp({"POST /v1/chat/completions": Reply.stream(pieces)}) as server:
        engine = OpenAIEngine(Link(server.url, api_key=KEY), model="m")
        timeline = await engine.send(GenerationRequest(prompt=CHAT, max_tokens=1))
        await engine.aclose()
    assert KEY not in repr(timeline)
    assert timeline.text == WITHHELD


async def test_a_key_repeated_by_other_routes_is_struck_out() -> None:
    replies = {
        "GET /no": Reply.json({"detail": f"key {KEY}"}, status=401),
        "GET /yes": Reply.json({"a": [KEY, {KEY: 1}]}),
    }
    async with ScriptedHttp(replies) as server, Link(server.url, api_key=KEY) as link:
        with pytest.raises(Refused) as refused:
            await link.get("/no")
        assert KEY not in str(refused.value) + repr(refused.value.error)
        assert await link.get_json("/yes") == {"a": [WITHHELD, {WITHHELD: 1}]}


def test_a_key_too_short_to_be_one_changes_nothing() -> None:
    assert Secret("none").out_of("none of them") == "none of them"
    assert Secret(None).out_of({"a": ("b",)}) == {"a": ("b",)}
