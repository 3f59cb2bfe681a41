"""An HTTP server that says exactly the bytes it is told to, faults of the connection included.

    async with ScriptedHttp({"GET /v1/models": Reply.json({"data": []})}) as server:
        …                                    # any client of server.url
    server.received[-1].json()

Where `longproof.testing.lying_engine` behaves like an engine, this one behaves like nothing: it replays documents,
resets connections, and stalls.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Self, TypeAlias

HANG = float("inf")
"""As a piece of a reply: wait until the client goes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """One request as it arrived. `connection` numbers the TCP connections from 0."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes
    connection: int

    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What is answered: status, headers, then the pieces in order: bytes are written, numbers are waits in seconds.

    `reset` breaks the connection with a TCP reset: before anything is sent ("now") or after the last piece ("end").
    Bodies are sent chunked; a reset at the end leaves out the last, empty chunk. `closes` ends the kept-alive
    connection after the reply without announcing it. `before_s` passes before the status line.
    """

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    pieces: tuple[bytes | float, ...] = ()
    reset: str | None = None
    closes: bool = False
    before_s: float = 0.0

    @classmethod
    def json(cls, document: object, status: int = 200, **headers: str) -> Reply:
        """A JSON document."""
        return cls(
            status=status,
            headers={"content-type": "application/json", **_dashed(headers)},
            pieces=(json.dumps(document).encode(),),
        )

    @classmethod
    def text(cls, text: str, status: int = 200, content_type: str = "text/plain", **headers: str) -> Reply:
        """Plain text, HTML, metrics."""
        return cls(status=status, headers={"content-type": content_type, **_dashed(headers)}, pieces=(text.encode(),))

    @classmethod
    def stream(cls, *pieces: bytes | float, reset: str | None = None, **headers: str) -> Reply:
        """An event stream."""
        return cls(headers={"content-type": "text/event-stream", **_dashed(headers)}, pieces=pieces, reset=reset)


Answer: TypeAlias = Reply | Callable[[Received], Reply]


class ScriptedHttp:
    """The server. Routes are ``"METHOD /path"``; all else is a 404 like FastAPI's. `routes` may change while it runs.

    `gone` counts the requests whose client left before the reply was over.
    """

    def __init__(self, routes: Mapping[str, Answer]) -> None:
        self.routes: dict[str, Answer] = dict(routes)
        self.received: list[Received] = []
        self.connections = 0
        self.gone = 0
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()

    @property
    def url(self) -> str:
        """Base URL. RuntimeError while it does not run."""
        if self._server is None:
            raise RuntimeError("the server does not run")
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accepted, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in self._writers:  # what is only closed lives on while nobody reads the rest of its buffer
            if writer.transport.get_write_buffer_size():
                writer.transport.abort()
        await asyncio.sleep(0)  # a transport ends a turn of the loop later
        self._server = None

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer, self.connections))
        self.connections += 1
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connection: int) -> None:
        self._writers.add(writer)
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                while (request := await _read(reader, connection)) is not None:
                    self.received.append(request)
                    if not await self._answer(request, reader, writer):
                        break
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()
            self._writers.discard(writer)

    async def _answer(self, request: Received, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        answer = self.routes.get(f"{request.method} {request.target}", Reply.json({"detail": "Not Found"}, status=404))
        reply = answer(request) if callable(answer) else answer
        if reply.before_s and not await _still_there(reader, reply.before_s):
            self.gone += 1
            return False
        if reply.reset == "now":
            _reset(writer)
            return False
        head = [f"HTTP/1.1 {reply.status} X", "transfer-encoding: chunked"]
        head += [f"{name}: {value}" for name, value in reply.headers.items()]
        writer.write("\r\n".join([*head, "", ""]).encode("latin-1"))
        for piece in reply.pieces:
            if isinstance(piece, bytes):
                writer.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n" if piece else b"")
                await writer.drain()
            elif not await _still_there(reader, piece):
                self.gone += 1
                return False
        if reply.reset == "end":
            _reset(writer)
            return False
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return not reply.closes


async def _read(reader: asyncio.StreamReader, connection: int) -> Received | None:
    line = await reader.readline()
    if not line.strip():
        return None
    method, target, _ = line.decode().split(" ", 2)
    headers: dict[str, str] = {}
    while (line := await reader.readline()).strip():
        name, _, value = line.decode("latin-1").partition(":")
        headers[name.lower()] = value.strip()
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Received(method=method, target=target, headers=headers, body=body, connection=connection)


async def _still_there(reader: asyncio.StreamReader, seconds: float) -> bool:
    """Waits, and says whether the client waited too: reading from a client that sends no more shows when it goes."""
    with suppress(TimeoutError):
        async with asyncio.timeout(None if seconds == HANG else seconds):
            return await reader.read(1) != b""
    return True


def _reset(writer: asyncio.StreamWriter) -> None:
    """Aborting with unread or unsent data makes the kernel send RST; SO_LINGER 0 makes it sure."""
    connection = writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


def _dashed(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in headers.items()}
