"""Long bodies: parsed in pieces, read in turns, and the same as if they were not."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import orjson
import pytest
from gateway_standin import Shell
from hypothesis import given, settings
from hypothesis import strategies as st

from longproof.gateway import body_object
from longproof.gateway.errors import ApiError
from longproof.gateway.intake import PIECES_FROM_BYTES, long_json_object
from longproof.gateway.json_pieces import loads_in_pieces
from longproof.gateway.turns import Turns
from longproof.testing.loop_turns import loop_turns
from longproof.testing.lying_engine import HONEST, lying_engine

Start = Callable[..., Awaitable[Shell]]

texts = st.text(st.sampled_from('ab"\\\\/\n\tä東😀\x00\x7f\ud7ff\ue000u0d8'), max_size=80)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=150, deadline=None)
@given(value=values, piece_bytes=st.integers(13, 60), escaped=st.booleans())
def test_a_value_is_the_same_when_it_is_parsed_in_pieces(value: object, piece_bytes: int, escaped: bool) -> None:
    body = json.dumps(value, ensure_ascii=escaped).encode()
    assert asyncio.run(loads_in_pieces(body, piece_bytes=piece_bytes)) == json.loads(body)


@settings(max_examples=100, deadline=None)
@given(value=values, piece_bytes=st.integers(13, 60), data=st.data())
def test_what_a_parser_refuses_is_refused_when_it_is_parsed_in_pieces(
    value: object, piece_bytes: int, data: st.DataObject
) -> None:
    body = bytearray(json.dumps(value, ensure_ascii=False).encode())
    place = data.draw(st.integers(0, len(body) - 1))
    body[place] = data.draw(st.sampled_from(b'"\\{}[],:\x00\x1f\xff\xc3u0'))
    spoilt = bytes(body)
    try:
        wanted: object = orjson.loads(spoilt)
    except orjson.JSONDecodeError:
        with pytest.raises(orjson.JSONDecodeError):
            asyncio.run(loads_in_pieces(spoilt, piece_bytes=piece_bytes))
    else:
        assert asyncio.run(loads_in_pieces(spoilt, piece_bytes=piece_bytes)) == wanted


@pytest.mark.parametrize("escaped", [False, True])
@pytest.mark.parametrize("letters", ["the lake is deep ", "東京は深い", "😀🦆", 'a\\n"b" '])
async def test_others_have_their_turn_when_a_long_text_is_parsed(letters: str, escaped: bool) -> None:
    text = letters * 20_000
    body = json.dumps({"messages": [{"role": "user", "content": text}], "n": 1}, ensure_ascii=escaped).encode()
    async with loop_turns() as turns:
        found: Any = await loads_in_pieces(body, piece_bytes=len(body) // 20)
    assert found["messages"][0]["content"] == text
    assert turns.count >= 20  # one for every four of 20 looks and for each of 18 pieces or so; at once it would be none


async def test_a_long_text_is_parsed_at_once_when_it_is_a_key() -> None:
    body = orjson.dumps({"k" * 1_000: "v" * 1_000})
    assert await loads_in_pieces(body, piece_bytes=100) == {"k" * 1_000: "v" * 1_000}


async def test_a_long_body_is_refused_in_words_when_it_is_no_object() -> None:
    with pytest.raises(ApiError) as no_object:
        await long_json_object(orjson.dumps(["x" * PIECES_FROM_BYTES]))
    assert no_object.value.problem.status == 400
    with pytest.raises(ApiError) as no_json:
        await long_json_object(b'{"a": "' + b"x" * PIECES_FROM_BYTES)
    assert no_json.value.problem.code == "invalid_json"


async def test_no_long_body_is_parsed_in_one_go_when_it_is_above_the_size(
    shell: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(body_object, "PIECES_FROM_BYTES", 300_000)
    at_once: list[int] = []
    monkeypatch.setattr(body_object, "json_object", lambda body: at_once.append(len(body)) or orjson.loads(body))
    async with lying_engine(HONEST.but(window_tokens=8_000_000, prefill_tokens_per_s=1e9)) as url:
        started = await shell([url])
        for size in (280_000, 320_000):
            answer = await started.chat("lake " * (size // 5), headers={"Content-Type": "application/json"})
            await answer.read()
            assert answer.status == 200
    assert [size < 300_000 for size in at_once] == [True]
    assert len(started.controller.names("arrival")) == 2


async def test_a_few_go_on_per_turn_of_the_loop_when_many_wait() -> None:
    turns, order = Turns(2), list[int]()

    async def one(number: int) -> None:
        await turns.mine()
        order.append(number)

    waiting = [asyncio.create_task(one(number)) for number in range(6)]
    waiting[1].cancel()
    seen: list[int] = []
    while len(order) < 5:
        await asyncio.sleep(0)
        seen.append(len(order))
    assert order == [0, 2, 3, 4, 5]
    assert max(after - before for before, after in zip([0, *seen], seen, strict=False)) <= 2
    await asyncio.gather(*waiting, return_exceptions=True)
