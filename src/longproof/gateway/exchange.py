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
from longproof.gateway.answers import engine_problem, error_body, in_words, is_document, misplaced_error, whole_body
from longproof.gateway.ask import Ask
from longproof.gateway.desk import Desk, Ticket
from longproof.gateway.downstream import Downstream, ReaderStalled
from longproof.gateway.errors import Problem
from longproof.gateway.fleet import Fleet, Replica
from longproof.gateway.pair_prefill import SideFailed, hand_over, side_problem
from longproof.gateway.patience import Patience
from longproof.gateway.ports import Admitted, Counted, Counting, Meter, MeterUnavailable, Spent
from longproof.gateway.replies import (
    REPLICA,
    dispatch_headers,
    in_its_words,
    lost,
    problem_of,
    silent,
    unmetered,
    unreadable,
    unusable,
)
from longproof.gateway.responses import ResponseFlow, response_usage
from longproof.gateway.sse_events import EventFlow, error_at_first
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
        "_metered",
        "_paired",
        "_passed_tokens",
        "_patience",
        "_placed",
        "_reported",
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
        self._answer: Answer | None = None
        self._patience: Patience | None = None
        self._usage: Usage | None = None
        self._paired = False
        self._entry_cached: int | None = None
        """Of a pair: what its prefill side had cached. Its decode side calls cached whatever it was handed."""
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
                return await self._down.fail(unmetered(problem))
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
            async with Patience(self._around.silence_s) as self._patience:
                body = self._ask.body if replica.prefill_url is None else await self._hand_over(replica)
                answer = await self._send(replica, body)
                if answer.status != 200:
                    return await self._pass_error(replica, answer.status, await error_body(answer))
                if self._ask.stream and not is_document(answer):
                    return await self._relay_stream(answer, replica)
                return await self._relay_plain(answer, replica)
        except TimeoutError:
            return await self._failed(replica, silent(replica, self._around.silence_s))
        except Lost as problem:
            return await self._failed(replica, lost(replica, str(problem)))
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
        self._heard()  # that was a sign of life
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
            first = await _first_events(answer, flow)
            if not first:
                return await self._unreadable(replica, "with no event of a stream")
            if (error := error_at_first(first)) is not None:
                return await self._refused_in_200(replica, error)
            self._ask.drop_body()  # nothing will be sent a second time
            await down.open()
            await down.send(first)
            self._note(flow)
            while not await answer.pipe(partial(self._pass_on, flow)):
                if self._patience is not None:
                    self._patience.rest()  # it is the client that is waited for
                await down.taken()
                self._heard()
            if rest := flow.end():
                await down.send(rest)
            closing = flow.closing(self._ask.choices)
        finally:
            self._usage, self._passed_tokens = flow.usage, flow.tokens
        if closing is None:
            raise Lost("the stream ended without its last event")
        if closing:
            await down.send(closing)
        if not flow.failed:
            self.end = EndKind.COMPLETED
        return await down.end()

    def _pass_on(self, flow: EventFlow | ResponseFlow, data: bytes) -> bool:
        """What came from the engine, to the client: called for every read of every stream."""
        out = flow.take(data)
        go_on = not out or self._down.put(out)
        self._note(flow)
        return go_on

    def _note(self, flow: EventFlow | ResponseFlow) -> None:
        """Progress, for ledger and books: coarse, since it is called for every chunk."""
        tokens = flow.tokens
        if self._first_token_ns is None:
            if tokens:
                self._first_token()
        elif tokens - self._reported >= _REPORT_EVERY_TOKENS:
            self._reported = tokens
            self._around.desk.output(self._ask.id, tokens)
            self._around.meter.passed(self._ask.id, tokens)
        if self._patience is not None:
            self._patience.heard(self._down.written_s)

    def _heard(self) -> None:
        """From now on the engine may be silent for as long as any."""
        if self._patience is not None:
            self._patience.heard(asyncio.get_running_loop().time())

    def _first_token(self) -> None:
        self._first_token_ns = self._around.clock.now_ns()
        self._around.desk.first_token(self._ask.id)

    async def _relay_plain(self, answer: Answer, replica: Replica) -> StreamResponse:
        body = await whole_body(answer)
        if misplaced_error(body) is not None:
            return await self._refused_in_200(replica, body)
        kind = answer.headers.get("content-type", "application/json")
        if self._ask.stream or not body.lstrip().startswith(b"{"):
            return await self._unreadable(replica, f"with {kind[:80]}")
        self._ask.drop_body()
        self._first_token_ns = self._around.clock.now_ns()  # the controller hears of its first token with its end
        self._usage = response_usage(body) if self._ask.responses else usage_in(body)
        self.end = EndKind.COMPLETED
        return self._down.plain(200, body, content_type=kind if "json" in kind else "application/json")

    async def _refused_in_200(self, replica: Replica, error: bytes) -> StreamResponse:
        """An error that came with the status of an answer, before any of one. Refused where it says so."""
        status = misplaced_error(error) or 502
        if status in _BUSY:
            raise Refused(status, None)
        return await self._pass_error(replica, status, error)

    async def _unreadable(self, replica: Replica, answered: str) -> StreamResponse:
        """What came with status 200 is not what was asked for."""
        return await self._failed(replica, unreadable(replica, answered, streamed=self._ask.stream))

    async def _pass_error(self, replica: Replica, status: int, body: bytes) -> StreamResponse:
        """An engine's own refusal or failure, in its own words; but for those that are about the gateway's access."""
        self.end = EndKind.FAILED if status >= 500 else EndKind.REJECTED
        if self.end is EndKind.FAILED:
            self._around.fleet.failed(replica.name, in_words(status, body), self._around.clock.now_ns())
        if status in (401, 403) or not 400 <= status < 600:
            return await self._failed(replica, unusable(replica, status))
        if replica.prefill_url is not None:
            return await self._down.fail(side_problem("decode", status, body))
        problem = engine_problem(status, body)
        if self._down.opened or problem is not None:
            return await self._down.fail(problem or in_its_words(status, body))
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


async def _first_events(answer: Answer, flow: EventFlow | ResponseFlow) -> bytes:
    """The first whole events, wherever the network cuts them; empty: the answer has none."""
    while data := await answer.read_some():
        if events := flow.take(data):
            return events
    return flow.end()
