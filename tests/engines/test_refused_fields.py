"""A field that a server refuses by name is left out, once and for all; other refusals stay refusals."""

from __future__ import annotations

from typing import Any

import pytest

from longproof.domain.events import EndedBy
from longproof.domain.request import ChatMessage, ChatPrompt, GenerationRequest
from longproof.engines.link import Link
from longproof.engines.openai import OpenAIEngine
from longproof.engines.refused_fields import described, without
from longproof.testing.scripted_http import Received, Reply, ScriptedHttp

CHAT = ChatPrompt(messages=(ChatMessage(role="user", content="Hi"),))
TOKEN = b'data: {"choices":[{"delta":{"content":"a"},"finish_reason":"length"}]}\n\ndata: [DONE]\n\n'
OPENAI_WORDS = (
    "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
)


def strict(refuses: dict[str, dict[str, Any]], status: int) -> Any:
    """Answers with the document of the first field that it refuses, else with a stream."""

    def answer(received: Received) -> Reply:
        sent = received.json()
        return next(
            (Reply.json(document, status=status) for name, document in refuses.items() if name in sent),
            Reply.stream(TOKEN),
        )

    return answer


async def ask(server: ScriptedHttp, times: int = 1) -> tuple[OpenAIEngine, list[Any]]:
    engine = OpenAIEngine(Link(server.url), model="m")
    found = [await engine.send(GenerationRequest(prompt=CHAT, max_tokens=5)) for _ in range(times)]
    await engine.aclose()
    return engine, found


@pytest.mark.parametrize(
    ("status", "field", "document", "added"),
    [
        (400, "max_tokens", {"error": {"message": OPENAI_WORDS}}, {"max_completion_tokens": 5}),
        (422, "seed", {"detail": [{"loc": ["body", "seed"], "msg": "Extra inputs are not permitted"}]}, {}),
        (400, "stream_options", {"error": {"message": "Unrecognized request argument supplied: stream_options"}}, {}),
    ],
)
async def test_a_field_refused_by_name_is_left_out_of_this_request_and_the_next(
    status: int, field: str, document: dict[str, Any], added: dict[str, Any]
) -> None:
    async with ScriptedHttp({"POST /v1/chat/completions": strict({field: document}, status)}) as server:
        engine, found = await ask(server, times=2)
        bodies = [received.json() for received in server.received]
    assert [timeline.ended_by for timeline in found] == [EndedBy.DONE, EndedBy.DONE]
    assert [field in body for body in bodies] == [True, False, False]  # refused once, then never sent again
    assert bodies[0].keys() - {field} | added.keys() == bodies[1].keys()
    assert added.items() <= bodies[1].items()
    assert engine.capabilities.fields_refused == (field,)


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (400, "max_tokens must be at least 1, got 0"),  # vLLM: about length
        (400, "something is unsupported here"),  # names no field
        (500, "Unsupported parameter: seed"),
        (400, "Unknown argument: messages"),  # nothing is left without it
    ],
)
async def test_other_refusals_stay_what_they_are(status: int, message: str) -> None:
    refusal = Reply.json({"error": {"message": message}}, status=status)
    async with ScriptedHttp({"POST /v1/chat/completions": refusal}) as server:
        engine, (timeline,) = await ask(server)
        assert len(server.received) == 1
    assert timeline.ended_by is EndedBy.HTTP_ERROR
    assert engine.capabilities.fields_refused == ()


async def test_a_server_that_goes_on_refusing_is_asked_once_per_field() -> None:
    refusal = Reply.json({"error": {"message": "Unsupported: seed temperature"}}, status=400)
    async with ScriptedHttp({"POST /v1/chat/completions": refusal}) as server:
        _, (timeline,) = await ask(server)
        assert len(server.received) == 3  # all fields; without seed; without seed and temperature
    assert timeline.status == 400


def test_what_was_left_out_is_told_in_words() -> None:
    assert described({"seed", "max_tokens"}) == "max_completion_tokens for max_tokens; without seed"
    assert without({"a": 1, "seed": 2, "max_tokens": 3}, {"seed", "max_tokens"}) == {
        "a": 1,
        "max_completion_tokens": 3,
    }
