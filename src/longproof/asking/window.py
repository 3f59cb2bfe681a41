"""A stretch of time under load: many requests at once, each a record, with the engine's metrics on the side.

    closed loop    `concurrency` requests of a stock are always under way; a free place is filled at once
    scheduled      each request leaves at its own time, however slow the answers are (no coordinated omission)

Both can run together: background load, and long requests thrown in. A request's `planned_ns` is when it should have
left; what the client was late by is in its record, and how late the event loop itself came back in the window's.

A window is one question: its record is written when it is over. One that a crash tore is asked again from the start.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from longproof.asking.context import Cell, ProbeContext, prompt_sha256
from longproof.asking.loop_watch import LoopWatch
from longproof.asking.lot import LotRequest
from longproof.asking.recorder import Recorder
from longproof.asking.steady import steady
from longproof.clock import NS_PER_S
from longproof.domain.events import EngineSample, RequestTimeline
from longproof.domain.outcome import Outcome, classify
from longproof.domain.request import GenerationRequest
from longproof.engines.request_body import Prepared
from longproof.errors import EngineMisbehaved
from longproof.evidence.records import Lag, RequestBody, WindowBody
from longproof.evidence.windows import Window, window_of

_AHEAD_NS = 2 * NS_PER_S
_LOOK_S = 0.005
_REFUSED_PAUSE_S = 0.25
"""A closed loop that is refused waits this long: asking again at once would only measure refusals."""
_MOST_UNREACHABLE = 8
_REFUSED = {
    Outcome.REFUSED_BUSY,
    Outcome.REFUSED_LENGTH,
    Outcome.REFUSED_OTHER,
    Outcome.SERVER_ERROR,
    Outcome.ERROR_IN_STREAM,
    Outcome.UNREACHABLE,
    Outcome.EMPTY,
    Outcome.CUT,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel:
    """When we leave a request: so long after it was sent, or after so many chunks with content. `by`: how."""

    after_ns: int | None = None
    after_chunks: int | None = None
    by: Literal["disconnect", "abort"] = "disconnect"

    def __str__(self) -> str:
        when = f"{self.after_ns} ns" if self.after_ns is not None else f"{self.after_chunks} chunks"
        return f"{self.by} after {when}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRequest:
    """One request of a load. `name` is unique within its window; `at_ns` counts from the window's start, None in a
    closed loop. Many long ones belong into a `Lot`: a request of its own holds its whole prompt until it is over."""

    name: str
    cell: Cell
    request: GenerationRequest | LotRequest
    nonce: str | None = None
    at_ns: int | None = None
    cancel: Cancel | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What a window does to a server.

    `concurrency` requests of `stock` (i → the i-th request; it must not touch the network) are under way until
    `for_ns`, or with `until_scheduled_end` until the last of `scheduled` is over, but nothing new begins after
    `most_ns`, nor more than `most_requests` of the stock. Requests under way run to their end. With `settled` the
    engine is then watched until that says True of a sample, for `settle_ns` at most. `describe` is kept as what was
    meant.
    """

    for_ns: int
    concurrency: int = 0
    stock: Callable[[int], LoadRequest] | None = None
    scheduled: tuple[LoadRequest, ...] = ()
    until_scheduled_end: bool = False
    most_ns: int | None = None
    most_requests: int | None = None
    settled: Callable[[EngineSample], bool] | None = None
    settle_ns: int = 0
    describe: Cell = field(default_factory=dict[str, int | float | str | bool])


async def run_window(
    ctx: ProbeContext,
    key: str,
    *,
    probe: str,
    cell: Cell,
    load: Load,
    expected_tokens: int,
    expected_ns: int,
    sample_every_s: float = 0.25,
) -> Window:
    """The window under `key`: from the journal if it is there, else by running it. Raises BudgetSpent before it
    starts, never in the middle; what the server does is in the records."""
    if not isinstance(ctx.journal.get(key), WindowBody):
        ctx.budget.check(expected_tokens, expected_ns)
        ctx.progress.step(probe, " ".join(f"{name}={value}" for name, value in {**cell, **load.describe}.items()))
        await _Running(ctx, key, probe, cell, load, sample_every_s).run()
    return stored_window(ctx, key)


def stored_window(ctx: ProbeContext, key: str) -> Window:
    """A window that stands in the journal. KeyError where none does."""
    body = ctx.journal.get(key)
    if not isinstance(body, WindowBody):
        raise KeyError(key)
    return window_of(key, body, ctx.journal.records)


class _Running:
    """One attempt at one window."""

    def __init__(self, ctx: ProbeContext, key: str, probe: str, cell: Cell, load: Load, sample_every_s: float) -> None:
        self._ctx = ctx
        self._key = key
        self._probe = probe
        self._cell = cell
        self._load = load
        self._sample_every_s = sample_every_s
        self._prefix = _next_prefix(ctx, key)
        self._recorder = Recorder(ctx, probe=probe, cell=cell, prefix=self._prefix)
        self._started_ns = 0
        self._sent = 0
        self._next = 0
        self._scheduled_left = len(load.scheduled)
        self._unreachable = 0
        self._stopped = False
        self._watch = LoopWatch(ctx.clock)

    async def run(self) -> None:
        ctx = self._ctx
        ctx.note(f"{self._prefix}begun", probe=self._probe, what="window_begun", **self._cell)
        with steady():
            self._started_ns = ctx.clock.now_ns()
            await self._under_load()
        ended_ns = ctx.clock.now_ns()
        lags, checks = self._lags()
        body = WindowBody(
            probe=self._probe,
            cell=self._cell,
            prefix=self._prefix,
            load=self._load.describe,
            started_ns=self._started_ns,
            ended_ns=ended_ns,
            requests=self._sent,
            lags=lags,
            lag_checks=checks,
            workers=1 if ctx.workers is None else len(ctx.workers),
        )
        ctx.journal.append(self._key, body)
        ctx.progress.window_ended(self._key, body)

    async def _under_load(self) -> None:
        ctx, load = self._ctx, self._load
        async with self._recorder, asyncio.TaskGroup() as beside:
            watching = [beside.create_task(self._watch.run())]
            if ctx.engine.capabilities.metrics:
                watching.append(beside.create_task(self._recorder.sample(self._sample_every_s)))
            try:
                async with asyncio.TaskGroup() as sending:
                    for request in load.scheduled:
                        sending.create_task(self._scheduled(request))
                    for _ in range(load.concurrency if load.stock is not None else 0):
                        sending.create_task(self._loop())
                await self._settle()
            finally:
                for task in watching:
                    task.cancel()
                await asyncio.wait(watching)

    def _lags(self) -> tuple[tuple[Lag, ...], int]:
        """This process's, and those of the processes that sent for it."""
        lags, checks = self._watch.take()
        if self._ctx.workers is None:
            return lags, checks
        others, looks = self._ctx.workers.take_lags()
        return tuple(sorted((*lags, *others), key=lambda lag: lag.at_ns)), checks + looks

    async def _scheduled(self, asked: LoadRequest) -> None:
        """Its body is made a little before its time: all of them at once would fill the memory."""
        planned_ns = self._started_ns + (asked.at_ns or 0)
        await self._sleep_until(planned_ns - _AHEAD_NS)
        prepared = await _prepared(self._ctx, asked.request)
        await self._sleep_until(planned_ns)
        if not self._stopped:
            sending = self._send(asked, planned_ns, prepared)
            del prepared  # a body of megabytes goes when it is sent
            await sending
        self._scheduled_left -= 1

    async def _sleep_until(self, at_ns: int) -> None:
        await asyncio.sleep(max(0.0, (at_ns - self._ctx.clock.now_ns()) / NS_PER_S))

    async def _loop(self) -> None:
        stock = self._load.stock
        while stock is not None and self._goes_on():
            number, self._next = self._next, self._next + 1
            timeline = await self._send(stock(number), self._ctx.clock.now_ns())
            if classify(timeline) in _REFUSED:
                await asyncio.sleep(_REFUSED_PAUSE_S)

    async def _settle(self) -> None:
        settled, clock = self._load.settled, self._ctx.clock
        until_ns, seen = clock.now_ns() + self._load.settle_ns, self._recorder.sampled
        while settled is not None and self._ctx.engine.capabilities.metrics and clock.now_ns() < until_ns:
            await asyncio.sleep(_LOOK_S)
            if self._recorder.sampled > seen and self._recorder.last is not None:
                seen = self._recorder.sampled
                if settled(self._recorder.last):
                    return

    def _goes_on(self) -> bool:
        load, since_ns = self._load, self._ctx.clock.now_ns() - self._started_ns
        if self._stopped or (load.most_ns is not None and since_ns >= load.most_ns):
            return False
        if load.most_requests is not None and self._next >= load.most_requests:
            return False
        return since_ns < load.for_ns or (load.until_scheduled_end and self._scheduled_left > 0)

    async def _send(self, asked: LoadRequest, planned_ns: int, prepared: Prepared | None = None) -> RequestTimeline:
        self._sent += 1
        sending = send_and_leave(self._ctx, asked, prepared)
        del prepared
        timeline, left_ns = await sending
        sha256 = await _sha256(asked.request)
        gone = classify(timeline) is Outcome.UNREACHABLE
        self._unreachable = self._unreachable + 1 if gone else 0
        self._stopped = self._stopped or self._unreachable >= _MOST_UNREACHABLE
        self._recorder.add(
            asked.name,
            RequestBody(
                probe=self._probe,
                cell={**self._cell, **asked.cell},
                timeline=timeline,
                prompt_sha256=sha256,
                exact_output=asked.request.exact_output and self._ctx.engine.capabilities.exact_output,
                nonce=asked.nonce,
                planned_ns=planned_ns,
                cancel=None if asked.cancel is None else str(asked.cancel),
                left_ns=left_ns,
            ),
        )
        return timeline


async def send_and_leave(
    ctx: ProbeContext, asked: LoadRequest, prepared: Prepared | None = None
) -> tuple[RequestTimeline, int | None]:
    """Sends one request and leaves it when its `cancel` says so; when that was, None where it had ended before.

    What is not to be left goes through the load workers, where there are some: who leaves must see the chunks come.
    """
    prepared = prepared or await _prepared(ctx, asked.request)
    if asked.cancel is not None:
        return await _Leaving(ctx, asked.cancel, prepared).run()
    worked = ctx.workers is not None and ctx.workers.url == ctx.engine.url and len(ctx.workers)
    sending = ctx.workers.send(prepared) if ctx.workers is not None and worked else ctx.engine.send(prepared)
    del prepared  # a body of megabytes goes when it is sent, not when the answer is over
    return await sending, None


async def _prepared(ctx: ProbeContext, request: GenerationRequest | LotRequest) -> Prepared:
    if isinstance(request, LotRequest):
        return await request.lot.prepare(ctx.engine, request.i)
    return await ctx.engine.prepare(request)


async def _sha256(request: GenerationRequest | LotRequest) -> str:
    if isinstance(request, LotRequest):
        return await request.lot.prompt_sha256(request.i)
    return prompt_sha256(request.prompt)


class _Leaving:
    """One request that is left: by closing its connection, or by asking the engine to abort it and reading on."""

    def __init__(self, ctx: ProbeContext, cancel: Cancel, prepared: Prepared) -> None:
        self._ctx = ctx
        self._cancel = cancel
        self._prepared = prepared
        self._leave = asyncio.Event()
        self._chunks = 0
        self._left_ns: int | None = None
        self._aborting: asyncio.Task[bool] | None = None

    async def run(self) -> tuple[RequestTimeline, int | None]:
        timer = None
        if self._cancel.after_ns is not None:
            timer = asyncio.get_running_loop().call_later(self._cancel.after_ns / NS_PER_S, self._go)
        try:
            timeline = await self._ctx.engine.send(self._prepared, on_content=self._on_content, leave=self._leave)
        finally:
            if timer is not None:
                timer.cancel()
        if self._aborting is not None:
            try:
                asked = await self._aborting
            except EngineMisbehaved:
                asked = False
            self._left_ns = self._left_ns if asked else None
        return timeline, self._left_ns

    def _on_content(self, _chunk: object, _text: str) -> bool | None:
        self._chunks += 1
        wanted = self._cancel.after_chunks
        if wanted is None or self._chunks < wanted or self._left_ns is not None:
            return None
        self._go()
        return None if self._aborting is not None else False

    def _go(self) -> None:
        if self._left_ns is not None:
            return
        self._left_ns = self._ctx.clock.now_ns()
        if self._cancel.by == "abort":
            self._aborting = asyncio.create_task(self._ctx.engine.abort(self._prepared.request_id))
        else:
            self._leave.set()


def _next_prefix(ctx: ProbeContext, key: str) -> str:
    attempt = 1
    while ctx.journal.get(f"{key}#{attempt}/begun") is not None:
        attempt += 1
    return f"{key}#{attempt}/"
