"""The client's side of one answer: what was sent to it, and what keeps its connection alive meanwhile.

    ─▶ nothing sent ──▶ plain answer                    one write, any status
            │  └──────▶ open stream ──▶ events … ──▶ end
            └ keepalive_s ▶ ": waiting" comments, every keepalive_s of silence, until the stream ends

The first comment opens the stream with status 200: from then on a failure is an event inside it, as OpenAI's own
servers do it. Nothing here is held back: the socket has TCP_NODELAY, and every write goes out at once.
"""

from __future__ import annotations

import asyncio
import re

from aiohttp.http import StreamWriter
from aiohttp.web import BaseRequest, Response, StreamResponse

from longproof.gateway.errors import Problem
from longproof.gateway.sse_events import EVENT_ENDS

_HIGH_BYTES = 64 << 10
"""asyncio's own high-water mark: beyond it a transport asks its writer to wait."""
REQUEST_ID = "X-Request-Id"
_CLIENT_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_STREAM_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "Server": "longproof",
    "X-Accel-Buffering": "no",  # nginx would collect the stream otherwise
}


def shown_id(request: BaseRequest, request_id: str) -> str:
    """The client's own id comes back to it; inside and upstream ours is used, which nobody can use twice."""
    given = request.headers.get(REQUEST_ID)
    return given if given is not None and _CLIENT_ID.fullmatch(given) else request_id


class ReaderStalled(Exception):  # noqa: N818 - named for what happened
    """The client has taken nothing for so long that its answer is given up. A drop, not an error of ours."""


class Downstream:
    """One answer on its way to one client.

    `keepalive_s` 0 sends no comments. `stall_s`: how long a client may take nothing while its buffer is full.
    """

    __slots__ = (
        "_beat",
        "_between_events",
        "_keepalive_s",
        "_loop",
        "_request",
        "_response",
        "_said",
        "_stall_s",
        "_writer",
        "first_byte",
        "headers",
        "status",
        "written_s",
    )

    def __init__(self, request: BaseRequest, request_id: str, *, keepalive_s: float, stall_s: float) -> None:
        self._request = request
        self._loop = asyncio.get_running_loop()
        self._keepalive_s = keepalive_s
        self._stall_s = stall_s
        self._response: StreamResponse | None = None
        self._writer: StreamWriter | None = None
        self._beat: asyncio.TimerHandle | None = None
        self._said: asyncio.Task[None] | None = None
        self.written_s = self._loop.time()
        """When something was last passed on, on the loop's clock."""
        self._between_events = True
        self.headers: dict[str, str] = {REQUEST_ID: request_id}
        self.status = 0
        self.first_byte = False
        """Whether a byte of the engine's answer was passed on. Comments are none."""

    @property
    def opened(self) -> bool:
        """Whether the status is out: a failure can only be told inside the stream."""
        return self._response is not None

    @property
    def _commenting(self) -> bool:
        return self._beat is not None

    def keep_alive(self) -> None:
        """Begins with comments: this answer will be a stream, and the client may have to wait for it."""
        if self._keepalive_s > 0 and self._beat is None:
            self.written_s = self._loop.time()
            self._beat = self._loop.call_later(self._keepalive_s, self._on_beat)

    async def open(self) -> None:
        """Sends status 200 and the headers of a stream, once."""
        if self._response is None:
            self.status = 200
            response = StreamResponse(status=200, headers={**_STREAM_HEADERS, **self.headers})
            self._response = response
            writer = await response.prepare(self._request)
            assert isinstance(writer, StreamWriter)  # what aiohttp's server makes; the abstract one cannot skip a drain
            self._writer = writer

    async def send(self, data: bytes) -> None:
        """Passes on part of the engine's stream. ReaderStalled, ConnectionError."""
        writer = self._writer
        assert writer is not None
        self.first_byte = True
        self._between_events = data.endswith(EVENT_ENDS)
        self.written_s = self._loop.time()
        await writer.write(data, drain=False)
        await self.taken()

    def put(self, data: bytes) -> bool:
        """As `send`, after it, and without waiting: False when the client should first take what is there (`taken`).
        ConnectionError."""
        writer, transport = self._writer, self._request.transport
        assert writer is not None
        if transport is None or transport.is_closing():
            raise ConnectionResetError("the client has left")
        self._between_events = data.endswith(EVENT_ENDS)
        self.written_s = self._loop.time()
        # the head went out with the first part: from then on a part of a body is its length and itself
        transport.write(b"%x\r\n%b\r\n" % (len(data), data) if writer.chunked else data)
        return transport.get_write_buffer_size() <= _HIGH_BYTES

    async def taken(self) -> None:
        """Waits until the client has taken most of what is buffered; meanwhile nothing more should be read from the
        engine. ReaderStalled, ConnectionError."""
        writer, transport = self._writer, self._request.transport
        assert writer is not None
        if transport is None:
            raise ConnectionResetError("the client has left")
        if transport.get_write_buffer_size() <= _HIGH_BYTES:
            return
        try:
            async with asyncio.timeout(self._stall_s):
                await writer.drain()
        except TimeoutError:
            raise ReaderStalled(f"the client took nothing for {self._stall_s:g} s") from None

    async def fail(self, problem: Problem) -> StreamResponse:
        """The refusal or failure, in whatever form is still possible; ends the answer."""
        if self._response is None:
            return self.plain(problem.status, problem.body(), problem.retry_after_s)
        if not self._between_events:
            await self.send(b"\n\n")  # an event was cut off: end it, so that ours is read as one of its own
        await self._write_last(b"data: " + problem.body() + b"\n\ndata: [DONE]\n\n")
        return await self.end()

    def plain(
        self, status: int, body: bytes, retry_after_s: int | None = None, content_type: str = "application/json"
    ) -> Response:
        """An answer in one piece. Only where nothing was opened."""
        assert self._response is None
        self.stop()
        self.status = status
        headers = {"Content-Type": content_type, **self.headers}
        if retry_after_s is not None:
            headers["Retry-After"] = str(retry_after_s)
        return Response(status=status, body=body, headers=headers)

    async def end(self) -> StreamResponse:
        """The stream is whole."""
        self.stop()
        response = self._response
        assert response is not None
        await response.write_eof()
        return response

    def stop(self) -> None:
        """No more comments. Safe to call twice."""
        if self._beat is not None:
            self._beat.cancel()
            self._beat = None

    def abort(self) -> None:
        """Drops the connection: the client sees a broken stream, not a whole one."""
        self.stop()
        if self._request.transport is not None:
            self._request.transport.abort()

    async def _write_last(self, data: bytes) -> None:
        assert self._response is not None
        await self._response.write(data)

    def _on_beat(self) -> None:
        now_s = self._loop.time()
        quiet_s = now_s - self.written_s
        if quiet_s < self._keepalive_s:
            self._beat = self._loop.call_later(self._keepalive_s - quiet_s, self._on_beat)
            return
        self._beat = self._loop.call_later(self._keepalive_s, self._on_beat)
        transport = self._request.transport
        if transport is None or not self._between_events or transport.get_write_buffer_size() > 0:
            return
        self.written_s = now_s
        self._said = self._loop.create_task(self._say())

    async def _say(self) -> None:
        if not self._commenting:
            return  # it was answered before this had its turn: a head now would be taken for the next answer's
        try:
            await self.open()
            response = self._response
            if response is not None and self._between_events and self._commenting:
                await response.write(b": waiting\n\n")
        except (ConnectionError, RuntimeError):
            pass  # the client has left; its handler hears of it by itself
