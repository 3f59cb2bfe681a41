"""One streamed request over HTTP: sends the bytes, reads the answer, and writes down what happened and when.

    submitted   just before the request goes to the socket (the connection stands by then)
    headers     status line and headers are in
    first byte, first event, first token   stamped per read of the socket
    finished    [DONE], the end of the body, our timeout, our closing, or the break

Whatever the server does ends up in the timeline; only the cancellation of our own task leaves as an exception.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import httpx

from longproof.clock import Clock
from longproof.domain.events import EndedBy, RequestTimeline, ServerError
from longproof.domain.request import GenerationRequest
from longproof.engines.base import OnContent
from longproof.engines.dial import Dialer
from longproof.engines.http_answer import Backlog, HttpAnswer
from longproof.engines.request_body import Body
from longproof.engines.server_error import KEPT_BODY_BYTES, error_from_body
from longproof.engines.wire import Delta, OpenAIStream

_LEAVE_S = 0.25
"""So long the end of a body is waited for after [DONE]: going at once looks like a disconnect to the server."""
_SENT = Body(())
_KEPT_HEADERS = ("server", "date", "via", "content-type", "retry-after", "openai-processing-ms", "openai-version")
_MAX_HEADERS = 32
_MAX_HEADER_CHARS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """A request as it goes out: full URL, headers, and the body built once."""

    url: str
    headers: Mapping[str, str]
    body: Body
    request: GenerationRequest
    request_id: str


class Exchange:
    """Runs one `Outgoing` once. Listens to its own `HttpAnswer`."""

    def __init__(
        self,
        outgoing: Outgoing,
        *,
        clock: Clock,
        backlog: Backlog,
        on_content: OnContent | None = None,
        leave: asyncio.Event | None = None,
    ) -> None:
        self._out = outgoing
        self._backlog = backlog
        self._clock = clock
        self._on_content = on_content
        self._leave = leave
        self._left = False
        self._answer: HttpAnswer | None = None
        self._ended: EndedBy | None = None
        self._over: asyncio.Future[EndedBy] = asyncio.get_running_loop().create_future()
        self._body_bytes = outgoing.body.size_bytes
        self._last_wait: asyncio.TimerHandle | None = None
        self._stream = OpenAIStream()
        self._submitted_ns = clock.now_ns()
        self._headers_ns: int | None = None
        self._finished_ns: int | None = None
        self._status: int | None = None
        self._headers: dict[str, str] = {}
        self._error_body = bytearray()
        self._http_error: ServerError | None = None
        self._transport_error: str | None = None

    async def run(self, dialer: Dialer) -> RequestTimeline:
        """Sends, reads to the end, and returns the timeline."""
        if self._leave is not None and self._leave.is_set():
            return self._timeline(EndedBy.CANCELLED, self._submitted_ns)
        limit = asyncio.timeout(self._out.request.timeout_s)
        try:
            async with limit, self._leaving(limit):
                ended = await self._converse(dialer)
        except TimeoutError:
            ended = self._gave_up()  # or it was over, and nobody had looked yet
        except httpx.HTTPError as problem:
            ended = self._broken(problem)
        finally:
            if self._answer is not None:
                self._answer.leave()
                self._answer = None  # they know each other, and the circle would wait for the garbage collector
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

    async def _converse(self, dialer: Dialer) -> EndedBy:
        url = httpx.URL(self._out.url)
        head = _request_head(dialer.request_target(url), url, {**dialer.headers(url), **self._out.headers}, self._out)
        answer = await dialer.dial(url, self._connection)
        self._submitted_ns = self._clock.now_ns()  # connecting is not part of any latency
        await answer.send(head, self._out.body)
        self._out = replace(self._out, body=_SENT)  # a long body is not kept for as long as its answer takes
        return await self._over

    def _connection(self) -> HttpAnswer:
        """Known from the moment it is made: who gives up while it is being connected closes it all the same."""
        self._answer = HttpAnswer(self, self._clock, self._backlog)
        return self._answer

    # -- what the answer tells ----------------------------------------------------------------------------------------

    def head(self, status: int, headers: httpx.Headers, now_ns: int) -> None:
        """Status and headers are in."""
        self._headers_ns = now_ns
        self._status = status
        self._headers = kept_headers(headers)
        if 300 <= status < 400:
            self._transport_error = f"redirected to {headers.get('location', 'nowhere')}"
            self._finish(EndedBy.BAD_BODY, now_ns)

    def body(self, data: bytes, now_ns: int) -> None:
        """A read of the body."""
        if self._refused:
            self._error_body += data
            if len(self._error_body) >= KEPT_BODY_BYTES:
                self._finish(self._http_error_ended(), now_ns)
            return
        done_before = self._stream.done
        deltas = self._stream.feed(data, now_ns)
        if self._tell(deltas):
            self._finish(EndedBy.CANCELLED, now_ns)
        elif self._stream.overflow:
            self._transport_error = "; ".join(self._stream.malformed)
            self._finish(EndedBy.BAD_BODY, now_ns)
        elif self._stream.done and not done_before:
            self._finished_ns = now_ns
            loop = asyncio.get_running_loop()
            self._last_wait = loop.call_later(_LEAVE_S, self._finish, EndedBy.DONE, now_ns)

    def ended(self, now_ns: int) -> None:
        """The body ended in order."""
        if self._refused:
            self._finish(self._http_error_ended(), now_ns)
            return
        ended, deltas = self._stream.finish(now_ns)
        if self._tell(deltas):
            ended = EndedBy.CANCELLED
        self._finish(ended, now_ns)

    def broken(self, problem: Exception) -> None:
        """The connection broke."""
        self._finish(self._broken(problem), self._clock.now_ns())

    @property
    def _refused(self) -> bool:
        return self._status is not None and self._status >= 400

    def _finish(self, ended: EndedBy, now_ns: int) -> None:
        if self._ended is not None:
            return
        self._ended = ended
        self._finished_ns = self._finished_ns or now_ns
        if not self._over.done():
            self._over.set_result(ended)
        if self._last_wait is not None:
            self._last_wait.cancel()
        if self._answer is not None:
            self._answer.leave()

    def _tell(self, deltas: list[Delta]) -> bool:
        """Hands content on; True when the listener has had enough. What it raises is ours, and `run` raises it."""
        if self._on_content is None or self._ended is not None or self._over.done():
            return False
        try:
            return any(self._on_content(delta.chunk, delta.text) is False for delta in deltas)
        except BaseException as mistake:
            self._over.set_exception(mistake)
            return False

    # -- ends that are none of HTTP's own -----------------------------------------------------------------------------

    def _gave_up(self) -> EndedBy:
        if self._answer is not None:
            self._answer.settle()
        if self._ended is not None:
            return self._ended
        if self._stream.done:
            return EndedBy.DONE
        if self._refused:  # only the end of the server's words is missing
            self._transport_error = "the error's body did not end in time"
            return self._http_error_ended()
        return EndedBy.CANCELLED if self._left else EndedBy.TIMEOUT

    def _broken(self, problem: Exception) -> EndedBy:
        if self._stream.done:
            return EndedBy.DONE
        self._transport_error = describe(problem)
        if self._refused:
            return self._http_error_ended()
        return EndedBy.UNREACHABLE if self._status is None else EndedBy.CUT

    def _http_error_ended(self) -> EndedBy:
        self._http_error = error_from_body(bytes(self._error_body))
        return EndedBy.HTTP_ERROR

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
            body_bytes=self._body_bytes,
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


def _request_head(target: bytes, url: httpx.URL, headers: Mapping[str, str], out: Outgoing) -> bytes:
    lines = [f"{name}: {value}".encode("ascii") for name, value in headers.items()]
    return b"\r\n".join(
        [
            b"POST " + target + b" HTTP/1.1",
            b"Host: " + url.netloc,
            *lines,
            b"Content-Length: %d" % out.body.size_bytes,
            b"\r\n",
        ]
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
