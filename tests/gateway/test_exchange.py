"""One request through the shell: streams, refusals, breaks, disconnects. Real sockets on both sides."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from gateway_standin import Shell

from longproof.clock import SystemClock
from longproof.policy.arrivals import Arrival, EndKind
from longproof.testing.behaviour import Behaviour
from longproof.testing.dialects import VLLM
from longproof.testing.engine_log import Ending
from longproof.testing.lies import Crash, CutStream, ErrorInStream, Hang, Refuse, SlowHeaders, SlowPrefill
from longproof.testing.lies_of_load import BusyInStream
from longproof.testing.lying_engine import HONEST, lying_engine

Start = Callable[..., Awaitable[Shell]]
Until = Callable[..., Awaitable[None]]
SLOW = HONEST.but(token_s=0.05)


def events_of(raw: bytes) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in raw.split(b"\n") if line.startswith(b"data: {")]


def post(**fields: object) -> bytes:
    body = json.dumps({"model": "fake-135m", "messages": [{"role": "user", "content": "Hi"}], **fields}).encode()
    return b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body


def most_buffered_bytes() -> int:
    """What the kernel may hold on the way: the engine's and the gateway's sending, and the gateway's receiving."""
    receiving, sending = (
        int(Path(f"/proc/sys/net/ipv4/tcp_{kind}").read_text().split()[2]) for kind in ("rmem", "wmem")
    )
    return receiving + 2 * sending


async def test_a_plain_answer_is_the_engines_when_asked_without_stream(shell: Start) -> None:
    engine = lying_engine()
    async with engine as url:
        gateway = await shell([url])
        response = await gateway.chat()
        answer = await response.json()
    assert response.status == 200
    assert answer["choices"][0]["message"]["content"] == engine.log.last.text
    assert gateway.books.ends[0].output_tokens == 8
    assert gateway.books.ends[0].input_tokens == answer["usage"]["prompt_tokens"]
    assert [end.kind for end in gateway.controller.ended.values()] == [EndKind.COMPLETED]


async def test_a_stream_comes_through_unchanged_when_the_client_asks_for_usage(shell: Start) -> None:
    async with lying_engine() as url:
        gateway = await shell([url])
        response = await gateway.chat(stream=True, stream_options={"include_usage": True})
        raw = await response.read()
    assert response.headers["Content-Type"].startswith("text/event-stream")
    assert raw.endswith(b"data: [DONE]\n\n")
    assert [event for event in events_of(raw) if event.get("usage")]


@pytest.mark.parametrize("options", [{}, {"stream_options": {}}, {"stream_options": {"include_usage": False}}])
async def test_usage_is_metered_and_not_shown_when_the_client_did_not_ask(
    shell: Start, options: dict[str, object]
) -> None:
    engine = lying_engine()
    async with engine as url:
        gateway = await shell([url])
        raw = await (await gateway.chat(stream=True, **options)).read()
    assert not [event for event in events_of(raw) if event.get("usage")]
    assert raw.endswith(b"data: [DONE]\n\n")
    spent = gateway.books.ends[0]
    # the engine's own figures: the prompt it read, and the eight tokens that were asked for
    assert (spent.reported, spent.input_tokens, spent.output_tokens) == (True, engine.log.last.prompt_tokens, 8)


async def test_the_next_replica_is_asked_when_one_cannot_be_reached(shell: Start) -> None:
    engine = lying_engine()
    async with engine as url:
        gateway = await shell(["http://127.0.0.1:9", url])
        response = await gateway.chat()
    assert response.status == 200
    assert response.headers["X-Longproof-Replica"] == "r1"
    assert len(engine.log.requests) == 1


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("stream", [False, True])
async def test_each_replica_is_asked_once_and_retry_after_is_theirs_when_all_refuse(
    shell: Start, status: int, stream: bool
) -> None:
    refusing = HONEST.lying(Refuse(status=status, retry_after_s=7))
    first, second = lying_engine(refusing), lying_engine(refusing)
    async with first as one, second as two:
        gateway = await shell([one, two])
        response = await gateway.chat(stream=stream)
        body = await response.json()
        again = await gateway.chat(stream=stream)
    assert response.status == 503
    assert response.headers["Retry-After"] in ("6", "7")  # whole seconds, and asking the second may have taken one
    assert body["error"]["code"] == "busy"
    # nobody is asked again before its seven seconds are over
    assert again.status == 503
    assert (len(first.log.requests), len(second.log.requests)) == (1, 1)
    assert [end.ending for end in gateway.books.ends] == ["rejected"]


async def test_the_next_replica_is_asked_when_one_refuses_inside_a_stream(shell: Start) -> None:
    busy = lying_engine(HONEST.but(dialect=VLLM).lying(BusyInStream(limit=0)))
    honest = lying_engine(HONEST.but(dialect=VLLM))
    async with busy as one, honest as two:
        gateway = await shell([one, two])
        response = await gateway.chat(stream=True)
        raw = await response.read()
    assert response.status == 200
    assert b"error" not in raw
    assert len(honest.log.requests) == 1


async def test_an_engines_own_refusal_is_passed_on_without_retry_after_when_the_prompt_is_too_long(
    shell: Start,
) -> None:
    engine = lying_engine(HONEST.but(window_tokens=64))
    async with engine as url:
        gateway = await shell([url])
        response = await gateway.chat("word " * 200)
        body = await response.json()
    assert response.status == 400
    assert body["error"]["type"] == "exceed_context_size_error"
    assert "Retry-After" not in response.headers
    assert [end.kind for end in gateway.controller.ended.values()] == [EndKind.REJECTED]


async def test_a_failure_is_passed_on_and_not_tried_again_when_an_engine_answers_500(shell: Start) -> None:
    failing = HONEST.lying(Refuse(status=500, retry_after_s=None))
    first, second = lying_engine(failing), lying_engine()
    async with first as one, second as two:
        gateway = await shell([one, two])
        response = await gateway.chat()
        await response.read()
    assert response.status == 500
    assert (len(first.log.requests), len(second.log.requests)) == (1, 0)
    assert [end.kind for end in gateway.controller.ended.values()] == [EndKind.FAILED]


async def test_nothing_is_generated_twice_when_an_engine_dies_before_its_answer(shell: Start) -> None:  # nuguard#455
    first, second = lying_engine(HONEST.lying(Crash())), lying_engine()
    async with first as one, second as two:
        gateway = await shell([one, two])
        response = await gateway.chat(stream=True)
        body = await response.json()
    assert response.status == 502
    assert body["error"]["code"] == "replica_lost"
    assert len(second.log.requests) == 0


@pytest.mark.parametrize("options", [{}, {"stream_options": {"include_usage": True}}])
async def test_the_stream_ends_with_an_error_event_when_the_engine_cuts_it(
    shell: Start, options: dict[str, object]
) -> None:  # hindsight#1567
    first, second = lying_engine(HONEST.lying(CutStream(after_tokens=3, where="in_event"))), lying_engine()
    async with first as one, second as two:
        gateway = await shell([one, two])
        response = await gateway.chat(stream=True, **options)
        raw = await response.read()
    assert len(events_of(raw)) == 5  # the role, three tokens, the error: each can be read, and nothing stands between
    assert raw.count(b"data: ") == 6
    last = [line for line in raw.split(b"\n") if line.startswith(b"data: ")][-2:]
    assert json.loads(last[0][6:])["error"]["code"] == "replica_lost"
    assert last[1] == b"data: [DONE]"
    assert len(second.log.requests) == 0
    assert [end.kind for end in gateway.controller.ended.values()] == [EndKind.FAILED]
    assert gateway.books.ends[0].ending == "failed"
    assert gateway.books.ends[0].output_tokens == 3  # neither the event with the role, nor the half one


async def test_an_error_event_is_passed_on_as_a_failure_when_the_engine_sends_one(shell: Start) -> None:
    async with lying_engine(HONEST.lying(ErrorInStream(after_tokens=2))) as url:
        gateway = await shell([url])
        raw = await (await gateway.chat(stream=True)).read()
    assert b"CUDA out of memory" in raw
    assert [end.kind for end in gateway.controller.ended.values()] == [EndKind.FAILED]
    assert gateway.books.ends[0].output_tokens == 2  # not the event with the role, nor the one with the error


async def test_an_engine_is_given_up_when_it_sends_nothing(shell: Start) -> None:
    engine = lying_engine(HONEST.lying(Hang()))
    async with engine as url:
        gateway = await shell([url], silence_s=0.2)
        response = await gateway.chat()
        body = await response.json()
        engine.log.wait_for(lambda log: log.last.ending is Ending.DISCONNECTED)
    assert response.status == 504
    assert body["error"]["code"] == "replica_silent"


@pytest.mark.parametrize(
    ("behaviour", "stream"),
    [(SLOW, True), (HONEST.lying(SlowPrefill(delay_s=30)), True), (HONEST.lying(SlowHeaders(delay_s=30)), False)],
    ids=["mid-stream", "before the first byte", "plain"],
)
async def test_the_engine_sees_the_client_leave_when_it_does(
    shell: Start, until: Until, behaviour: Behaviour, stream: bool
) -> None:  # production-stack#867, lemonade#3133: without a stream, and during a long prefill
    engine = lying_engine(behaviour)
    async with engine as url:
        gateway = await shell([url])
        port = int(gateway.url.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(post(stream=stream, max_tokens=400))
        await until(lambda: len(engine.log.requests) == 1)
        if behaviour is SLOW:
            await reader.readuntil(b"data: ")
        writer.transport.abort()
        await until(lambda: engine.log.last.ending is Ending.DISCONNECTED)
        await until(lambda: len(gateway.controller.ended) == 1)
    assert [end.kind for end in gateway.controller.ended.values()] == [EndKind.CANCELLED]
    assert [end.ending for end in gateway.books.ends] == ["cancelled"]
    assert gateway.intake.open_bytes == 0


async def test_nothing_reaches_an_engine_when_the_client_leaves_while_it_waits(shell: Start, until: Until) -> None:
    engine = lying_engine(SLOW)
    async with engine as url:
        gateway = await shell([url], most=1)
        running = await gateway.chat(stream=True, max_tokens=1_000)
        waiting = asyncio.create_task(gateway.chat())
        await until(lambda: len(gateway.controller.waiting) == 1)
        waiting.cancel()
        await until(lambda: len(gateway.controller.waiting) == 0)
        running.close()
        await until(lambda: len(gateway.controller.ended) == 1)
    assert len(engine.log.requests) == 1


async def test_comments_come_when_a_stream_waits_for_a_place(shell: Start, until: Until) -> None:  # vllm#47647
    engine = lying_engine(SLOW)
    async with engine as url:
        gateway = await shell([url], most=1, keepalive_s=0.05)
        running = await gateway.chat(stream=True, max_tokens=1_000)
        waiting = await gateway.chat(stream=True, max_tokens=2)
        # its headers are here, and nothing of it was sent to the engine
        assert (waiting.status, len(engine.log.requests)) == (200, 1)
        running.close()  # makes room
        raw = await waiting.read()
    assert raw.startswith(b": waiting\n\n")
    assert len(events_of(raw)) >= 2
    assert raw.endswith(b"data: [DONE]\n\n")


async def test_comments_come_when_the_prefill_is_long(shell: Start) -> None:  # litellm#34819, ds4#151
    async with lying_engine(HONEST.lying(SlowPrefill(delay_s=0.8))) as url:
        gateway = await shell([url], keepalive_s=0.02)
        raw = await (await gateway.chat(stream=True)).read()
    assert raw.count(b": waiting\n\n") >= 2
    assert b"error" not in raw


async def test_a_refusal_is_an_event_when_comments_were_sent_before(shell: Start, until: Until) -> None:
    slow = HONEST.lying(SlowHeaders(delay_s=0.6))
    engine = lying_engine(slow)
    async with engine as url:
        gateway = await shell([url], keepalive_s=0.01)
        response = await gateway.chat("word " * 9000, stream=True)
        raw = await response.read()
    assert response.status == 200
    assert b'"error"' in raw
    assert raw.endswith(b"data: [DONE]\n\n")


async def test_no_connection_pool_holds_back_a_stream_when_more_than_a_hundred_are_open(
    shell: Start, until: Until
) -> None:  # production-stack#448: a client library's default of 100 connections was a hidden queue
    engine = lying_engine(HONEST.but(slots=130).lying(Hang()))
    async with engine as url:
        gateway = await shell([url])
        port, writers = int(gateway.url.rpartition(":")[2]), []
        for _ in range(130):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(post(stream=True))
            writers.append(writer)
        await until(lambda: len(engine.log.requests) == 130, within_s=30)
        assert all(served.ending is None for served in engine.log.requests)
        for writer in writers:
            writer.transport.abort()
        await until(lambda: len(gateway.controller.ended) == 130, within_s=30)
    assert {end.kind for end in gateway.controller.ended.values()} == {EndKind.CANCELLED}


async def test_a_slow_reader_stops_the_engines_stream_when_its_buffers_are_full(shell: Start, until: Until) -> None:
    # events of about 200 bytes, together twice what the kernel's buffers on the way may grow to on this machine
    events = most_buffered_bytes() // 100
    engine = lying_engine(HONEST.but(token_s=0.0, window_tokens=2 * events))
    async with engine as url:
        gateway = await shell([url], stall_s=0.3)
        with socket.socket() as slow:
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            slow.connect(("127.0.0.1", int(gateway.url.rpartition(":")[2])))
            slow.sendall(post(stream=True, max_tokens=events))
            await until(lambda: len(gateway.controller.ended) == 1, within_s=300)
            await until(lambda: engine.log.last.ending is not None, within_s=300)
    assert engine.log.last.ending is Ending.DISCONNECTED
    assert [end.kind for end in gateway.controller.ended.values()] == [EndKind.CANCELLED]
    assert engine.log.last.output_tokens < events


async def test_a_reader_who_pauses_gets_the_whole_stream_when_he_goes_on(shell: Start) -> None:
    # 8,000 events of about 200 bytes: 1.6 MB, far more than is buffered for a client (64 KiB, in the kernel 256 KiB)
    engine = lying_engine(HONEST.but(token_s=0.0, window_tokens=1_000_000))
    async with engine as url:
        gateway = await shell([url])
        with socket.socket() as slow:
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            slow.connect(("127.0.0.1", int(gateway.url.rpartition(":")[2])))
            reader, writer = await asyncio.open_connection(sock=slow.dup(), limit=4_096)
            writer.write(post(stream=True, max_tokens=8_000))
            for _ in range(100):  # away, for about as long as the engine takes to fill all buffers
                await asyncio.sleep(0.002)
            raw = b""
            while not raw.endswith(b"0\r\n\r\n"):
                raw += await reader.read(1 << 16)
                if len(raw) % 7 == 0:
                    await asyncio.sleep(0.001)
            writer.close()
    events = events_of(re.sub(rb"\r\n[0-9a-f]+\r\n", b"", raw))  # without what frames the chunks
    deltas = [choice["delta"].get("content") or "" for event in events for choice in event["choices"]]
    assert "".join(deltas) == engine.log.last.text
    assert [end.output_tokens for end in gateway.books.ends] == [8_000]
    assert [end.kind for end in gateway.controller.ended.values()] == [EndKind.COMPLETED]


async def test_a_request_is_served_by_its_bound_when_counting_breaks(
    shell: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("gateway_standin.ByBytes.count", broken)
    async with lying_engine() as url:
        gateway = await shell([url], count=True)
        response = await gateway.chat("word " * 100)
    assert response.status == 200
    assert gateway.controller.names("counted")
    assert "ZeroDivisionError" in caplog.text


async def test_the_exact_length_is_told_when_the_controller_asks_for_it(shell: Start) -> None:
    async with lying_engine() as url:
        gateway = await shell([url], count=True)
        response = await gateway.chat("word " * 100)
    assert response.status == 200
    (counted,) = gateway.controller.names("counted")
    assert gateway.books.intents[0].input_tokens == counted


async def test_whoever_is_connected_is_served_when_the_gateway_drains(shell: Start) -> None:
    async with lying_engine() as url:
        gateway = await shell([url])
        clients = [socket.create_connection(("127.0.0.1", int(gateway.url.rpartition(":")[2]))) for _ in range(5)]
        for client in clients:
            client.sendall(post(max_tokens=2))
        # nobody has accepted them: the event loop had no turn since
        cut_off = await gateway.listener.drain(grace_s=0, within_s=30)
        answers = [await asyncio.to_thread(client.recv, 64) for client in clients]
        for client in clients:
            client.close()
    assert cut_off == 0
    assert [answer.split(b"\r\n")[0] for answer in answers] == [b"HTTP/1.1 200 OK"] * 5


@pytest.mark.parametrize(("written", "within_s"), [("2.5s", 2.5), ("800ms", 0.8), ("3", 3.0), ("0", 0.0)])
async def test_a_deadline_is_the_clients_when_it_names_one(shell: Start, written: str, within_s: float) -> None:
    async with lying_engine() as url:
        gateway = await shell([url])
        before_ns = SystemClock().now_ns()
        response = await gateway.chat(headers={"X-Longproof-Deadline": written})
        after_ns = SystemClock().now_ns()
    (arrival,) = gateway.controller.names("arrival")
    assert response.status == 200
    assert isinstance(arrival, Arrival)
    assert arrival.deadline_ns is not None
    assert before_ns <= arrival.deadline_ns - round(within_s * 1e9) <= after_ns


@pytest.mark.parametrize("written", ["soon", "-1s", "", "9" * 400, "25h", "1e3", "٣"])
async def test_a_deadline_that_is_none_is_refused(shell: Start, written: str) -> None:
    async with lying_engine() as url:
        gateway = await shell([url])
        response = await gateway.chat(headers={"X-Longproof-Deadline": written})
        error = (await response.json())["error"]
    assert (response.status, error["param"]) == (400, "X-Longproof-Deadline")
    assert gateway.controller.names("arrival") == []
