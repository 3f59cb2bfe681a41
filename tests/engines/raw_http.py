"""Servers made of bytes: what a test writes is what goes out, and nothing is read that the test does not read."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
TOKENS = (
    b'data: {"choices":[{"index":0,"text":"a"}]}\n\n'
    b'data: {"choices":[{"index":0,"text":"b","finish_reason":"stop"}]}\n\n'
)
STREAM = TOKENS + b"data: [DONE]\n\n"


@asynccontextmanager
async def raw_server(serve: Serve, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """The port of a server that lets `serve` have each connection, and closes it afterwards."""
    tasks: set[asyncio.Task[None]] = set()
    writers: list[asyncio.StreamWriter] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        writers.append(writer)
        try:
            await serve(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError, ssl.SSLError):
            pass  # the client left: some tests want that
        finally:
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0, ssl=tls)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await cut_off(writers)


async def cut_off(writers: Iterable[asyncio.StreamWriter]) -> None:
    """Ends connections at once: one that is only closed lives on while nobody reads what is left in its buffer."""
    for writer in writers:
        with suppress(AttributeError):  # of one that has ended already
            writer.transport.abort()
    for _ in range(3):  # a transport ends a turn of the loop later, and its TLS another
        await asyncio.sleep(0)


async def read_request(reader: asyncio.StreamReader) -> tuple[str, dict[str, str], bytes]:
    """Request line, headers (names in lower case), body."""
    line, *fields = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").strip().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (field.partition(":") for field in fields)}
    return line, headers, await reader.readexactly(int(headers.get("content-length", "0")))


def answers(*pieces: bytes, pause_s: float = 0.0, reset: bool = False) -> Serve:
    """Reads one request, writes the pieces one by one, and closes."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(pause_s)
        if reset:
            break_off(writer)

    return serve


def break_off(writer: asyncio.StreamWriter) -> None:
    """A TCP reset."""
    connection = writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
