"""One request from its arrival to its one end.

    arrive ─▶ [count] ─▶ word of the controller ─▶ meter ─▶ send ──▶ relay ─▶ end
                 ▲              │ Refusal ─▶ answer           │
                 └──────────────┴── the engine would not ◀────┘     nothing was generated: ask the controller again

Whatever happens, `run` tells controller and meter of exactly one end. A client that leaves cancels the task of `run`
wherever it stands: the connection upstream is reset at once, which is what engines take as an abort.

A prefill/decode pair is one replica: its prefill side is asked first (`gateway.pair_prefill`), its decode side gives
the answer. At most one of the two connections is open, and it is the one that is reset.

Sent again is only what no engine began: not connected, 429 or 503. Once an engine may have begun, a second try could
make the answer twice; once a byte was passed on, it would.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, replace
from functools import partial

from aiohttp.web import StreamResponse

from longproof.clock import NS_PER_S, Clock
from longproof.domain.events import Usage
from longproof.gateway.answers import engine_problem, error_body, in_words, whole_body
from longproof.gateway.ask import Ask
from longproof.gateway.desk import Desk, Ticket
from longproof.gateway.downstream import Downstream, ReaderStalled
from longproof.gateway.errors import Problem
from longproof.gateway.fleet import Fleet, Replica
from longproof.gateway.pair_prefill import SideFailed, hand_over, side_problem
from longproof.gateway.ports import Admitted, Counted, Counting, Meter, MeterUnavailable, Spent
from longproof.gateway.replies import (
    REPLICA,
    busy_in_stream,
    dispatch_headers,
    error_at_first,
    is_error_event,
    problem_of,
    tokenless_events,
)
from longproof.gateway.responses import ResponseFlow, response_usage
from longproof.gateway.sse_events import EventFlow
from longproof.gateway.upstream import Answer, Lost, Refused, Unreached, retry_after_ns
from longproof.gateway.usage import usage_in
from longproof.policy.actions import Dispatch, Refusal
from longproof.policy.arrivals import Arrival, Ended, EndKind

_log = logging.getLogger("longproof.gateway")
_REPORT_EVERY_TOKENS = 16
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
        "_answer",
        "_around",
        "_ask",
        "_bound",
        "_counting",
        "_down",
        "_entry_cached",
        "_first_token_ns",
        "_headers",
        "_limit",
        "_metered",
        "_paired",
        "_passed_tokens",
        "_placed",
        "_reported",
        "_ticket",
        "_tokenless",
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
        self._answer: Answer | None = None
        self._limit: asyncio.Timeout | None = None
        self._usage: Usage | None = None
        self._paired = False
        self._entry_cached: int | None = None
        """Of a pair: what its prefill side had cached. Its decode side calls cached whatever it was handed."""
        self._first_token_ns: int | None = None
        self._passed_tokens = 0
        self._tokenless = 0
        """Events that were passed on and carry no token."""
        self._reported = 0
        self.end = EndKind.CANCELLED

    async def run(self, arrival: Arrival) -> StreamResponse:
        """Serves it. Raises CancelledError when the client leaves, as aiohttp has it."""
        desk = self._around.desk
        try:
            self._ticket, wait = desk.arrive(arrival)
            if wait is not None and wait.count:
                self._counting = asyncio.create_task(self._count(exact=wait.exact))
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
        self._paired = replica.prefill_url is not None
        self._ask.forget_prompt()  # it was counted; what is sent are the body's bytes
        self._down.headers.update(dispatch_headers(dispatch))
        try:
            async with asyncio.timeout(self._around.silence_s) as self._limit:
                body = self._ask.body if replica.prefill_url is None else await self._hand_over(replica)
                answer = await self._send(replica, body)
                if answer.status != 200:
                    return await self._pass_error(replica, answer)
                if self._ask.stream:
                    return await self._relay_stream(answer, replica)
                return await self._relay_plain(answer)
        except TimeoutError:
            return await self._failed(replica, _silent(replica, self._around.silence_s))
        except Lost as problem:
            return await self._failed(replica, _lost(replica, str(problem)))
        except SideFailed as failed:
            self.end = EndKind.FAILED if failed.problem.status >= 500 else EndKind.REJECTED
            return await self._failed(replica, failed.problem)
        except asyncio.CancelledError:
            self.end = EndKind.CANCELLED
            raise
        finally:
            if self._answer is not None:
                self._answer.drop()  # one that is whole has given its connection back already
                self._answer = None

    async def _failed(self, replica: Replica, problem: Problem) -> StreamResponse:
        self._around.fleet.failed(replica.name, problem.message, self._around.clock.now_ns())
        return await self._down.fail(problem)

    async def _hand_over(self, replica: Replica) -> bytes:
        """A pair's first half; what its decode side is sent."""
        fleet, url = self._around.fleet, self._around.fleet.entry(replica.name, self._ask.route)
        handed = await hand_over(fleet.upstream, url, self._headers_for(replica), self._ask.body)
        self._entry_cached = handed.cached_tokens
        if self._limit is not None:  # that was a sign of life
            self._limit.reschedule(asyncio.get_running_loop().time() + self._around.silence_s)
        return handed.body

    def _headers_for(self, replica: Replica) -> dict[str, str]:
        if replica.authorization is None:
            return self._headers
        return {**self._headers, "Authorization": replica.authorization}

    async def _send(self, replica: Replica, body: bytes) -> Answer:
        fleet, ask = self._around.fleet, self._ask
        url = fleet.responses_url(replica.name) if ask.responses else fleet.url(replica.name, ask.route)
        answer = self._answer = await fleet.upstream.send(url, self._headers_for(replica), body)
        if answer.status in _BUSY:
            wait_ns = retry_after_ns(answer.headers.get("retry-after"))
            await error_body(answer)
            raise Refused(answer.status, wait_ns)
        return answer

    async def _relay_stream(self, answer: Answer, replica: Replica) -> StreamResponse:
        flow = (
            ResponseFlow()
            if self._ask.responses
            else EventFlow(hide_usage=replica.usage_in_streams and not self._ask.wants_usage)
        )
        down = self._down
        try:
            data = await answer.read_some()
            if (busy := busy_in_stream(data)) is not None and not down.first_byte:
                raise Refused(busy, None)
            if replica.prefill_url is not None and (error := error_at_first(data)) is not None and not down.first_byte:
                raise SideFailed(side_problem("decode", 502, error))
            self._ask.drop_body()  # nothing will be sent a second time
            await down.open()
            while data and not down.first_byte:
                if out := flow.take(data):
                    await down.send(out)
                self._note(flow, data)
                data = b"" if down.first_byte else await answer.read_some()
            while not await answer.pipe(partial(self._pass_on, flow)):
                await down.taken()
            if rest := flow.end():
                await down.send(rest)
        finally:
            self._usage = flow.usage
        if not flow.done and flow.failed:
            return await down.end()  # the engine's own error event was passed on; it promised no [DONE]
        if not flow.done:
            raise Lost("the stream ended without its last event")
        if not flow.failed:
            self.end = EndKind.COMPLETED
        return await down.end()

    def _pass_on(self, flow: EventFlow | ResponseFlow, data: bytes) -> bool:
        """What came from the engine, to the client: called for every read of every stream."""
        out = flow.take(data)
        go_on = not out or self._down.put(out)
        self._note(flow, data)
        return go_on

    def _note(self, flow: EventFlow | ResponseFlow, data: bytes) -> None:
        """Progress, for ledger and books: coarse, since it is called for every chunk."""
        counts_all = not self._ask.responses  # of a response's events, only those with output are counted
        if counts_all:
            self._tokenless += tokenless_events(data, begun=self._first_token_ns is not None)
        if is_error_event(data):
            flow.failed = True
            self._tokenless += counts_all
        if flow.usage is not None:  # it says the number itself, and the end is here
            if self._first_token_ns is None and flow.usage.completion_tokens:
                self._first_token()  # all of it came at once
            return
        tokens = self._passed_tokens = max(0, flow.events - self._tokenless)
        if self._first_token_ns is None:
            if tokens:
                self._first_token()
        elif tokens - self._reported >= _REPORT_EVERY_TOKENS:
            self._reported = tokens
            self._around.desk.output(self._ask.id, tokens)
            self._around.meter.passed(self._ask.id, tokens)
        limit, until_s = self._limit, self._down.written_s + self._around.silence_s
        if limit is not None and (limit.when() or 0) < until_s - 1:
            limit.reschedule(until_s)

    def _first_token(self) -> None:
        self._first_token_ns = self._around.clock.now_ns()
        self._around.desk.first_token(self._ask.id)

    async def _relay_plain(self, answer: Answer) -> StreamResponse:
        self._ask.drop_body()
        body = await whole_body(answer)
        self._first_token()
        self._usage = response_usage(body) if self._ask.responses else usage_in(body)
        self.end = EndKind.COMPLETED
        return self._down.plain(200, body, content_type=answer.headers.get("content-type", "application/json"))

    async def _pass_error(self, replica: Replica, answer: Answer) -> StreamResponse:
        """An engine's own refusal or failure, in its own words; but for those that are about the gateway's access."""
        body = await error_body(answer)
        status = answer.status
        self.end = EndKind.FAILED if status >= 500 else EndKind.REJECTED
        if self.end is EndKind.FAILED:
            self._around.fleet.failed(replica.name, in_words(status, body), self._around.clock.now_ns())
        if status in (401, 403) or not 400 <= status < 600:
            return await self._failed(replica, _unusable(replica, status))
        if replica.prefill_url is not None:
            return await self._down.fail(side_problem("decode", status, body))
        problem = engine_problem(status, body)
        if self._down.opened or problem is not None:
            return await self._down.fail(problem or _in_its_words(status, body))
        return self._down.plain(status, body)

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
        if self._paired:
            usage = replace(usage, cached_tokens=self._entry_cached)
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


def _lost(replica: Replica, why: str) -> Problem:
    message = f"the connection to replica {replica.name} was lost before the answer was complete: {why}"
    return Problem(status=502, code="replica_lost", message=message)


def _silent(replica: Replica, silence_s: float) -> Problem:
    message = f"replica {replica.name} sent nothing for {silence_s:g} s"
    return Problem(status=504, code="replica_silent", message=message)


def _in_its_words(status: int, body: bytes) -> Problem:
    return Problem(status=status, code="upstream_error", message=body.decode("utf-8", "replace")[:2_000])


def _unusable(replica: Replica, status: int) -> Problem:
    message = f"replica {replica.name} answered the gateway with status {status}"
    return Problem(status=502, code="replica_refuses_gateway", message=message)


def _unmetered(problem: MeterUnavailable) -> Problem:
    message = f"nothing is served while usage cannot be written down: {problem}"
    return Problem(status=503, code="meter_unavailable", message=message, retry_after_ns=5 * NS_PER_S)
