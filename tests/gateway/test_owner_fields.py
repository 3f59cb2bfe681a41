"""What of a body is not the client's to say, and what a body becomes in memory."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Awaitable, Callable
from typing import Any

import orjson
import pytest
from gateway_standin import MODEL, Shell
from hypothesis import given
from hypothesis import strategies as st

from longproof.domain.request import Route
from longproof.gateway.body_weight import ENTRY_BYTES, LIST_BYTES, bytes_outside_texts, parsed_bytes
from longproof.gateway.errors import ApiError
from longproof.gateway.intake import Intake, parsed
from longproof.gateway.owner_fields import OWNER_FIELDS, FieldRule
from longproof.testing.lying_engine import lying_engine

Start = Callable[..., Awaitable[Shell]]
MB = 1 << 20


def chat(content: Any = "Hi", **fields: Any) -> bytes:
    return json.dumps({"model": MODEL, "messages": [{"role": "user", "content": content}], **fields}).encode()


def ask(body: bytes, rule: FieldRule | None = None) -> Any:
    return parsed(body, Route.CHAT, request_id="1", rule=rule or FieldRule())


@pytest.mark.parametrize("name", sorted(OWNER_FIELDS))
def test_a_field_that_steers_the_engine_is_refused_when_its_owner_has_not_allowed_it(name: str) -> None:
    with pytest.raises(ApiError) as refused:
        ask(chat(**{name: {"remote_host": "10.0.0.1"}}))
    assert refused.value.problem.code == "field_not_allowed"
    assert refused.value.problem.param == name
    assert ask(chat(**{name: None})).fields[name] is None  # says nothing
    assert ask(chat(**{name: "x"}), FieldRule(allowed=frozenset({name}))).fields[name] == "x"


@pytest.mark.parametrize(
    "url",
    [
        "http://169.254.169.254/latest/meta-data",
        "https://example.com/a.png",
        "file:///etc/passwd",
        "ftp://x/y",
        "//example.com/a",
        "/etc/passwd",
        " data:image/png;base64,AA",
        "http://good.example@evil.example/a",
        "http://evil.example\\@good.example/a",
        "http://good.example.evil.example/",
        "http://evil.example#good.example",
        "http://good.example\t.evil.example/",
        "http://[::1",
        "http://gооd.example/",  # Cyrillic
        "gopher://good.example/",
    ],
)
def test_an_engine_is_never_sent_to_fetch_media_from_a_host_that_is_not_allowed(url: str) -> None:
    rule = FieldRule(media_hosts=frozenset({"good.example"}))
    for part in (
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "image_url", "image_url": url},
        {"image_url": url},
        {"type": "video_url", "video_url": {"url": url}},
        {"type": "audio_url", "audio_url": {"url": url}},
        {"type": "text", "text": "x", "image": url},
        {"type": "tool", "parts": [{"image_url": {"url": url}}]},
    ):
        with pytest.raises(ApiError) as refused:
            ask(chat([{"type": "text", "text": "what is it?"}, part]), rule)
        assert refused.value.problem.code == "media_not_allowed"


def test_media_pass_when_they_are_inside_the_body_or_their_host_is_allowed() -> None:
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA", "detail": "auto"}}
    assert ask(chat([part]))
    away = [{"type": "image_url", "image_url": {"url": "https://GOOD.example:8443/a.png?x=1"}}]
    assert ask(chat(away), FieldRule(media_hosts=frozenset({"good.example"})))
    assert ask(chat(away), FieldRule(media_hosts=frozenset({"*"})))
    assert ask(chat("look at http://example.com/a.png"))  # text is text


async def test_no_engine_hears_of_it_when_a_field_or_an_address_is_refused(shell: Start) -> None:
    engine = lying_engine()
    async with engine as url:
        gateway = await shell([url])
        image = [{"type": "image_url", "image_url": {"url": "http://169.254.169.254/"}}]
        codes = [
            (await (await gateway.chat(kv_transfer_params={"remote_host": "10.0.0.1"})).json())["error"]["code"],
            (await (await gateway.chat(messages=[{"role": "user", "content": image}])).json())["error"]["code"],
        ]
    assert codes == ["field_not_allowed", "media_not_allowed"]
    assert engine.log.requests == []
    assert gateway.controller.told == []
    assert gateway.intake.open_bytes == 0


@pytest.mark.parametrize(
    ("fields", "allowance"),
    [
        ({"max_tokens": 3, "n_predict": 9}, 9),  # llama.cpp generates nine
        ({"max_tokens": 9, "n_predict": 3}, 9),
        ({"n_predict": 3}, 3),
        ({"max_completion_tokens": 3, "max_tokens": 9}, 9),  # vLLM takes the newer name, others the older one
        ({"max_tokens": 3, "n_predict": -1}, None),
        ({"max_tokens": -1}, None),
        ({"max_tokens": 3, "n_cmpl": 4}, 12),
        ({}, None),
    ],
)
def test_the_allowance_is_what_an_engine_would_generate_when_it_has_names_of_its_own_for_it(
    fields: dict[str, int], allowance: int | None
) -> None:
    assert ask(chat(**fields)).output_tokens == allowance


BOMBS = {
    "objects": b"[" + b"{}," * 30_000 + b"{}]",
    "lists": b"[" + b"[]," * 30_000 + b"[]]",
    "lists of one": b"[" + b"[0]," * 30_000 + b"0]",
    "objects of one": b"[" + b'{"":0},' * 30_000 + b"0]",
    "nested lists": b"[[" + b"[[[[]]]]," * 20_000 + b"[]]]",
    "token ids": orjson.dumps(list(range(100_000, 130_000))),
    "floats": b"[" + b"1.5," * 30_000 + b"1]",
    "small texts": b"[" + b",".join(b'"%d"' % i for i in range(30_000)) + b"]",
    "keys": b"{" + b",".join(b'"k%d":{"a":1,"b":2}' % i for i in range(15_000)) + b"}",
    "one text with one emoji": ('["' + "a" * 400_000 + '😀"]').encode(),
    "the same, escaped": b'["' + b"a" * 400_000 + b'\\ud83d\\ude00"]',
    "one text with one letter beyond Latin": ('["' + "a" * 400_000 + 'ж"]').encode(),
}


@pytest.mark.parametrize("name", BOMBS)
async def test_a_body_takes_no_more_than_it_was_weighed_when_it_is_made_to_grow(name: str) -> None:
    body = BOMBS[name]
    tracemalloc.start()
    held = orjson.loads(body)
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held is not None
    weight = await parsed_bytes(body)
    assert taken <= weight + len(body)
    assert weight < 12 * taken + MB // 4  # and it is no guess


async def test_brackets_are_not_charged_when_they_stand_in_a_text() -> None:
    inside = json.dumps([{"a": i, "b": [1, 2, 'say "x" \\']} for i in range(20_000)])
    body = chat(inside)
    assert len(body) > MB  # the slices below are cut in the middle of it
    assert await parsed_bytes(body) < 10_000
    cut_at_a_backslash = chat("\\" * (3 * MB) + '"[{,' * 300_000)
    assert await parsed_bytes(cut_at_a_backslash) < 10_000


@given(st.lists(st.text(alphabet='\\"[]{},:aé', max_size=12), min_size=1, max_size=8), st.integers(1, 9))
async def test_texts_are_found_when_a_slice_ends_anywhere(texts: list[str], slice_bytes: int) -> None:
    body = orjson.dumps(texts)
    assert await bytes_outside_texts(body, slice_bytes) == LIST_BYTES + ENTRY_BYTES * (len(texts) - 1)


async def test_a_bomb_is_refused_before_it_is_parsed_and_nothing_of_it_stays(shell: Start) -> None:
    engine = lying_engine()
    async with engine as url:
        gateway = await shell([url], body_limit_bytes=2 * MB, open_limit_bytes=4 * MB)
        bomb = b'{"model":"' + MODEL.encode() + b'","messages":[' + b"{}," * 100_000 + b"{}]}"
        async with gateway.session.post(f"{gateway.url}/v1/chat/completions", data=bomb) as response:
            status, code = response.status, (await response.json())["error"]["code"]
        fits = await gateway.chat("lake " * 20_000)
    assert (status, code) == (400, "too_many_values")
    assert fits.status == 400  # as far as the engine, whose window it exceeds
    assert gateway.intake.open_bytes == 0


async def test_others_are_told_to_wait_when_parsed_bodies_fill_the_intake() -> None:
    intake = Intake(body_limit_bytes=MB, open_limit_bytes=10 * MB, body_timeout_s=1)
    body = b"[" + b"{}," * 20_000 + b"{}]"  # 20,000 * (240 + 64) = 6.1 MB
    held = await intake.weigh(body)
    with pytest.raises(ApiError) as refused:
        await intake.weigh(body)
    assert refused.value.problem.status == 503
    intake.release(held)
    assert intake.open_bytes == 0
    assert await intake.weigh(body) == held
