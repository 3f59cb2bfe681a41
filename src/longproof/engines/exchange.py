"""One streamed request over HTTP: sends the bytes, reads the answer, and writes down what happened and when.

    submitted   just before the body goes to the socket (the connection stands by then)
    headers     status line and headers are in
    first byte, first event, first token   stamped per read of the socket
    finished    [DONE], the end of the body, our timeout, our closing, or the break

Whatever the server does ends up in the timeline; only the cancellation of our own task leaves as an exception.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

import httpx

from longproof.clock import Clock
from longproof.domain.events import EndedBy, RequestTimeline, ServerError
from longproof.domain.request import GenerationRequest
from longproof.engines.base import OnContent
from longproof.engines.server_error import KEPT_BODY_BYTES, error_from_body
from longproof.engines.wire import Delta, OpenAIStream

_LEAVE_S = 0.25
_KEPT_HEADERS = ("server", "date", "via", "content-type", "retry-after", "openai-processing-ms", "openai-version")
_MAX_HEADERS = 32
_MAX_HEADER_CHARS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """A request as it goes out: full URL, headers, and the body built once."""

    url: str
    headers: Mapping[str, str]
    body: bytes
    request: GenerationRequest
    request_id: str


class Exchange:
    """Runs one `Outgoing` once."""

    def __init__(
        self,
        outgoing: Outgoing,
        *,
        clock: Clock,
        on_content: OnContent | None = None,
        leave: asyncio.Event | None = None,
    ) -> None:
        self._out = outgoing
        self._clock = clock
        self._on_content = on_content
        self._leave = leave
        self._left = False
        self._stream = OpenAIStream()
        self._submitted_ns = clock.now_ns()
        self._headers_ns: int | None = None
        self._finished_ns: int | None = None
        self._status: int | None = None
        self._headers: dict[str, str] = {}
        self._http_error: ServerError | None = None
        self._transport_error: str | None = None

    async def run(self, client: httpx.AsyncClient) -> RequestTimeline:
        """Sends, reads to the end, and returns the timeline."""
        if self._leave is not None and self._leave.is_set():
            return self._timeline(EndedBy.CANCELLED, self._submitted_ns)
        limit = asyncio.timeout(self._out.request.timeout_s)
        try:
            async with limit, self._leaving(limit):
                ended = await self._converse(client)
        except (httpx.HTTPError, httpx.StreamError, OSError) as problem:
            # a socket's own ETIMEDOUT is a TimeoutError as well
            gave_up = isinstance(problem, TimeoutError) and limit.expired()
            ours = EndedBy.CANCELLED if self._left else EndedBy.TIMEOUT
            ended = ours if gave_up else self._broken(problem)
            if self._http_error is not None:  # it was refused, and only the end of the server's words is missing
                ended = EndedBy.HTTP_ERROR
                self._transport_error = self._transport_error or "the error's body did not end in time"
        return self._timeline(ended, self._finished_ns or self._clock.now_ns())

    @asynccontextmanager
    async def _leaving(self, limit: asyncio.Timeout) -> AsyncGenerator[None, None]:
        """While inside, the time limit is over as soon as `leave` is set."""
        if self._leave is None:
            yield
            return
        watch = asyncio.create_task(self._watch(self._leave, limit))
        try:
            yield
        finally:
            watch.cancel()

    async def _watch(self, leave: asyncio.Event, limit: asyncio.Timeout) -> None:
        await leave.wait()
        self._left = True
        limit.reschedule(asyncio.get_running_loop().time())

    async def _converse(self, client: httpx.AsyncClient) -> EndedBy:
        async with client.stream(
            "POST",
            self._out.url,
            content=self._out.body,
            headers=dict(self._out.headers),
            extensions={"trace": self._trace},
        ) as response:
            self._headers_ns = self._clock.now_ns()
            self._status = response.status_code
            self._headers = kept_headers(response.headers)
            if response.status_code >= 400:
                return await self._refused(response)
            if response.status_code >= 300:
                self._transport_error = f"redirected to {response.headers.get('location', 'nowhere')}"
                return EndedBy.BAD_BODY
            return await self._read(response)

    async def _trace(self, event: str, info: object) -> None:  # noqa: ARG002 - the signature is httpcore's
        """httpcore tells what it is about to do: the body leaves now, so connecting is not part of any latency."""
        if event.endswith("send_request_body.started"):
            self._submitted_ns = self._clock.now_ns()

    async def _read(self, response: httpx.Response) -> EndedBy:
        pieces = response.aiter_bytes()
        async for piece in pieces:
            deltas = self._stream.feed(piece, self._clock.now_ns())
            if self._tell(deltas):
                return self._finish(EndedBy.CANCELLED)
            if self._stream.overflow:
                self._transport_error = "; ".join(self._stream.malformed)
                return self._finish(EndedBy.BAD_BODY)
            if self._stream.done:
                self._finish(EndedBy.DONE)
                await self._leave_in_order(pieces)
                return EndedBy.DONE
        ended, deltas = self._stream.finish(self._clock.now_ns())
        if self._tell(deltas):
            ended = EndedBy.CANCELLED
        return self._finish(ended)

    async def _leave_in_order(self, pieces: AsyncIterator[bytes]) -> None:
        """Reads the end of the body, so that the server does not take our going for a disconnect; not for long."""
        with suppress(httpx.HTTPError, TimeoutError):
            async with asyncio.timeout(_LEAVE_S):
                async for piece in pieces:
                    self._stream.feed(piece, self._clock.now_ns())

    def _finish(self, ended: EndedBy) -> EndedBy:
        self._finished_ns = self._clock.now_ns()
        return ended

    def _tell(self, deltas: list[Delta]) -> bool:
        """Hands content on; True when the listener has had enough."""
        if self._on_content is None:
            return False
        return any(self._on_content(delta.chunk, delta.text) is False for delta in deltas)

    async def _refused(self, response: httpx.Response) -> EndedBy:
        body = bytearray()
        try:
            async for piece in response.aiter_bytes():
                body += piece
                if len(body) >= KEPT_BODY_BYTES:
                    break
        except (httpx.HTTPError, httpx.StreamError) as problem:
            self._transport_error = describe(problem)
        finally:
            self._http_error = error_from_body(bytes(body))
        return self._finish(EndedBy.HTTP_ERROR)

    def _broken(self, problem: Exception) -> EndedBy:
        self._transport_error = describe(problem)
        return EndedBy.UNREACHABLE if self._status is None else EndedBy.CUT

    def _timeline(self, ended: EndedBy, finished_ns: int) -> RequestTimeline:
        request, stream = self._out.request, self._stream
        return RequestTimeline(
            request_id=self._out.request_id,
            route=request.route,
            submitted_ns=self._submitted_ns,
            finished_ns=finished_ns,
            ended_by=ended,
            prompt_tokens_sent=request.prompt_tokens,
            count_source=request.count_source,
            max_tokens=request.max_tokens,
            body_bytes=len(self._out.body),
            headers_ns=self._headers_ns,
            first_byte_ns=stream.first_byte_ns,
            first_event_ns=stream.first_event_ns,
            first_token_ns=stream.first_token_ns,
            first_answer_token_ns=stream.first_answer_token_ns,
            status=self._status,
            headers=self._headers,
            chunks=tuple(stream.chunks),
            text=stream.text,
            reasoning=stream.reasoning,
            finish_reason=stream.finish_reason,
            usage=stream.usage,
            first_logprobs=stream.first_logprobs,
            error=self._http_error or stream.error,
            transport_error=self._transport_error,
            malformed=stream.malformed,
            engine_timings=stream.engine_timings,
            engine_request_id=stream.engine_request_id,
        )


def kept_headers(headers: httpx.Headers) -> dict[str, str]:
    """Response headers worth keeping as evidence: who answered, when to come back, rate limits, ids. Never cookies."""
    kept = {
        name: value[:_MAX_HEADER_CHARS]
        for name, value in headers.items()
        if name in _KEPT_HEADERS or name.startswith(("x-", "ratelimit"))
    }
    return dict(sorted(kept.items())[:_MAX_HEADERS])


def describe(problem: Exception) -> str:
    """A transport error in one line; httpx leaves some without words."""
    words = str(problem) or repr(problem.__cause__ or problem.__context__ or "no further words")
    return f"{type(problem).__name__}: {words}"
