"""Bodies in pieces are the same JSON, made without holding up the loop, and one long part serves many requests."""

from __future__ import annotations

import itertools
import json

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longproof.domain.events import EndedBy
from longproof.domain.outcome import Outcome, classify
from longproof.domain.request import ChatMessage, ChatPrompt, GenerationRequest, IdsPrompt, TextPrompt
from longproof.engines.link import Link
from longproof.engines.openai import OpenAIEngine
from longproof.engines.request_body import Body, Series, json_body
from longproof.engines.sglang import SglangEngine
from longproof.testing.loop_turns import loop_turns
from longproof.testing.scripted_http import Reply, ScriptedHttp

TOKEN = b'data: {"choices":[{"index":0,"text":"a","finish_reason":"length"}]}\n\ndata: [DONE]\n\n'
LONG_TEXT = 'a "quoted" line\n\N{SNOWMAN}\N{GRINNING FACE} ' * 20_000  # 400,000 characters: four slices
IDS = tuple(range(100_000))  # four slices


def bytes_of(body: Body) -> bytes:
    return b"".join(body.pieces)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@settings(deadline=None)
@given(fields=st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=5), JSON, max_size=4))
async def test_body_is_the_same_json_when_nothing_is_long(fields: dict[str, object]) -> None:
    assert bytes_of(await json_body(fields)) == orjson.dumps(fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": LONG_TEXT, "n": 1},
        {"n": 1, "prompt": IDS, "stop": ["x"]},
        {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": LONG_TEXT}], "m": {"a": []}},
        {"nested": {"list": list(IDS), "empty": {}}, "pair": [LONG_TEXT, None]},
    ],
    ids=["text", "ids", "messages", "nested"],
)
async def test_body_is_the_same_json_when_something_is_long(fields: dict[str, object]) -> None:
    body = await json_body(fields)
    assert bytes_of(body) == orjson.dumps(fields)
    assert body.size_bytes == len(bytes_of(body))
    assert max(map(len, body.pieces)) < 700_000  # 131,072 characters of up to 4 bytes, some escaped


async def test_loop_is_free_while_a_long_body_is_made() -> None:
    async with loop_turns() as turns:
        await json_body({"prompt": tuple(range(1_000_000))})
    assert turns.count >= 31  # 1,000,000 ids in slices of 32,768: 31 slices


@pytest.mark.parametrize("size", [0, 1, 131_072, 131_073, 1_000_000])
def test_slices_are_the_body_and_none_is_long_or_empty(size: int) -> None:
    body = Body.of(b"head", b"", bytes(size), b"tail")
    slices = list(body.slices())
    assert b"".join(slices) == b"head" + bytes(size) + b"tail"
    assert all(0 < len(piece) <= 131_072 for piece in slices)


PROMPTS = [
    (
        lambda opening: ChatPrompt(
            messages=(
                ChatMessage(role="system", content="be brief"),
                ChatMessage(role="user", content=f"read {opening} and {LONG_TEXT}"),
            )
        ),
        'one "first" \N{SNOWMAN}',
        'two\n"second"',
    ),
    (lambda opening: TextPrompt(text=f"{opening} {LONG_TEXT}"), "one", "a longer one"),
    (lambda opening: IdsPrompt(ids=(*opening, *IDS)), (7, 8, 9), (123456, 1, 22)),
]


@pytest.mark.parametrize(("prompt", "first", "second"), PROMPTS, ids=["chat", "text", "ids"])
async def test_series_differs_in_opening_and_id_and_shares_the_rest(prompt, first, second) -> None:  # type: ignore[no-untyped-def]
    engine = SglangEngine(Link("http://127.0.0.1:9"), model="m")
    request = GenerationRequest(prompt=prompt(first), max_tokens=3, cold=True)
    series = Series(await engine.prepare(request), first)
    made = [series.prepared(second), series.prepared(second), series.prepared(first)]
    assert len({prepared.request_id for prepared in made}) == 3
    for prepared, opening in zip(made, (second, second, first), strict=True):
        wanted = GenerationRequest(prompt=prompt(opening), max_tokens=3, cold=True)
        document = json.loads(bytes_of(prepared.body))
        assert document == json.loads(orjson.dumps(engine.body(wanted, prepared.request_id)))
        assert (document["rid"], document["cache_salt"]) == (prepared.request_id, prepared.request_id)
    longest = [max(prepared.body.pieces, key=len) for prepared in made]
    assert len(longest[0]) > 400_000
    assert all(piece is longest[0] for piece in longest)
    await engine.aclose()


async def test_series_is_refused_when_the_opening_is_not_in_the_prompt() -> None:
    engine = OpenAIEngine(Link("http://127.0.0.1:9"), model="m")
    prepared = await engine.prepare(GenerationRequest(prompt=IdsPrompt(ids=(1, 2, 3)), max_tokens=1))
    for opening in ("one", (2, 3), ()):
        with pytest.raises(ValueError, match="does not hold"):
            Series(prepared, opening)
    await engine.aclose()


async def test_prepared_request_is_sent_as_it_was_made() -> None:
    async with ScriptedHttp({"POST /v1/completions": Reply.stream(TOKEN)}) as server:
        engine = OpenAIEngine(Link(server.url), model="m")
        request = GenerationRequest(prompt=IdsPrompt(ids=IDS), max_tokens=1, prompt_tokens=100_000)
        prepared = await engine.prepare(request)
        timeline = await engine.send(prepared)
        assert (timeline.ended_by, timeline.request_id) == (EndedBy.DONE, prepared.request_id)
        assert (timeline.prompt_tokens_sent, timeline.body_bytes) == (100_000, prepared.body.size_bytes)
        assert server.received[0].body == bytes_of(prepared.body)
        await engine.aclose()


async def test_field_that_is_refused_of_a_prepared_request_is_left_out_from_the_next_on() -> None:
    words = {"error": {"message": "Unsupported parameter: 'seed'", "code": "unsupported_parameter", "param": "seed"}}
    replies = itertools.chain([Reply.json(words, status=400)], itertools.repeat(Reply.stream(TOKEN)))
    async with ScriptedHttp({"POST /v1/completions": lambda _: next(replies)}) as server:
        engine = OpenAIEngine(Link(server.url), model="m")
        request = GenerationRequest(prompt=TextPrompt(text="x"), max_tokens=1)
        refused = await engine.send(await engine.prepare(request))
        assert (refused.ended_by, len(server.received)) == (EndedBy.HTTP_ERROR, 1)
        assert engine.capabilities.fields_refused == ("seed",)
        assert classify(await engine.send(await engine.prepare(request))) is Outcome.COMPLETED
        assert "seed" not in server.received[1].json()
        await engine.aclose()
