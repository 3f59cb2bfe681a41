"""Connections: how many, how long without a word, and what a hostile one can take meanwhile."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import trustme
from aiohttp.web import BaseRequest, Response

from longproof.gateway.listener import Listener, Tls
from longproof.gateway.routes import Routes

Until = Callable[..., Awaitable[None]]
GET = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"


class Door:
    """A listener with one route, which waits for `go`."""

    def __init__(self, **settings: float) -> None:
        self.go = asyncio.Event()
        self.go.set()
        self.asked = 0
        routes = Routes()
        routes.add("GET", "/health", self._answer)
        self.listener = Listener(routes, host="127.0.0.1", port=0, **settings)  # type: ignore[arg-type]
        self.port = 0

    async def _answer(self, _: BaseRequest) -> Response:
        self.asked += 1
        await self.go.wait()
        return Response(text="ok")

    async def start(self) -> Door:
        self.port = int((await self.listener.start()).rpartition(":")[2])
        return self

    async def connect(self, data: bytes = b"") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(data)
        return reader, writer


@pytest.fixture
async def door() -> AsyncIterator[Callable[..., Awaitable[Door]]]:
    started: list[Door] = []

    async def start(**settings: float) -> Door:
        started.append(await Door(**settings).start())
        return started[-1]

    yield start
    for one in started:
        one.go.set()
        await one.listener.close()


@pytest.mark.parametrize("sent", [b"", b"G", b"GET /health HTTP/1.1\r\nHost: x\r\nX-Slow: ", GET[:-2]])
async def test_a_connection_is_closed_when_its_first_head_does_not_come_in_time(
    door: Callable[..., Awaitable[Door]], sent: bytes
) -> None:
    one = await door(head_s=0.1)
    reader, writer = await one.connect(sent)
    async with asyncio.timeout(60):
        assert await reader.read() == b""
    writer.close()
    assert one.asked == 0


async def test_a_head_that_trickles_is_cut_off_and_a_slow_answer_is_not(
    door: Callable[..., Awaitable[Door]], until: Until
) -> None:
    one = await door(head_s=1.0)
    one.go.clear()
    reader, writer = await one.connect(GET)  # asked in time: its answer may take as long as it likes
    await until(lambda: one.asked == 1)
    slow_reader, slow = await one.connect(b"GET / HTTP/1.1\r\n")
    ended = asyncio.create_task(slow_reader.read())
    async with asyncio.timeout(60):
        while not ended.done():
            slow.write(b"X: y\r\n")
            await asyncio.sleep(0.02)
    one.go.set()
    async with asyncio.timeout(60):
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
    for writing in (writer, slow):
        writing.close()


async def test_one_connection_more_is_told_503_when_all_are_taken(
    door: Callable[..., Awaitable[Door]], until: Until
) -> None:
    one = await door(most_connections=2)
    one.go.clear()
    held = [await one.connect(GET) for _ in range(2)]
    await until(lambda: one.asked == 2)
    reader, writer = await one.connect(GET)
    async with asyncio.timeout(60):
        refused = await reader.read()
    assert refused.startswith(b"HTTP/1.1 503 ")
    assert b"Retry-After: 1" in refused
    assert b'"code":"too_many_connections"' in refused
    for _, writing in (*held, (None, writer)):
        writing.close()
    one.go.set()

    async def served() -> bool:
        reader, writer = await one.connect(GET)
        line = await reader.readline()
        writer.close()
        return line.startswith(b"HTTP/1.1 200")

    async with asyncio.timeout(60):
        while not await served():  # noqa: ASYNC110 - room again, as soon as those have left
            await asyncio.sleep(0.01)


async def test_a_connection_is_read_no_further_when_it_pipelines_behind_a_slow_answer(
    door: Callable[..., Awaitable[Door]], until: Until
) -> None:
    one = await door()
    one.go.clear()
    _, writer = await one.connect(GET)
    await until(lambda: one.asked == 1)
    sent = 0
    writer.transport.set_write_buffer_limits(high=1 << 16)
    try:
        async with asyncio.timeout(0.5):
            while sent < 256 << 20:  # what kernel and aiohttp buffer is a few MiB; without a bound all of it is taken
                writer.write(GET * 1_000)
                sent += len(GET) * 1_000
                await writer.drain()
    except TimeoutError:
        pass
    writer.transport.abort()
    assert sent < 256 << 20
    assert one.asked == 1


async def test_a_connection_is_closed_when_its_tls_handshake_does_not_come_in_time(tmp_path: Path) -> None:
    trustme.CA().issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "both.pem"))
    tls = Tls(certificate=tmp_path / "both.pem", key=tmp_path / "both.pem")
    listener = Listener(Routes(), host="127.0.0.1", port=0, tls=tls, head_s=0.2)
    port = int((await listener.start()).rpartition(":")[2])
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"\x16\x03\x01")  # a handshake that goes on later
        async with asyncio.timeout(10):
            assert await reader.read() == b""
        writer.close()
    finally:
        await listener.close()


@pytest.mark.parametrize(
    "said",
    [
        b"GARBAGE\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 40_000 + b"\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: abc\r\n\r\n",
    ],
)
async def test_what_is_no_request_is_refused_in_the_form_of_everything_else(said: bytes) -> None:
    listener = Listener(Routes(), host="127.0.0.1", port=0)
    port = int((await listener.start()).rsplit(":", 1)[1])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(said)
    async with asyncio.timeout(30):
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    await listener.close()
    assert b" 400 " in head.split(b"\r\n")[0]
    assert b"Server: longproof" in head
    assert json.loads(body)["error"]["code"] == "invalid_http"
