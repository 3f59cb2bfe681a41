"""The connections to engines, against servers that send exactly the bytes a test says."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trustme
from aiohttp.web import BaseRequest, Response
from raw_http import Serve, raw_server
from yarl import URL

from longproof.gateway.engine_connection import EngineConnection
from longproof.gateway.listener import Listener
from longproof.gateway.routes import Routes
from longproof.gateway.turns import LARGE_BYTES
from longproof.gateway.upstream import Answer, Lost, Unreached, Upstream
from longproof.testing.loop_turns import loop_turns

PLAIN = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\nhi"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


class Engine:
    """Answers every request with `answers`, the last one for ever; counts its connections."""

    def __init__(self, *answers: bytes, close: bool = False) -> None:
        self.answers = list(answers)
        self.close = close
        self.requests: list[bytes] = []
        self.connections = 0
        self.asked, self.left = asyncio.Event(), asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while request := await read_request(reader):
                self.requests.append(request)
                self.asked.set()
                writer.write(self.answers[min(len(self.requests), len(self.answers)) - 1])
                await writer.drain()
                if self.close:
                    break
        except ConnectionError:
            pass
        finally:
            self.left.set()
            writer.close()


async def read_request(reader: asyncio.StreamReader) -> bytes:
    """Head and body; empty at the end of the connection."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return b""
    length = next((int(line[15:]) for line in head.split(b"\r\n") if line.startswith(b"Content-Length:")), 0)
    return head + await reader.readexactly(length)


def more_than_is_kept_bytes() -> int:
    """Whole MiB, and 16 more of them than this machine's kernel may keep between two sockets."""
    kept = (int(Path(f"/proc/sys/net/ipv4/tcp_{kind}").read_text().split()[2]) for kind in ("rmem", "wmem"))
    return ((sum(kept) >> 20) + 16) << 20


@asynccontextmanager
async def listening(serve: Serve, tls: ssl.SSLContext | None = None) -> AsyncIterator[URL]:
    async with raw_server(serve, tls) as port:
        yield URL(f"http{'' if tls is None else 's'}://127.0.0.1:{port}/v1/x")


@pytest.fixture
async def upstream() -> AsyncIterator[Upstream]:
    async with Upstream() as made:
        yield made


async def test_one_connection_serves_the_next_request_when_the_answer_was_whole(upstream: Upstream) -> None:
    engine = Engine(PLAIN, CHUNKED + b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n", PLAIN)
    async with listening(engine.serve) as url:
        bodies: list[bytes] = []
        for _ in range(3):
            answer = await upstream.send(url, {"X-A": "b"}, b"{}")
            bodies.append(await answer.read())
    assert bodies == [b"hi", b"abcde", b"hi"]
    assert engine.connections == 1
    port = url.port
    head = f"POST /v1/x HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nX-A: b\r\nContent-Length: 2\r\n\r\n".encode()
    assert engine.requests == [head + b"{}"] * 3


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nhi",
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nhi",
        PLAIN + b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nother",  # an answer nobody asked for
        PLAIN + b"HTTP/1.1",
        PLAIN + b"x",
    ],
    ids=["close", "1.0", "second answer", "part of one", "junk"],
)
async def test_the_next_request_has_a_new_connection_when_the_first_cannot_be_trusted(
    upstream: Upstream, answer: bytes
) -> None:
    engine = Engine(answer, PLAIN)
    async with listening(engine.serve) as url:
        bodies = [await (await upstream.send(url, {}, b"{}")).read() for _ in range(2)]
    assert bodies == [b"hi", b"hi"]
    assert engine.connections == 2


async def test_an_answer_is_the_same_when_it_comes_byte_by_byte(upstream: Upstream) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await read_request(reader):
            for byte in CHUNKED + b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n":
                writer.write(bytes([byte]))
                await asyncio.sleep(0)  # the other side reads in between

    async with listening(serve) as url:
        for _ in range(2):
            answer = await upstream.send(url, {}, b"{}")
            assert (answer.status, await answer.read()) == (200, b"abcde")


async def test_the_next_request_has_a_new_connection_when_the_last_one_was_not_read_to_its_end(
    upstream: Upstream,
) -> None:
    connections: list[bytes] = []
    over = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(PLAIN)
        await over.wait()  # and never reads the body

    async with listening(serve) as url:
        long = await upstream.send(url, {}, b"x" * (32 << 20))
        assert await long.read() == b"hi"
        short = await upstream.send(url, {}, b"{}")
        assert await short.read() == b"hi"
        over.set()
    assert [b"Content-Length: 2\r\n" in head for head in connections] == [False, True]


async def test_a_body_without_length_ends_with_the_connection(upstream: Upstream) -> None:
    engine = Engine(b"HTTP/1.1 200 OK\r\n\r\nall of it", close=True)
    async with listening(engine.serve) as url:
        answer = await upstream.send(url, {}, b"{}")
        assert await answer.read() == b"all of it"
        assert answer.whole


async def test_the_real_answer_is_given_when_the_engine_says_continue_first(upstream: Upstream) -> None:
    engine = Engine(
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 404 Nothing\r\nRETRY-after: 7\r\nContent-Length: 2\r\n\r\nno"
    )
    async with listening(engine.serve) as url:
        answer = await upstream.send(url, {}, b"{}")
        assert (answer.status, answer.headers["retry-after"], await answer.read()) == (404, "7", b"no")


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Le",
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70_000,
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
    ],
    ids=["nothing", "half a head", "not HTTP", "endless head", "another protocol"],
)
async def test_lost_when_no_status_comes(upstream: Upstream, answer: bytes) -> None:
    engine = Engine(answer, close=True)
    async with listening(engine.serve) as url:
        with pytest.raises(Lost):
            await upstream.send(url, {}, b"{}")


async def test_what_came_is_given_and_then_lost_when_a_body_is_cut(upstream: Upstream) -> None:
    engine = Engine(CHUNKED + b"3\r\nabc\r\n5\r\nde", close=True)
    async with listening(engine.serve) as url:
        answer = await upstream.send(url, {}, b"{}")
        assert (await answer.read_some()).startswith(b"abc")
        with pytest.raises(Lost):
            await answer.read()
    assert not answer.whole


async def test_a_few_long_bodies_begin_to_be_sent_per_turn_of_the_loop_when_many_are_there(
    upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, ask = list[int](), EngineConnection.ask
    body = b"x" * (LARGE_BYTES + 1)
    async with loop_turns() as turns, listening(Engine(PLAIN).serve) as url:

        def noted(self: EngineConnection, head: bytes, body: bytes | None) -> Answer:
            began.append(turns.count)
            return ask(self, head, body)

        monkeypatch.setattr(EngineConnection, "ask", noted)

        async def one() -> None:
            answer = await upstream.send(url, {}, body)
            assert await answer.read_some() == b"hi"

        await asyncio.gather(*(one() for _ in range(12)))
    assert len(began) == 12
    assert max(Counter(began).values()) <= 2


async def test_unreached_when_the_connection_closes_before_a_long_body_had_its_turn(upstream: Upstream) -> None:
    engine = Engine(PLAIN, PLAIN)
    async with listening(engine.serve) as url:
        await (await upstream.send(url, {}, b"")).read_some()
        waiting = asyncio.create_task(upstream.send(url, {}, b"x" * (LARGE_BYTES + 1)))
        await asyncio.sleep(0)  # it has the kept connection, and no turn so far
        for connection in list(upstream._all):
            connection.abort()
        with pytest.raises(Unreached, match="before anything was sent"):
            await waiting
    assert len(engine.requests) == 1


async def test_unreached_when_nobody_listens_there(upstream: Upstream) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, and not listening
        with pytest.raises(Unreached):
            await upstream.send(URL(f"http://127.0.0.1:{taken.getsockname()[1]}/"), {}, b"{}")
    with pytest.raises(Unreached):
        await upstream.send(URL("ftp://127.0.0.1/"), {}, b"{}")


async def test_a_piece_is_given_at_once_when_the_rest_has_not_been_sent(upstream: Upstream) -> None:
    seen = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(CHUNKED + b"5\r\nfirst\r\n")
        await seen.wait()  # nothing more before the reader has it
        writer.write(b"4\r\nlast\r\n0\r\n\r\n")
        await writer.drain()

    async with listening(serve) as url:
        answer = await upstream.send(url, {}, b"{}")
        first = await answer.read_some()
        seen.set()
        assert (first, await answer.read_some()) == (b"first", b"last")


async def test_the_engine_has_to_wait_when_nobody_reads_its_answer(upstream: Upstream) -> None:
    total = more_than_is_kept_bytes()
    sent = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % total)
        for _ in range(total >> 20):
            writer.write(b"x" * (1 << 20))
            await writer.drain()
        sent.set()

    async with listening(serve) as url:
        answer = await upstream.send(url, {}, b"{}")
        for _ in range(200):
            await asyncio.sleep(0.001)
        assert not sent.is_set()
        size = 0
        while part := await answer.read_some():
            assert len(part) < 4 << 20  # what waits is bounded, and so is every piece
            size += len(part)
    assert size == total


async def test_every_piece_goes_on_at_once_when_an_answer_is_piped(upstream: Upstream) -> None:
    engine = Engine(CHUNKED + b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n")
    async with listening(engine.serve) as url:
        came: list[bytes] = []
        answer = await upstream.send(url, {}, b"{}")
        assert await answer.pipe(lambda data: came.append(data) is None)
        assert b"".join(came) == b"abcde"
        assert await answer.pipe(lambda _: False)  # nothing more comes: there is nothing to refuse


async def test_the_engine_has_to_wait_when_a_sink_wants_no_more(upstream: Upstream) -> None:
    total = more_than_is_kept_bytes()
    piped, sent = asyncio.Event(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % total)
        await piped.wait()
        for _ in range(total >> 20):
            writer.write(b"x" * (1 << 20))
            await writer.drain()
        sent.set()

    async with listening(serve) as url:
        answer = await upstream.send(url, {}, b"{}")
        sizes: list[int] = []
        asyncio.get_running_loop().call_soon(piped.set)  # nothing has come yet when it is piped

        def take(data: bytes) -> bool:
            sizes.append(len(data))
            return False

        for pieces in (1, 2, 3):
            assert not await answer.pipe(take)
            for _ in range(50):
                await asyncio.sleep(0.001)
            assert len(sizes) == pieces
            assert not sent.is_set()
        assert await answer.pipe(lambda data: sizes.append(len(data)) is None)
    assert sum(sizes) == total


async def test_what_a_sink_raises_ends_the_pipe(upstream: Upstream) -> None:
    engine = Engine(CHUNKED + b"3\r\nabc\r\n0\r\n\r\n")

    def take(_: bytes) -> bool:
        raise ConnectionResetError("the client has left")

    async with listening(engine.serve) as url:
        answer = await upstream.send(url, {}, b"{}")
        with pytest.raises(ConnectionResetError):
            await answer.pipe(take)


async def test_lost_when_a_piped_answer_is_cut(upstream: Upstream) -> None:
    engine = Engine(CHUNKED + b"3\r\nabc\r\n", close=True)
    async with listening(engine.serve) as url:
        answer = await upstream.send(url, {}, b"{}")
        came: list[bytes] = []
        with pytest.raises(Lost):
            await answer.pipe(lambda data: came.append(data) is None)
    assert came == [b"abc"]


async def test_the_engine_sees_the_end_when_an_answer_is_dropped(upstream: Upstream) -> None:
    engine = Engine(CHUNKED + b"3\r\nabc\r\n")
    async with listening(engine.serve) as url:
        answer = await upstream.send(url, {}, b"{}")
        answer.drop()
        answer.drop()
        async with asyncio.timeout(60):
            await engine.left.wait()


async def test_the_engine_sees_the_end_when_the_wait_for_its_status_is_cancelled(upstream: Upstream) -> None:
    engine = Engine(b"")
    async with listening(engine.serve) as url:
        waiting = asyncio.create_task(upstream.send(url, {}, b"{}"))
        await engine.asked.wait()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        async with asyncio.timeout(60):
            await engine.left.wait()


async def test_a_connection_is_closed_when_nobody_has_used_it_for_a_while() -> None:
    engine = Engine(PLAIN)
    async with Upstream(idle_s=0.02) as upstream, listening(engine.serve) as url:
        await (await upstream.send(url, {}, b"{}")).read()
        async with asyncio.timeout(60):
            await engine.left.wait()
        await (await upstream.send(url, {}, b"{}")).read()
    assert engine.connections == 2


@pytest.mark.parametrize("value", ["a\r\nX-Evil: b", "a\nb", "a\rb"])
async def test_nothing_is_sent_when_a_header_has_more_than_one_line(upstream: Upstream, value: str) -> None:
    engine = Engine(PLAIN)
    async with listening(engine.serve) as url:
        with pytest.raises(ValueError, match="more than one line"):
            await upstream.send(url, {"X-A": value}, b"{}")
    assert engine.requests == []


async def test_user_and_password_are_sent_when_the_url_has_them(upstream: Upstream) -> None:
    engine = Engine(PLAIN)
    async with listening(engine.serve) as url:
        await (await upstream.send(url.with_user("me").with_password("pass"), {}, None, method="GET")).read()
        await (await upstream.send(url.with_user("me"), {"Authorization": "Bearer k"}, b"{}")).read()
    # base64 of "me:pass"
    assert b"GET /v1/x HTTP/1.1\r\n" in engine.requests[0]
    assert b"\r\nAuthorization: Basic bWU6cGFzcw==\r\n" in engine.requests[0]
    assert engine.requests[1].count(b"Authorization") == 1


async def test_an_engine_is_reached_by_tls_only_when_its_certificate_is_trusted() -> None:
    authority, engine = trustme.CA(), Engine(PLAIN)
    serving, trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    authority.issue_cert("127.0.0.1").configure_cert(serving)
    authority.configure_trust(trusting)
    async with listening(engine.serve, serving) as url:
        async with Upstream(tls=trusting) as upstream:
            assert await (await upstream.send(url, {}, b"{}")).read() == b"hi"
        async with Upstream() as stranger:
            with pytest.raises(Unreached):
                await stranger.send(url, {}, b"{}")


async def test_small_packets_are_not_held_when_the_gateway_listens() -> None:
    """TCP_NODELAY: without it the kernel keeps a small packet for as long as 40 ms when the other side owes an
    acknowledgement."""
    options: list[int] = []

    async def asked(request: BaseRequest) -> Response:
        assert request.transport is not None
        carrier = request.transport.get_extra_info("socket")
        options.append(carrier.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        return Response(body=b"hi")

    routes = Routes()
    routes.add("POST", "/v1/x", asked)
    listener = Listener(routes, host="127.0.0.1", port=0)
    url = await listener.start()
    try:
        async with Upstream() as upstream:
            answer = await upstream.send(URL(url + "/v1/x"), {}, b"{}")
            assert await answer.read() == b"hi"
    finally:
        await listener.close()
    assert options
    assert options[0] != 0


async def test_the_next_request_has_a_new_connection_when_the_last_one_is_too_old(upstream: Upstream) -> None:
    """Where the loop was away nobody has closed it, nor read that the engine has."""
    engine = Engine(PLAIN)
    async with listening(engine.serve) as url:
        assert await (await upstream.send(url, {}, b"{}")).read() == b"hi"
        (resting,) = upstream._resting.values()
        resting[0].rested_s -= 60.0
        assert await (await upstream.send(url, {}, b"{}")).read() == b"hi"
    assert engine.connections == 2
