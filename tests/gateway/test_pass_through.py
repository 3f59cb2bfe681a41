"""Routes that are passed on: the ones that are named, and no way around."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
from gateway_standin import Shell
from test_intake import raw

from longproof.testing.lying_engine import lying_engine
from longproof.testing.scripted_http import Reply, ScriptedHttp

Start = Callable[..., Awaitable[Shell]]


def post(path: str, *headers: str, body: str = "{}") -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: x", f"Content-Length: {len(body)}", "Connection: close", *headers]
    return ("\r\n".join(lines) + "\r\n\r\n" + body).encode("utf-8", "surrogateescape")


@pytest.mark.parametrize(
    "path",
    [
        "/v1/audio/../../shutdown",
        "/v1/audio/%2e%2e/%2e%2e/shutdown",
        "/v1/audio/..%2f..%2fshutdown",
        "/v1/audio//shutdown",
        "/v1/audio/x%3Fy=1",
        "/v1/audio/x%23y",
        "/v1/audio/x%0d%0aX-Y:%20z",
        "/v1/audio/x%00",
        "/v1/audio/x\\..\\shutdown",
        "http://evil.example/v1/audio/../shutdown",
        "/tokenize/../shutdown",
        "//tokenize",
        "/tokenize;x",
        "/v1/../metrics",
        "/sleep",
        "/wake_up",
        "/collective_rpc",
        "/reset_prefix_cache",
        "/v1/load_lora_adapter",
        "/v1/unload_lora_adapter",
        "/slots/0?action=erase",
        "/props",
        "/flush_cache",
        "/abort_request",
        "/update_weights_from_disk",
        "/generate",
        "/start_profile",
    ],
)
async def test_no_engine_hears_of_it_when_a_path_leads_out_of_what_is_passed_on(shell: Start, path: str) -> None:
    engine = lying_engine()
    async with engine as url:
        gateway = await shell([url])
        gateway.routes.add("POST", "/v1/audio/*", gateway.routes.exact["POST", "/tokenize"])  # as pass_through can
        before = len(engine.log.calls)
        answer = await raw(gateway.url, post(path))
        assert answer.split(b" ")[1] in (b"400", b"404", b"405"), answer
        assert len(engine.log.calls) == before


async def test_the_engine_is_reached_at_its_own_address_when_a_client_names_another(shell: Start) -> None:
    engine = lying_engine()
    async with engine as url:
        gateway = await shell([url])
        answer = await raw(gateway.url, post("http://169.254.169.254/tokenize", body='{"content": "one two"}'))
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert [call.path for call in engine.log.calls].count("/tokenize") == 1


@pytest.mark.parametrize("value", ["\udcff\udcfe", "x" * 300, ""])
async def test_a_content_type_is_passed_on_only_when_it_can_be_one(shell: Start, value: str) -> None:
    async with lying_engine() as url:
        gateway = await shell([url])
        answer = await raw(gateway.url, post("/tokenize", f"Content-Type: {value}", body='{"content": "one"}'))
    assert answer.startswith(b"HTTP/1.1 200 ")


async def test_headers_of_any_bytes_are_answered_in_order_and_never_logged_as_our_bug(
    shell: Start, caplog: pytest.LogCaptureFixture
) -> None:
    body = '{"model": "fake-135m", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}'
    async with lying_engine() as url:
        gateway = await shell([url])
        for header, status in (
            ("X-Session-Id: \udcff", 200),
            ("X-Request-Id: a\udcff", 200),
            ("tracestate: \udcff", 200),
            ("traceparent: \udcff", 200),
            ("Content-Encoding: \udcff", 415),
        ):
            answer = await raw(gateway.url, post("/v1/chat/completions", header, body=body))
            assert answer.split(b" ")[1] == str(status).encode(), (header, answer)
    sessions = [arrival.session for arrival in gateway.controller.names("arrival")]  # type: ignore[attr-defined]
    assert "?" in sessions  # it is text again: logs and books are UTF-8
    assert caplog.records == []


@pytest.mark.parametrize("status", [429, 503])
async def test_a_busy_replica_is_left_alone_and_the_next_one_asked(shell: Start, status: int) -> None:
    async with lying_engine() as good, ScriptedHttp({}) as busy:
        busy.routes["POST /tokenize"] = Reply.json({"error": {"message": "busy"}}, status=status, retry_after="7")
        gateway = await shell([busy.url, good])
        for _ in range(4):
            answer = await gateway.session.post(f"{gateway.url}/tokenize", json={"content": "one two"})
            assert answer.status == 200
    assert len(busy.received) == 1  # it has asked for seven seconds


async def test_their_retry_after_is_told_when_every_replica_is_busy(shell: Start) -> None:
    async with ScriptedHttp({}) as first, ScriptedHttp({}) as second:
        for engine, seconds in ((first, "30"), (second, "70")):
            engine.routes["POST /tokenize"] = Reply.text("busy", status=503, retry_after=seconds)
        gateway = await shell([first.url, second.url])
        answers = [await gateway.session.post(f"{gateway.url}/tokenize", json={"content": "x"}) for _ in range(2)]
        for answer in answers:
            assert (answer.status, (await answer.json())["error"]["code"]) == (503, "engine_busy")
            assert 25 <= int(answer.headers["Retry-After"]) <= 30
    assert (len(first.received), len(second.received)) == (1, 1)


async def test_a_route_that_only_reads_is_passed_on_without_a_body(shell: Start) -> None:
    async with ScriptedHttp({"GET /version": Reply.json({"version": "0.32.0"})}) as engine:
        gateway = await shell([engine.url])
        gateway.routes.add("GET", "/version", gateway.routes.exact["POST", "/tokenize"])  # as pass_through can
        answer = await gateway.session.get(f"{gateway.url}/version")
        assert (answer.status, await answer.json()) == (200, {"version": "0.32.0"})
    assert "content-length" not in engine.received[-1].headers


async def test_every_answer_has_a_request_id_and_the_clients_own_comes_back(shell: Start) -> None:
    async with lying_engine() as url:
        gateway = await shell([url])
        session, seen = gateway.session, set[str]()
        for _ in range(2):
            for answer in (
                await session.get(f"{gateway.url}/v1/models"),
                await session.get(f"{gateway.url}/nowhere"),
                await session.post(f"{gateway.url}/tokenize", json={"content": "x"}),
                await session.post(f"{gateway.url}/v1/chat/completions", data=b"{"),
                await gateway.chat(),
            ):
                seen.add(answer.headers["X-Request-Id"])
        assert len(seen) == 10
        for path in ("/nowhere", "/v1/models"):
            answer = await session.get(f"{gateway.url}{path}", headers={"X-Request-Id": "mine"})
            assert answer.headers["X-Request-Id"] == "mine"


async def test_the_method_that_there_is_is_named_when_another_was_used(shell: Start) -> None:
    async with lying_engine() as url:
        gateway = await shell([url])
        answer = await gateway.session.get(f"{gateway.url}/v1/chat/completions")
    assert (answer.status, answer.headers["Allow"]) == (405, "POST")
