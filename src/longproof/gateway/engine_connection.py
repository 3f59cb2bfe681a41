"""One kept connection to an engine, and one answer that comes over it.

    ask ─▶ head and body go to the socket ─▶ … ─▶ status and headers: `began` ─▶ `read_some`, `pipe` … ─▶ whole
                                                                        │ nobody takes it: the socket is paused
    a connection whose answer is whole, and that both sides keep, goes back to `at_rest`

httptools (llhttp) reads HTTP in the callback of the socket's read; bytes wait with the answer for whoever reads it, or
go on in that same callback (`pipe`): a chunk of a stream wakes no task. A connection has one request at a time, and
nothing of a next one is on its way before the answer is whole: what comes unasked closes it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeAlias, cast

import httptools

_LONGEST_HEAD_BYTES = 64 << 10
_HIGH_BYTES, _LOW_BYTES = 256 << 10, 64 << 10
"""So much of an answer may wait to be read before its socket is paused, and below that it goes on."""
_JOINED_BYTES = 64 << 10
"""A body up to this goes to the socket together with its head, in one call of the system."""


class Lost(Exception):  # noqa: N818 - named for what happened
    """The connection broke after the request was sent, or what came over it is not HTTP."""


Sink: TypeAlias = Callable[[bytes], bool]
"""Takes the next bytes of an answer; False: for now it wants no more. What it raises ends the `pipe`."""


class Answer:
    """What an engine answers. `headers` by lower-case name; of a repeated one the last. One reader at a time."""

    __slots__ = (
        "_connection",
        "_parts",
        "_problem",
        "_sink",
        "_waiter",
        "_waiting_bytes",
        "headers",
        "status",
        "whole",
    )

    def __init__(self, connection: EngineConnection) -> None:
        self._connection: EngineConnection | None = connection
        self._parts: list[bytes] = []
        self._waiting_bytes = 0
        self._waiter: asyncio.Future[None] | None = None
        self._sink: Sink | None = None
        self._problem: Exception | None = None
        self.status = 0
        """0 until it has begun."""
        self.headers: dict[str, str] = {}
        self.whole = False
        """Whether its last byte has come, read or not."""

    async def began(self) -> None:
        """Waits for status and headers, however long that takes. Lost."""
        while not self.status:
            await self._more()

    async def read_some(self) -> bytes:
        """What has come of the body, waiting for it if need be; empty at its end. Lost."""
        while not self._parts:
            if self.whole:
                return b""
            await self._more()
        return self._taken()

    async def pipe(self, sink: Sink) -> bool:
        """Gives all that comes of the body to `sink`, the moment it comes. True at its end, False when `sink` wanted no
        more: the engine waits then, until this is called again. Lost, and whatever `sink` raises."""
        if self._parts and not sink(self._taken()):
            return False
        self._sink = sink
        if self._connection is not None:
            self._connection.resume()
        try:
            while self._sink is not None:
                if self.whole and self._problem is None:
                    return True
                await self._more()
            return False
        finally:
            self._sink = None

    async def read(self, most_bytes: int | None = None) -> bytes:
        """The whole body; with `most_bytes`, no more of it than that many. Lost."""
        parts: list[bytes] = []
        size = 0
        while part := await self.read_some():
            parts.append(part)
            size += len(part)
            if most_bytes is not None and size >= most_bytes:
                return b"".join(parts)[:most_bytes]
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def drop(self) -> None:
        """Breaks it off at once unless it is whole: what is still to be written is thrown away, and the engine sees a
        reset, which it takes as an abort. Safe to call twice."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abort()

    def _taken(self) -> bytes:
        parts, self._parts, self._waiting_bytes = self._parts, [], 0
        if self._connection is not None:
            self._connection.resume()
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def _more(self) -> None:
        if self._problem is not None:
            raise self._problem
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    # -- told by the connection ---------------------------------------------------------------------------------------

    def take(self, data: bytes) -> bool:
        """A piece of the body. False: enough waits to be read."""
        self._parts.append(data)
        self._waiting_bytes += len(data)
        return self._waiting_bytes < _HIGH_BYTES

    def complete(self) -> None:
        """It is whole; the connection is somebody else's from now on."""
        self.whole = True
        self._connection = None

    def broke(self, problem: Exception) -> None:
        """No more will come of it."""
        self._problem, self._connection = problem, None
        self.wake()

    def came(self) -> None:
        """All of one read of the socket was taken in."""
        sink = self._sink
        if sink is not None and self._parts:
            try:
                if sink(self._taken()):
                    if not self.whole:
                        return
                else:
                    self._sink = None
                    if self._connection is not None:
                        self._connection.pause()
            except Exception as problem:  # it belongs to whoever waits in `pipe`
                self._problem = problem
        self.wake()

    def wake(self) -> None:
        """Whoever waits has something to see."""
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)


class EngineConnection(asyncio.Protocol):
    """`at_rest` is called with it whenever it is free for a next request, `gone` once when it is closed."""

    __slots__ = (
        "_answer",
        "_at_rest",
        "_gone",
        "_head_bytes",
        "_headers",
        "_in_body",
        "_kept",
        "_parser",
        "_paused",
        "_transport",
        "_until_close",
        "rested_s",
    )

    def __init__(self, at_rest: Callable[[EngineConnection], None], gone: Callable[[EngineConnection], None]) -> None:
        self._at_rest, self._gone = at_rest, gone
        self._transport: asyncio.Transport | None = None
        self._answer: Answer | None = None
        self._headers: list[tuple[bytes, bytes]] = []
        self._head_bytes = 0
        self._in_body = self._until_close = self._kept = self._paused = False
        parser = httptools.HttpResponseParser(self)
        # what real servers get wrong and every client accepts: bare line feeds
        parser.set_dangerous_leniencies(lenient_optional_cr_before_lf=True)
        self._parser: httptools.HttpResponseParser | None = parser
        self.rested_s = 0.0
        """When it was last put to rest, for whoever keeps it."""

    @property
    def open(self) -> bool:
        """Whether a request may be sent over it."""
        return self._transport is not None and not self._transport.is_closing()

    def ask(self, head: bytes, body: bytes | None) -> Answer:
        """Sends a request; it must be open and at rest."""
        assert self._transport is not None
        assert self._answer is None
        answer = self._answer = Answer(self)
        if body is None:
            self._transport.write(head)
        elif len(body) <= _JOINED_BYTES:
            self._transport.write(head + body)
        else:
            self._transport.write(head)
            self._transport.write(body)
        return answer

    def abort(self) -> None:
        """Closes it now, with a reset where anything was still to be written."""
        self._answer = None
        if self._transport is not None:
            self._transport.abort()

    def pause(self) -> None:
        """Enough has come for now."""
        if not self._paused and self.open and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        """What has come was taken."""
        if self._paused:
            self._paused = False
            if self._transport is not None and not self._transport.is_closing():
                self._transport.resume_reading()

    # -- the loop's callbacks -----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        answer, parser = self._answer, self._parser
        if answer is None or parser is None:
            self.abort()  # nothing was asked
            return
        if not self._in_body:
            self._head_bytes += len(data)
        try:
            parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as problem:
            if answer.whole:  # more came than the answer
                self.abort()
                answer.came()
            else:
                self._break(f"its answer is not HTTP/1.1: {problem}")
            return
        if self._head_bytes > _LONGEST_HEAD_BYTES and not self._in_body:
            self._break(f"headers of more than {_LONGEST_HEAD_BYTES} bytes")
            return
        if answer.whole:
            self._rest()
        answer.came()

    def eof_received(self) -> None:
        answer = self._answer
        if answer is not None and self._in_body and self._until_close:
            answer.complete()
            self._answer = None
            answer.wake()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answer is not None:
            self._break(str(exc) if exc is not None and str(exc) else "the engine closed the connection")
        self._parser = None  # it holds our methods: a circle, which would wait for the garbage collector
        self._transport = None
        self._gone(self)

    # -- the parser's callbacks ---------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self._answer is None or self._answer.whole:
            raise ValueError("a second answer to one request")  # the parser makes an error of its own of it

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        answer, parser = self._answer, self._parser
        assert answer is not None
        assert parser is not None
        headers = {name.decode("latin-1").lower(): value.decode("utf-8", "replace") for name, value in self._headers}
        self._headers.clear()
        status = parser.get_status_code()
        if 100 <= status < 200:
            return  # the real answer follows
        answer.headers, answer.status = headers, status
        self._in_body = True
        self._until_close = "content-length" not in headers and "chunked" not in headers.get("transfer-encoding", "")

    def on_body(self, data: bytes) -> None:
        if self._answer is not None and not self._answer.take(data):
            self.pause()

    def on_message_complete(self) -> None:
        if self._in_body and self._answer is not None and self._parser is not None:
            self._kept = self._parser.should_keep_alive()
            self._answer.complete()

    # -- what becomes of it -------------------------------------------------------------------------------------------

    def _rest(self) -> None:
        """The answer is whole. Kept is what the engine keeps, too."""
        self._answer = None
        self._in_body, self._head_bytes = False, 0
        self.resume()
        assert self._transport is not None
        if not self._kept or self._transport.get_write_buffer_size():
            self._transport.abort()  # the engine ends it, or has answered without having read all it was sent
        elif self.open:
            self._at_rest(self)

    def _break(self, why: str) -> None:
        answer, self._answer = self._answer, None
        self.abort()
        if answer is not None:
            answer.broke(Lost(why))
