"""One request from its arrival to its one end.

    arrive ─▶ [count] ─▶ word of the controller ─▶ meter ─▶ send ──▶ relay ─▶ end
                 ▲              │ Refusal ─▶ answer           │
                 └──────────────┴── the engine would not ◀────┘     nothing was generated: ask the controller again

Whatever happens, `run` tells controller and meter of exactly one end. A client that leaves cancels the task of `run`
wherever it stands: the connection upstream is reset at once, which is what engines take as an abort.

Sent again is only what no engine began: not connected, 429 or 503. Once an engine may have begun, a second try could
make the answer twice; once a byte was passed on, it would.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

import aiohttp
from aiohttp.web import StreamResponse

from longproof.clock import NS_PER_S, Clock
from longproof.domain.events import Usage
from longproof.gateway.ask import Ask
from longproof.gateway.desk import Desk, Ticket
from longproof.gateway.downstream import Downstream, ReaderStalled
from longproof.gateway.errors import Problem
from longproof.gateway.fleet import Fleet, Replica
from longproof.gateway.ports import Admitted, Counted, Counting, Meter, MeterUnavailable, Spent
from longproof.gateway.replies import (
    REPLICA,
    busy_in_stream,
    dispatch_headers,
    is_error_event,
    problem_of,
    sends_text,
    upstream_headers,
)
from longproof.gateway.responses import ResponseFlow, response_usage
from longproof.gateway.sse_events import EventFlow
from longproof.gateway.upstream import Lost, Refused, Unreached, drop, retry_after_ns
from longproof.gateway.usage import usage_in
from longproof.policy.actions import Dispatch, Refusal
from longproof.policy.arrivals import Arrival, Ended, EndKind

_log = logging.getLogger("longproof.gateway")
_REPORT_EVERY_TOKENS = 16
_LONGEST_ERROR_BYTES = 1 << 20
_UNREACHED_BACKOFF_NS = 2 * NS_PER_S
_BUSY = (429, 503)


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What every exchange works with. `silence_s`: an engine that sends nothing for so long is given up."""

    desk: Desk
    fleet: Fleet
    counting: Counting
    meter: Meter
    clock: Clock
    silence_s: float


class Exchange:
    """One request. `run` once; afterwards `end` says how it ended."""

    __slots__ = (
        "_around",
        "_ask",
        "_bound",
        "_counting",
        "_down",
        "_first_token_ns",
        "_headers",
        "_limit",
        "_metered",
        "_passed_tokens",
        "_placed",
        "_reported",
        "_response",
        "_ticket",
        "_usage",
        "end",
    )

    def __init__(
        self, around: Surroundings, ask: Ask, bound: Counted, down: Downstream, headers: dict[str, str]
    ) -> None:
        self._around = around
        self._ask = ask
        self._bound = bound
        self._down = down
        self._headers = headers
        self._ticket: Ticket | None = None
        self._counting: asyncio.Task[None] | None = None
        self._placed = False
        """Whether it is with a replica now; before, and between two of them, it is the controller's alone."""
        self._metered = False
        self._response: aiohttp.ClientResponse | None = None
        self._limit: asyncio.Timeout | None = None
        self._usage: Usage | None = None
        self._first_token_ns: int | None = None
        self._passed_tokens = 0
        self._reported = 0
        self.end = EndKind.CANCELLED

    async def run(self, arrival: Arrival) -> StreamResponse:
        """Serves it. Raises CancelledError when the client leaves, as aiohttp has it."""
        desk = self._around.desk
        try:
            self._ticket, wait = desk.arrive(arrival)
            if wait is not None and wait.count:
                self._counting = asyncio.create_task(self._count(exact=not wait.reserved))
            if self._ask.stream:
                self._down.keep_alive()
            return await self._serve(self._ticket)
        except (ConnectionError, ReaderStalled):
            self.end = EndKind.CANCELLED  # the client's connection: whatever is left of the answer goes nowhere
            self._down.abort()
            raise asyncio.CancelledError from None
        finally:
            self._settle()

    async def _serve(self, ticket: Ticket) -> StreamResponse:
        while True:
            word = await ticket.answer()
            if isinstance(word, Refusal):
                self._down.headers.pop(REPLICA, None)
                return await self._down.fail(problem_of(word))
            replica = self._around.fleet.by_name[word.replica]
            try:
                self._write_down(word)
                return await self._on(replica, word)
            except MeterUnavailable as problem:
                self.end = EndKind.CANCELLED
                return await self._down.fail(_unmetered(problem))
            except Unreached:
                self._placed = False
                self._around.desk.refused(self._ask.id, _UNREACHED_BACKOFF_NS)
            except Refused as refused:
                self._placed = False
                self._around.desk.refused(self._ask.id, refused.retry_after_ns)

    async def _on(self, replica: Replica, dispatch: Dispatch) -> StreamResponse:
        """On one replica, to the end. Unreached and Refused: it has not begun."""
        self.end = EndKind.FAILED
        self._ask.forget_prompt()  # it was counted; what is sent are the body's bytes
        self._down.headers.update(dispatch_headers(dispatch))
        try:
            async with asyncio.timeout(self._around.silence_s) as self._limit:
                response = await self._send(replica)
                if response.status != 200:
                    return await self._pass_error(replica, response)
                if self._ask.stream:
                    return await self._relay_stream(response, replica)
                return await self._relay_plain(response)
        except TimeoutError:
            return await self._down.fail(_silent(replica, self._around.silence_s))
        except Lost as problem:
            return await self._down.fail(_lost(replica, str(problem)))
        except asyncio.CancelledError:
            self.end = EndKind.CANCELLED
            raise
        finally:
            if self._response is not None:
                _let_go(self._response, whole=self.end is not EndKind.CANCELLED and self._response.content.at_eof())
                self._response = None

    async def _send(self, replica: Replica) -> aiohttp.ClientResponse:
        ask, fleet = self._ask, self._around.fleet
        headers = dict(self._headers)
        if replica.authorization is not None:
            headers["Authorization"] = replica.authorization
        url = fleet.responses_url(replica.name) if ask.responses else fleet.url(replica.name, ask.route)
        response = self._response = await fleet.upstream.send(url, headers, ask.body)
        if response.status in _BUSY:
            wait_ns = retry_after_ns(response.headers.get("Retry-After"))
            await _read_some(response)
            raise Refused(response.status, wait_ns)
        return response

    async def _relay_stream(self, response: aiohttp.ClientResponse, replica: Replica) -> StreamResponse:
        if self._ask.responses:
            flow = ResponseFlow()
        else:
            flow = EventFlow(hide_usage=replica.usage_in_streams and not self._ask.wants_usage)
        down, content = self._down, response.content
        try:
            data = await content.readany()
            if (busy := busy_in_stream(data)) is not None and not down.first_byte:
                raise Refused(busy, None)
            self._ask.drop_body()  # nothing will be sent a second time
            await down.open()
            while data:
                if out := flow.take(data):
                    await down.send(out)
                self._note(flow, data)
                data = await content.readany()
            if rest := flow.end():
                await down.send(rest)
        except aiohttp.ClientError as problem:
            raise Lost(str(problem)) from problem
        finally:
            self._usage = flow.usage
        if not flow.done and flow.failed:
            return await down.end()  # the engine's own error event was passed on; it promised no [DONE]
        if not flow.done:
            raise Lost("the stream ended without its last event")
        if not flow.failed:
            self.end = EndKind.COMPLETED
        return await down.end()

    def _note(self, flow: EventFlow | ResponseFlow, data: bytes) -> None:
        """Progress, for ledger and books: coarse, since it is called for every chunk."""
        events = self._passed_tokens = flow.events
        if self._first_token_ns is None:
            if events and sends_text(data):
                self._first_token()
        elif events - self._reported >= _REPORT_EVERY_TOKENS:
            self._reported = events
            self._around.desk.output(self._ask.id, events)
            self._around.meter.passed(self._ask.id, events)
        if is_error_event(data):
            flow.failed = True
        limit, until_s = self._limit, self._down.written_s + self._around.silence_s
        if limit is not None and (limit.when() or 0) < until_s - 1:
            limit.reschedule(until_s)

    def _first_token(self) -> None:
        self._first_token_ns = self._around.clock.now_ns()
        self._around.desk.first_token(self._ask.id)

    async def _relay_plain(self, response: aiohttp.ClientResponse) -> StreamResponse:
        self._ask.drop_body()
        try:
            body = await response.read()
        except aiohttp.ClientError as problem:
            raise Lost(str(problem)) from problem
        self._first_token()
        self._usage = response_usage(body) if self._ask.responses else usage_in(body)
        self.end = EndKind.COMPLETED
        headers = upstream_headers(response)
        return self._down.plain(200, body, content_type=headers.get("Content-Type", "application/json"))

    async def _pass_error(self, replica: Replica, response: aiohttp.ClientResponse) -> StreamResponse:
        """An engine's own refusal or failure, in its own words; but for those that are about the gateway's access."""
        body = await _read_some(response)
        status = response.status
        self.end = EndKind.FAILED if status >= 500 else EndKind.REJECTED
        if status in (401, 403) or not 400 <= status < 600:
            return await self._down.fail(_unusable(replica, status))
        if self._down.opened or not body:
            text = body.decode("utf-8", "replace")[:2_000] or "no reason given"
            return await self._down.fail(Problem(status=status, code="upstream_error", message=text))
        kind = response.headers.get("Content-Type", "application/json")
        return self._down.plain(status, body, content_type=kind)

    async def _count(self, *, exact: bool) -> None:
        try:
            counted = await self._around.counting.count(self._ask, exact=exact)
        except Exception:  # a bug in counting must not let a request wait for ever: its bound is never too small
            _log.exception("counting %s", self._ask.id)
            counted = self._bound
        self._bound = counted
        self._around.desk.counted(self._ask.id, counted)

    def _write_down(self, dispatch: Dispatch) -> None:
        ask, now_ns = self._ask, self._around.clock.now_ns()
        self._placed = True
        self._around.meter.admitted(
            Admitted(
                id=ask.id,
                key=ask.key,
                tenant=ask.tenant,
                model=ask.model,
                replica=dispatch.replica,
                pool=dispatch.pool,
                predicted_cached_tokens=dispatch.cached_tokens,
                input_tokens=self._bound.input_tokens,
                output_tokens=ask.output_tokens or 0,
                at_ns=now_ns,
            )
        )
        self._metered = True

    def _settle(self) -> None:
        """Tells everybody of the end, once; on every way out, and without waiting for anything."""
        self._down.stop()
        if self._counting is not None:
            self._counting.cancel()
        ask, usage = self._ask, self._usage or Usage()
        made = self._passed_tokens if usage.completion_tokens is None else usage.completion_tokens
        occupied = self._around.desk.kv_token_ms(ask.id) if self._metered else None
        if self._placed:
            end = Ended(
                kind=self.end,
                input_tokens=usage.prompt_tokens,
                output_tokens=made,
                cached_tokens=usage.cached_tokens,
            )
            self._around.desk.leave(ask.id, end)
            self._around.counting.told(ask.model, self._bound, usage.prompt_tokens)
        else:
            self._around.desk.cancel(ask.id)
        if self._metered:
            self._around.meter.spent(self._spent(usage, made, occupied))

    def _spent(self, usage: Usage, output_tokens: int, kv_token_ms: int | None) -> Spent:
        given = usage.prompt_tokens
        return Spent(
            id=self._ask.id,
            ending=self.end if self._placed else EndKind.REJECTED,
            status=self._down.status,
            input_tokens=self._bound.input_tokens if given is None else given,
            cached_tokens=usage.cached_tokens,
            output_tokens=output_tokens,
            reported=given is not None,
            exact=given is not None or self._bound.exact,
            at_ns=self._around.clock.now_ns(),
            first_token_ns=self._first_token_ns,
            kv_token_ms=kv_token_ms,
        )


def _let_go(response: aiohttp.ClientResponse, *, whole: bool) -> None:
    """Gives a connection back to the pool when its answer was read to the end; resets it otherwise."""
    if whole:
        response.release()
    else:
        drop(response)


async def _read_some(response: aiohttp.ClientResponse) -> bytes:
    """An error's body, as far as anybody will read it."""
    try:
        return await response.content.read(_LONGEST_ERROR_BYTES)
    except aiohttp.ClientError:
        return b""


def _lost(replica: Replica, why: str) -> Problem:
    message = f"the connection to replica {replica.name} was lost before the answer was complete: {why}"
    return Problem(status=502, code="replica_lost", message=message)


def _silent(replica: Replica, silence_s: float) -> Problem:
    message = f"replica {replica.name} sent nothing for {silence_s:g} s"
    return Problem(status=504, code="replica_silent", message=message)


def _unusable(replica: Replica, status: int) -> Problem:
    message = f"replica {replica.name} answered the gateway with status {status}"
    return Problem(status=502, code="replica_refuses_gateway", message=message)


def _unmetered(problem: MeterUnavailable) -> Problem:
    message = f"nothing is served while usage cannot be written down: {problem}"
    return Problem(status=503, code="meter_unavailable", message=message, retry_after_ns=5 * NS_PER_S)
