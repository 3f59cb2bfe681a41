"""HTTP/1.1 as servers and what stands between really speak it, read into one timeline."""

from __future__ import annotations

import asyncio
import gc
import itertools
import socket
import threading
import time
import zlib

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from raw_http import STREAM, TOKENS, Serve, answers, break_off, raw_server, read_request

from longproof.domain.events import EndedBy, RequestTimeline
from longproof.domain.request import GenerationRequest, IdsPrompt, TextPrompt
from longproof.engines.link import Link
from longproof.engines.openai import OpenAIEngine

SHORT = GenerationRequest(prompt=TextPrompt(text="x"), max_tokens=8, timeout_s=20.0)
LONG = GenerationRequest(prompt=IdsPrompt(ids=tuple(range(1_000_000))), max_tokens=1, timeout_s=20.0)
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"


def chunked(*pieces: bytes) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


async def exchange(serve: Serve, request: GenerationRequest = SHORT) -> RequestTimeline:
    async with raw_server(serve) as port:
        engine = OpenAIEngine(Link(f"http://127.0.0.1:{port}"), model="m")
        try:
            return await engine.send(request)
        finally:
            await engine.aclose()


def seen(timeline: RequestTimeline) -> tuple[EndedBy, int | None, str]:
    return timeline.ended_by, timeline.status, timeline.text


@pytest.mark.parametrize(
    "reply",
    [
        HEAD + b"transfer-encoding: chunked\r\n\r\n" + chunked(STREAM),
        HEAD + b"content-length: %d\r\n\r\n" % len(STREAM) + STREAM,
        HEAD + b"\r\n" + STREAM,
        HEAD.replace(b"1.1", b"1.0") + b"\r\n" + STREAM,
        HEAD.replace(b"\r\n", b"\n") + b"\n" + STREAM,
        b"HTTP/1.1 100 Continue\r\n\r\n" + HEAD + b"content-length: %d\r\n\r\n" % len(STREAM) + STREAM,
        b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n" + HEAD + b"\r\n" + STREAM,
        HEAD + b"Transfer-Encoding: CHUNKED\r\n\r\n" + chunked(STREAM[:7], STREAM[7:]),
        HEAD + b"content-length: %d\r\n\r\n" % len(STREAM) + STREAM + b"what is this?",
    ],
    ids=["chunked", "length", "until close", "HTTP/1.0", "LF", "100 first", "103 first", "CHUNKED", "more than length"],
)
async def test_answer_is_read_however_its_end_is_told(reply: bytes) -> None:
    assert seen(await exchange(answers(reply))) == (EndedBy.DONE, 200, "ab")


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cuts=st.lists(st.integers(1, 260), max_size=6), whole=st.booleans())
def test_answer_is_the_same_wherever_it_is_cut(cuts: list[int], whole: bool) -> None:
    body = chunked(TOKENS[:50], TOKENS[50:], *([b"data: [DONE]\n\n"] if whole else []))
    reply = HEAD + b"transfer-encoding: chunked\r\n\r\n" + body
    borders = sorted({0, len(reply), *(cut for cut in cuts if cut < len(reply))})
    pieces = [reply[start:end] for start, end in itertools.pairwise(borders)]
    timeline = asyncio.run(exchange(answers(*pieces, pause_s=0.002)))
    assert seen(timeline) == (EndedBy.DONE if whole else EndedBy.EOF, 200, "ab")
    assert timeline.malformed == ()


@pytest.mark.parametrize(
    ("ending", "words"),
    [
        (b"transfer-encoding: chunked\r\n\r\n" + chunked(TOKENS)[:-5], "before the end of the body"),
        (b"content-length: 9999\r\n\r\n" + TOKENS, "before the end of the body"),
        (b"transfer-encoding: chunked\r\n\r\n" + chunked(TOKENS)[:-5] + b"zz\r\n", "not HTTP/1.1"),
    ],
    ids=["no last chunk", "shorter than told", "no chunk size"],
)
async def test_end_is_cut_when_the_body_is_not_whole(ending: bytes, words: str) -> None:
    timeline = await exchange(answers(HEAD + ending))
    assert seen(timeline) == (EndedBy.CUT, 200, "ab")
    assert words in (timeline.transport_error or "")


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (b"", "without an answer"),
        (b"HTTP/1.1 200 OK\r\ncontent-", "without an answer"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "not HTTP/1.1"),
        (b"HTTP/1.1 101 Switching Protocols\r\nupgrade: h2c\r\nconnection: upgrade\r\n\r\n", "not HTTP/1.1"),
        (b"HTTP/1.1 200 OK\r\n" + b"x-filler: %s\r\n" % (b"y" * 1000) * 400, "headers of more than 262144 bytes"),
    ],
    ids=["nothing", "half a head", "another protocol", "an upgrade", "headers without end"],
)
async def test_end_is_unreachable_when_there_is_no_answer(reply: bytes, words: str) -> None:
    timeline = await exchange(answers(reply))
    assert (timeline.ended_by, timeline.status) == (EndedBy.UNREACHABLE, None)
    assert words in (timeline.transport_error or "")


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
async def test_answer_is_unpacked_when_a_proxy_packed_it(encoding: str) -> None:
    packer = zlib.compressobj(wbits=31 if encoding == "gzip" else 15)
    packed = [packer.compress(piece) + packer.flush(zlib.Z_SYNC_FLUSH) for piece in (TOKENS, b"data: [DONE]\n\n")]
    head = HEAD + b"content-encoding: %s\r\ntransfer-encoding: chunked\r\n\r\n" % encoding.encode()
    timeline = await exchange(answers(head, chunked(*packed, packer.flush())))
    assert seen(timeline) == (EndedBy.DONE, 200, "ab")


@pytest.mark.parametrize("encoding", ["br", "gzip"])
async def test_end_is_cut_when_the_packing_is_unknown_or_broken(encoding: str) -> None:
    head = HEAD + b"content-encoding: %s\r\n\r\n" % encoding.encode()
    timeline = await exchange(answers(head + b"\x01\x02\x03\x04\x05\x06\x07\x08"))
    assert seen(timeline) == (EndedBy.CUT, 200, "")
    assert "DecodingError" in (timeline.transport_error or "")


REFUSAL = b"HTTP/1.1 413 Too Large\r\ncontent-length: 21\r\n\r\n" + b'{"error":"too large"}'


async def test_refusal_is_kept_when_a_server_resets_in_the_middle_of_a_long_body() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(REFUSAL)
        await writer.drain()
        writer.transport.pause_reading()
        await asyncio.sleep(0.05)
        writer.transport.abort()  # bytes lie unread, so the kernel sends a reset

    timeline = await exchange(serve, LONG)
    assert seen(timeline) == (EndedBy.HTTP_ERROR, 413, "")
    assert timeline.error is not None
    assert timeline.error.message == "too large"


async def test_refusal_is_kept_when_the_reset_comes_while_our_loop_is_busy() -> None:
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:  # in a thread: our loop sleeps while answer and reset arrive, and its next act is a write
        connection, _ = listener.accept()
        connection.recv(65536)
        connection.sendall(REFUSAL)
        connection.close()  # unread bytes: a reset

    thread = threading.Thread(target=serve)
    thread.start()

    engine = OpenAIEngine(Link(f"http://127.0.0.1:{listener.getsockname()[1]}"), model="m")
    sending = asyncio.create_task(engine.send(LONG))
    while thread.is_alive():
        await asyncio.sleep(0)
        time.sleep(0.01)  # noqa: ASYNC251 - the busy loop is the point
    timeline = await sending
    await engine.aclose()
    listener.close()
    assert seen(timeline) == (EndedBy.HTTP_ERROR, 413, "")


async def test_answer_is_over_when_a_server_that_reads_nothing_refuses() -> None:
    stay = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.transport.pause_reading()
        writer.write(REFUSAL)
        await stay.wait()

    timeline = await exchange(serve, LONG)
    assert seen(timeline) == (EndedBy.HTTP_ERROR, 413, "")


async def test_we_can_leave_while_a_server_reads_nothing() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.pause_reading()
        await asyncio.sleep(60)

    async with raw_server(serve) as port:
        engine = OpenAIEngine(Link(f"http://127.0.0.1:{port}"), model="m")
        leave = asyncio.Event()
        sending = asyncio.create_task(engine.send(LONG, leave=leave))
        await asyncio.sleep(0.2)
        assert not sending.done()
        leave.set()
        timeline = await sending
        assert (timeline.ended_by, timeline.status) == (EndedBy.CANCELLED, None)
        await engine.aclose()


async def test_end_is_unreachable_when_the_server_resets_without_an_answer() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        break_off(writer)

    timeline = await exchange(serve)
    assert (timeline.ended_by, timeline.status) == (EndedBy.UNREACHABLE, None)
    assert "ReadError" in (timeline.transport_error or "")


async def test_request_is_whole_and_says_who_asks() -> None:
    asked: list[tuple[str, dict[str, str], bytes]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await read_request(reader))
        writer.write(HEAD + b"\r\n" + STREAM)

    async with raw_server(serve) as port:
        engine = OpenAIEngine(Link(f"http://localhost:{port}/some%20where", api_key="key-123456"), model="m")
        timeline = await engine.send(SHORT)
        await engine.aclose()
    assert seen(timeline) == (EndedBy.DONE, 200, "ab")
    ((line, headers, body),) = asked
    assert line == "POST /some%20where/v1/completions HTTP/1.1"
    assert headers == {
        "host": f"localhost:{port}",
        "accept-encoding": "identity",
        "user-agent": "longproof",
        "authorization": "Bearer key-123456",
        "content-type": "application/json",
        "accept": "text/event-stream, application/json",
        "content-length": str(timeline.body_bytes),
    }
    assert len(body) == timeline.body_bytes


async def test_nothing_of_an_exchange_is_left_to_the_garbage_collector() -> None:
    async with raw_server(answers(HEAD + b"transfer-encoding: chunked\r\n\r\n" + chunked(STREAM))) as port:
        engine = OpenAIEngine(Link(f"http://127.0.0.1:{port}"), model="m")
        await engine.send(SHORT)
        gc.collect()
        gc.disable()
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            for _ in range(5):
                await engine.send(SHORT, leave=asyncio.Event())
            await asyncio.sleep(0.05)
            gc.collect()
            left = {type(item).__qualname__ for item in gc.garbage if type(item).__module__.startswith("longproof")}
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()
        await engine.aclose()
    assert left == set()


async def test_stamps_are_of_the_read_and_not_of_when_somebody_got_round_to_it() -> None:
    readings: list[int] = []

    class Counting:
        def now_ns(self) -> int:
            readings.append(0)
            return len(readings)

        def wall(self) -> object:
            raise NotImplementedError

    async with raw_server(answers(HEAD + b"transfer-encoding: chunked\r\n\r\n" + chunked(STREAM))) as port:
        engine = OpenAIEngine(Link(f"http://127.0.0.1:{port}", clock=Counting()), model="m")  # type: ignore[arg-type]
        timeline = await engine.send(SHORT)
        await engine.aclose()
    # 1 before connecting, 2 as the request leaves, 3 at the one read that brought everything
    assert timeline.submitted_ns == 2
    assert {timeline.headers_ns, timeline.first_byte_ns, timeline.first_event_ns, timeline.first_token_ns} == {3}
    assert [chunk.at_ns for chunk in timeline.chunks] == [3, 3]
    assert timeline.finished_ns == 3
