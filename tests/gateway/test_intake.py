"""Bodies and headers: what is taken, what is refused, and that nothing of a refused one stays."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from gateway_standin import MODEL, Shell
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from longproof.domain.request import Route
from longproof.gateway.errors import ApiError
from longproof.gateway.intake import parsed
from longproof.gateway.keys import KeyRule, key_digest
from longproof.testing.lying_engine import HONEST, lying_engine

Start = Callable[..., Awaitable[Shell]]
Until = Callable[..., Awaitable[None]]

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
field_names = st.sampled_from(
    ["model", "messages", "prompt", "stream", "stream_options", "max_tokens", "n", "best_of", "user", "cache_salt"]
)


async def raw(url: str, request: bytes) -> bytes:
    """What a server answers to these bytes: one whole answer, or what came before it closed or fell silent."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
    writer.write(request)
    answer = b""
    try:
        async with asyncio.timeout(20.0):
            while part := await reader.read(65_536):
                answer += part
                head, _, body = answer.partition(b"\r\n\r\n")
                length = head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0]
                if length and len(body) >= int(length):
                    break
    except TimeoutError:
        pass
    writer.close()
    return answer


def chat(**fields: Any) -> bytes:
    return json.dumps(
        {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2, **fields}
    ).encode()


def post(body: bytes, *headers: bytes) -> bytes:
    head = [b"POST /v1/chat/completions HTTP/1.1", b"Host: x", b"Content-Type: application/json", *headers]
    return b"\r\n".join(head) + b"\r\n\r\n" + body


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # about a busy machine, not about the body
@given(body=st.binary(max_size=64) | st.dictionaries(field_names, json_values).map(lambda v: json.dumps(v).encode()))
def test_a_body_is_an_ask_or_a_bad_request_whatever_it_holds(body: bytes) -> None:
    for route in Route:
        try:
            ask = parsed(body, route, request_id="1")
        except ApiError as refused:
            assert refused.problem.status == 400  # noqa: PT017 - either outcome is right
        else:
            assert ask.choices >= 1
            assert ask.output_tokens is None or ask.output_tokens >= 0


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": ""}, "model"),
        ({"model": 7}, "model"),
        ({"messages": []}, "messages"),
        ({"messages": ["Hi"]}, "messages"),
        ({"stream": "yes"}, "stream"),
        ({"stream": 1}, "stream"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"n": 0}, "n"),
        ({"n": 1_000_000}, "n"),
        ({"stream_options": []}, "stream_options"),
    ],
)
def test_the_parameter_is_named_when_it_cannot_be_meant(fields: dict[str, object], param: str) -> None:
    with pytest.raises(ApiError) as refused:
        parsed(chat(**fields), Route.CHAT, request_id="1")
    assert refused.value.problem.param == param


def test_the_allowance_is_of_all_choices_when_several_are_asked_for() -> None:
    ask = parsed(chat(n=3, max_tokens=10), Route.CHAT, request_id="1")
    assert ask.output_tokens == 30


@pytest.mark.parametrize(
    ("fields", "tokens"),
    [
        ({"max_tokens": 16.0}, 16),
        ({"max_completion_tokens": 4, "max_tokens": 900}, 900),  # which of them counts is each engine's own
        ({"max_completion_tokens": 900, "max_tokens": 4}, 900),
        ({"max_tokens": 4, "n_predict": 900}, 900),
        ({"max_tokens": 4, "n_predict": -1}, None),
        ({"max_tokens": None}, None),
    ],
)
def test_the_most_that_any_engine_could_read_is_allowed_for(fields: dict[str, object], tokens: int | None) -> None:
    assert parsed(chat(**fields), Route.CHAT, request_id="1").output_tokens == tokens


async def test_who_waits_to_be_asked_for_a_body_is_asked_and_nobody_else_is(shell: Start) -> None:
    async with lying_engine() as url:
        gateway = await shell([url], body_limit_bytes=4_096)
        port = int(gateway.url.rsplit(":", 1)[1])
        body = chat()
        expects = b"Content-Length: %d\r\nExpect: 100-continue"
        for length, first in ((len(body), b"HTTP/1.1 100 Continue\r\n\r\n"), (4_097, b"HTTP/1.1 413 ")):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(post(b"", expects % length, b"Connection: close"))
            async with asyncio.timeout(30):
                assert await reader.readexactly(len(first)) == first
                if length == len(body):
                    writer.write(body)
                    assert (await reader.read()).startswith(b"HTTP/1.1 200 ")
            writer.close()


@pytest.mark.parametrize("announced", [True, False])
async def test_413_names_the_limit_when_a_body_is_one_byte_too_long(shell: Start, announced: bool) -> None:
    async with lying_engine() as url:
        gateway = await shell([url], body_limit_bytes=4096)
        body = chat(user="x" * (4097 - len(chat(user=""))))
        assert len(body) == 4097
        if announced:
            answer = await raw(gateway.url, post(body, b"Content-Length: 4097"))
        else:
            chunk = b"1001\r\n" + body + b"\r\n0\r\n\r\n"
            answer = await raw(gateway.url, post(chunk, b"Transfer-Encoding: chunked"))
        fits = await raw(gateway.url, post(body[:-1].replace(b"xxxx", b"xxx", 0), b"Content-Length: 4096"))
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"Retry-After" not in answer
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["limit"] == 4096
    assert fits.startswith(b"HTTP/1.1 400 ")  # as long as is allowed, and cut off: read, and no JSON
    assert gateway.intake.open_bytes == 0


async def test_megabytes_reach_the_engine_whole_when_within_the_limit(shell: Start) -> None:
    engine = lying_engine(HONEST.but(window_tokens=8_000_000, prefill_tokens_per_s=1e9))
    async with engine as url:
        gateway = await shell([url], body_limit_bytes=17 << 20)
        body = chat(messages=[{"role": "user", "content": "lake " * ((16 << 20) // 5)}])
        response = await gateway.session.post(f"{gateway.url}/v1/chat/completions", data=io.BytesIO(body))
        assert response.status == 200
    assert (engine.log.last.prompt_tokens or 0) > 1_000_000
    assert gateway.intake.open_bytes == 0


async def test_503_and_nothing_kept_when_open_bodies_fill_the_intake(shell: Start, until: Until) -> None:
    async with lying_engine() as url:
        gateway = await shell([url], open_limit_bytes=10_000)
        port = int(gateway.url.rpartition(":")[2])
        _, slow = await asyncio.open_connection("127.0.0.1", port)
        slow.write(post(b"x" * 8_000, b"Content-Length: 9000"))
        await until(lambda: gateway.intake.open_bytes == 8_000)
        body = chat(user="y" * 3_000)
        answer = await raw(gateway.url, post(body, b"Content-Length: %d" % len(body)))
        slow.transport.abort()
        await until(lambda: gateway.intake.open_bytes == 0)
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b"Retry-After: 1" in answer


async def test_a_body_is_let_go_when_its_answer_has_begun(shell: Start, until: Until) -> None:
    engine = lying_engine(HONEST.but(token_s=0.05))
    async with engine as url:
        gateway = await shell([url])
        response = await gateway.chat("word " * 500, stream=True, max_tokens=1_000)
        await response.content.readuntil(b"data: ")
        held = gateway.intake.open_bytes
        response.close()
        await until(lambda: len(gateway.controller.ended) == 1)
    assert held == 0
    assert gateway.intake.open_bytes == 0


async def test_408_when_a_body_does_not_arrive_in_time(shell: Start) -> None:
    async with lying_engine() as url:
        gateway = await shell([url], body_timeout_s=0.1)
        answer = await raw(gateway.url, post(b"{", b"Content-Length: 100"))
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert gateway.intake.open_bytes == 0


@pytest.mark.parametrize("chunk", [b"ZZ\r\n", b"-1\r\nx\r\n", b"5\r\nabcdefgh", b"5;" + b"x" * 40_000 + b"\r\n"])
async def test_a_body_that_is_framed_wrongly_is_a_bad_request_and_nothing_is_kept(
    shell: Start, until: Until, chunk: bytes
) -> None:
    engine = lying_engine()
    async with engine as url:
        gateway = await shell([url], body_timeout_s=1.0)
        answer = await raw(gateway.url, post(b"1\r\n{\r\n" + chunk, b"Transfer-Encoding: chunked"))
        await until(lambda: gateway.routes.open == 0)
    assert b" 500 " not in answer.split(b"\r\n")[0]
    assert engine.log.requests == []
    assert gateway.intake.open_bytes == 0


async def test_a_compressed_body_is_refused_before_it_can_grow(shell: Start) -> None:
    async with lying_engine() as url:
        gateway = await shell([url])
        answer = await raw(gateway.url, post(b"\x1f\x8b123", b"Content-Length: 5", b"Content-Encoding: gzip"))
    assert answer.startswith(b"HTTP/1.1 415 ")


@pytest.mark.parametrize(
    "headers",
    [
        (b"Content-Length: 5", b"Content-Length: 6"),
        (b"Content-Length: 5", b"Transfer-Encoding: chunked"),
        (b"Transfer-Encoding: chunked, identity",),
        (b"Content-Length: +5",),
        (b"Content-Length: -1",),
        (b"Content-Length : 5",),
        (b"X\x00Y: 1", b"Content-Length: 5"),
        (b"X-A: 1\nContent-Length: 5",),
    ],
)
async def test_nothing_reaches_an_engine_when_two_servers_could_read_a_request_in_two_ways(
    shell: Start, headers: tuple[bytes, ...]
) -> None:
    engine = lying_engine()
    async with engine as url:
        gateway = await shell([url])
        answer = await raw(gateway.url, post(chat(), *headers))
    statuses = [line[9:12] for line in answer.split(b"\r\n") if line.startswith(b"HTTP/1.")]
    assert set(statuses) == {b"400"}
    assert engine.log.requests == []


async def test_only_named_headers_go_upstream_when_a_client_sends_many(shell: Start) -> None:
    engine = lying_engine()
    async with engine as url:
        gateway = await shell([url])
        sent = {
            "X-Request-Id": "mine-1",
            "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "X-Forwarded-For": "10.0.0.1",
            "Cookie": "a=b",
            "X-data-parallel-rank": "3",
        }
        response = await gateway.chat(headers=sent)
    got = engine.log.last.headers
    assert response.headers["X-Request-Id"] == "mine-1"
    assert got["traceparent"] == sent["traceparent"]
    assert got["x-request-id"] != "mine-1"  # ids of two clients may be the same; those an engine sees may not
    assert not {"x-forwarded-for", "cookie", "x-data-parallel-rank"} & set(got)


async def test_a_name_never_becomes_an_address_when_it_looks_like_one(shell: Start) -> None:
    async with lying_engine() as url:
        gateway = await shell([url])
        for name in ("http://169.254.169.254/latest", "../../admin", "fake-135m/../x", "x\r\nHost: y"):
            response = await gateway.chat(model=name)
            assert response.status == 404
            assert (await response.json())["error"]["code"] == "model_not_found"


@pytest.mark.parametrize("path", ["/abort_requests", "/v1/load_lora_adapter", "/slots/0", "/shutdown", "/..//tokenize"])
async def test_an_engines_own_doors_are_shut_when_they_are_not_named(shell: Start, path: str) -> None:
    engine = lying_engine()
    async with engine as url:
        gateway = await shell([url])
        answer = await raw(gateway.url, b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}" % path.encode())
    assert answer.startswith((b"HTTP/1.1 404 ", b"HTTP/1.1 405 "))
    assert path not in [call.path for call in engine.log.calls]


async def test_a_safe_route_is_passed_on_when_an_engine_has_it(shell: Start) -> None:
    async with lying_engine() as url:
        gateway = await shell(["http://127.0.0.1:9", url])
        async with gateway.session.post(f"{gateway.url}/tokenize", json={"content": "one two"}) as response:
            assert response.status == 200
            assert (await response.json())["tokens"]


async def test_models_are_listed_once_when_several_replicas_serve_them(shell: Start) -> None:
    async with lying_engine() as one, lying_engine() as two:
        gateway = await shell([one, two])
        async with gateway.session.get(f"{gateway.url}/v1/models") as response:
            assert [entry["id"] for entry in (await response.json())["data"]] == [MODEL]
        async with gateway.session.get(f"{gateway.url}/v1/models/{MODEL}") as response:
            assert response.status == 200
        async with gateway.session.get(f"{gateway.url}/v1/models/gpt") as response:
            assert response.status == 404
        async with gateway.session.get(f"{gateway.url}/v1/chat/completions") as response:
            assert response.status == 405


async def test_one_keys_slow_bodies_leave_room_for_others(shell: Start, until: Until) -> None:
    keys = [KeyRule(name=name, digest=key_digest(f"sk-{name}"), tenant=name) for name in ("slow", "other")]
    engine = lying_engine()
    async with engine as url:
        gateway = await shell([url], keys=keys, open_limit_bytes=20_000, body_limit_bytes=9_000)
        port = int(gateway.url.rpartition(":")[2])
        writers = []
        for _ in range(2):
            _, slow = await asyncio.open_connection("127.0.0.1", port)
            slow.write(post(b"x" * 4_900, b"Content-Length: 9000", b"Authorization: Bearer sk-slow"))
            writers.append(slow)
        await until(lambda: gateway.intake.open_bytes == 9_800)
        body = chat(user="y" * 3_000)
        head = b"Content-Length: %d" % len(body)
        # in two pieces, so that it is still arriving when its handler starts
        refused_reader, refused = await asyncio.open_connection("127.0.0.1", port)
        refused.write(post(b"", head, b"Authorization: Bearer sk-slow"))
        await until(lambda: gateway.routes.open == 3)
        refused.write(body)
        async with asyncio.timeout(5):
            line = await refused_reader.readline()
        served = await raw(gateway.url, post(body, head, b"Authorization: Bearer sk-other"))
        for slow in (*writers, refused):
            slow.transport.abort()
        await until(lambda: gateway.intake.open_bytes == 0)
    assert line.startswith(b"HTTP/1.1 503 ")
    assert served.startswith(b"HTTP/1.1 200 ")
