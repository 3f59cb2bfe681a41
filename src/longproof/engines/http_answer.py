"""One HTTP/1.1 request on a connection of its own: writes it, and hands on what comes back the moment it is read.

    socket ─▶ buffer_updated: the clock, the bytes ─▶ Backlog ─▶ httptools (llhttp) ─▶ Listener.head | body | …

The clock is read in the callback of the read itself, and nothing else is done there: an engine's step sends a token to
each of 256 streams at once, and the last of them is stamped after 255 reads, not after 255 answers have been parsed.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
import zlib
from collections import deque
from contextlib import suppress
from typing import Protocol, cast

import httptools
import httpx

from longproof.clock import Clock
from longproof.engines.request_body import Body

_READ_BYTES = 64 * 1024
_LONGEST_HEAD_BYTES = 256 * 1024
_MOST_UNREAD_BYTES = 1024 * 1024
_WORK_S = 0.0003


class Listener(Protocol):
    """Told what the server does, in order: `head` once, `body` per read, then `ended` or `broken` once. Times are the
    clock's, taken as the bytes were read."""

    def head(self, status: int, headers: httpx.Headers, now_ns: int) -> None:
        """The final status and its headers."""
        ...

    def body(self, data: bytes, now_ns: int) -> None:
        """Bytes of the body, content encoding undone; never empty."""
        ...

    def ended(self, now_ns: int) -> None:
        """The body ended in order."""
        ...

    def broken(self, problem: Exception) -> None:
        """The connection broke, or what came is not HTTP."""
        ...


class Backlog:
    """Reads that are stamped and not looked at yet, of many connections. They are looked at in turn, a third of a
    millisecond at a time: what arrives meanwhile is read, and stamped, in between."""

    def __init__(self) -> None:
        self._waiting: deque[HttpAnswer] = deque()
        self._called = False

    def add(self, answer: HttpAnswer) -> None:
        """A connection has something to look at."""
        self._waiting.append(answer)
        if not self._called:
            self._called = True
            asyncio.get_running_loop().call_soon(self._work)

    def _work(self) -> None:
        until = time.perf_counter() + _WORK_S
        while self._waiting and time.perf_counter() < until:
            self._waiting.popleft().settle()
        self._called = bool(self._waiting)
        if self._called:
            asyncio.get_running_loop().call_soon(self._work)


class HttpAnswer(asyncio.BufferedProtocol):
    """The connection. After `ended`, `broken` or `leave` the listener hears no more."""

    def __init__(self, listener: Listener, clock: Clock, backlog: Backlog) -> None:
        self._listener = listener
        self._clock = clock
        self._backlog = backlog
        self._unread: list[tuple[bytes, int]] = []
        self._unread_bytes = 0
        self._buffer = bytearray(_READ_BYTES)
        self._view = memoryview(self._buffer)
        parser = httptools.HttpResponseParser(self)
        # what real servers get wrong and every browser accepts: bare line feeds
        parser.set_dangerous_leniencies(lenient_optional_cr_before_lf=True)
        self._parser: httptools.HttpResponseParser | None = parser
        self._status = 0
        self._transport: asyncio.Transport | None = None
        self._raw_headers: list[tuple[bytes, bytes]] = []
        self._head_bytes = 0
        self._in_body = False
        self._until_close = False
        self._complete = False
        self._silent = False
        self._pieces: list[bytes] = []
        self._inflater: _Inflater | None = None
        self._writable = asyncio.Event()
        self._writable.set()

    # -- our side -----------------------------------------------------------------------------------------------------

    async def send(self, head: bytes, body: Body) -> None:
        """Writes the request. Returns when all of it is with the kernel or the transport's small buffer, or when
        nobody wants it any more: the answer may be over before that."""
        slices = body.slices()
        first = next(slices, b"")
        self._write(head + first)
        for piece in slices:
            await asyncio.sleep(0)  # a kernel that takes megabytes at once is no reason to keep the loop from others
            if not self._writable.is_set():
                await self._writable.wait()
            if self._silent or self._transport is None or self._transport.is_closing():
                return
            self._write(piece)

    def settle(self) -> None:
        """Looks at all that was read."""
        unread, self._unread, self._unread_bytes = self._unread, [], 0
        for data, now_ns in unread:
            self._read(data, now_ns)

    def leave(self) -> None:
        """Closes the connection at once."""
        self._silent = True
        self._writable.set()
        if self._transport is not None:
            self._transport.abort()

    def _write(self, data: bytes | memoryview) -> None:
        assert self._transport is not None
        self._transport.write(data)

    # -- the loop's callbacks -----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        if self._silent:  # somebody gave up while it was being connected
            self._transport.abort()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - the protocol's signature
        return self._view

    def buffer_updated(self, nbytes: int) -> None:
        now_ns = self._clock.now_ns()
        self._unread.append((bytes(self._view[:nbytes]), now_ns))
        self._unread_bytes += nbytes
        if self._unread_bytes > _MOST_UNREAD_BYTES:
            self.settle()
        elif len(self._unread) == 1:
            self._backlog.add(self)

    def eof_received(self) -> None:
        self.settle()
        self._close(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self.settle()
        if exc is not None and not self._silent:
            self._read_what_is_left()
        self._close(exc)
        self._writable.set()
        # circles would wait for the garbage collector: the parser holds our methods, and asyncio's transport (3.11 to
        # 3.14, selector_events.py) its own
        self._parser = None
        getattr(self._transport, "__dict__", {}).pop("_read_ready_cb", None)

    # -- the parser's callbacks ---------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._raw_headers.clear()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._raw_headers.append((name, value))

    def on_headers_complete(self) -> None:
        assert self._parser is not None
        self._status = self._parser.get_status_code()
        self._in_body = not 100 <= self._status < 200  # else the real answer follows

    def on_body(self, data: bytes) -> None:
        self._pieces.append(data)

    def on_message_complete(self) -> None:
        self._complete = self._in_body

    # -- what it means ------------------------------------------------------------------------------------------------

    def _read(self, data: bytes | memoryview, now_ns: int) -> None:
        if self._silent or self._complete or self._parser is None:
            return
        before_head = not self._in_body
        problem: Exception | None = None
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as words:
            problem = None if self._complete else httpx.RemoteProtocolError(f"this is not HTTP/1.1: {words}")
        if before_head and not self._in_body:
            self._head_bytes += len(data)
            if self._head_bytes > _LONGEST_HEAD_BYTES and problem is None:
                problem = httpx.RemoteProtocolError(f"headers of more than {_LONGEST_HEAD_BYTES} bytes")
        elif before_head:
            self._head(now_ns)
        if self._pieces and not self._silent:
            problem = self._body(now_ns) or problem
        if self._silent:
            return
        if problem is not None:
            self._end(problem)
        elif self._complete:
            self._silent = True
            self._listener.ended(now_ns)

    def _head(self, now_ns: int) -> None:
        headers = httpx.Headers(self._raw_headers)
        encoding = headers.get("content-encoding", "identity")
        self._inflater = None if encoding == "identity" else _Inflater(encoding)
        chunked = "chunked" in headers.get("transfer-encoding", "").lower()
        self._until_close = not chunked and "content-length" not in headers
        self._listener.head(self._status, headers, now_ns)

    def _body(self, now_ns: int) -> Exception | None:
        data = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces.clear()
        if self._inflater is not None:
            try:
                data = self._inflater.inflate(data)
            except httpx.DecodingError as problem:
                return problem
        if data:
            self._listener.body(data, now_ns)
        return None

    def _close(self, exc: Exception | None) -> None:
        if self._silent:
            return
        if exc is not None:
            self._end(httpx.ReadError(str(exc) or repr(exc)))
        elif not self._in_body:
            self._end(httpx.RemoteProtocolError("the server closed the connection without an answer"))
        elif self._until_close:
            self._silent = True
            self._listener.ended(self._clock.now_ns())
        else:
            self._end(httpx.RemoteProtocolError("the server closed the connection before the end of the body"))

    def _end(self, problem: Exception) -> None:
        self._silent = True
        self._listener.broken(problem)

    def _read_what_is_left(self) -> None:
        """A server that refuses a long body answers, closes and resets while we still write. The failing write ends
        the transport with the answer unread in the kernel; the socket is closed only after this callback."""
        carrier = None if self._transport is None else self._transport.get_extra_info("socket")
        if carrier is None or self._transport is None or self._transport.get_extra_info("ssl_object") is not None:
            return
        with suppress(OSError), socket.socket(fileno=os.dup(carrier.fileno())) as left:
            left.setblocking(False)
            while not self._silent and (nbytes := left.recv_into(self._view)):
                self._read(self._view[:nbytes], self._clock.now_ns())


class _Inflater:
    """Undoes a content encoding that nobody asked for. Raises httpx.DecodingError."""

    def __init__(self, encoding: str) -> None:
        self._encoding = encoding
        self._zlib = zlib.decompressobj(wbits=47)  # gzip or zlib, by what the first bytes say

    def inflate(self, data: bytes) -> bytes:
        """The next piece in plain."""
        if self._encoding not in ("gzip", "deflate"):
            raise httpx.DecodingError(f"the body is in {self._encoding}, though plain was asked for")
        try:
            return self._zlib.decompress(data)
        except zlib.error as problem:
            raise httpx.DecodingError(str(problem)) from problem
