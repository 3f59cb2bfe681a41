"""Load from several processes: each has an event loop and connections of its own, and they all read the same clock.

    parent ── socket ── worker 0 ══ connections ══ server
        └──── socket ── worker 1 ══ connections ══ server

The parent makes the bodies; a worker gets them before their time and sends them when it comes. What a worker saw is a
timeline like any other. A worker that ends takes its connections with it: its open requests end as CANCELLED, with the
reason in `transport_error`.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from longproof.asking.load_worker import KEY_VARIABLE
from longproof.asking.worker_frames import Done, Leave, Order, Said, Seen, frames, order_of, read_said
from longproof.clock import Clock, SystemClock
from longproof.domain.events import EndedBy, RequestTimeline
from longproof.engines.request_body import Body, Prepared
from longproof.evidence.records import Lag

_START_S = 60.0
_END_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One request of a load. `at_ns` is a time of the monotonic clock, None = at once; `leave_after_ns` counts from
    when it is sent."""

    name: str
    prepared: Prepared
    at_ns: int | None = None
    leave_after_ns: int | None = None


@dataclass(slots=True, kw_only=True)
class _Open:
    """An order that a worker has and that is not over."""

    order: Order
    given_ns: int
    over: asyncio.Future[RequestTimeline]


@dataclass(slots=True)
class _Worker:
    """One process, as the parent sees it. What is in the `outbox` goes out one after the other, each whole."""

    number: int
    process: asyncio.subprocess.Process
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    open: dict[int, _Open] = field(default_factory=dict[int, _Open])
    outbox: asyncio.Queue[tuple[Said, Body | None]] = field(default_factory=asyncio.Queue[tuple[Said, Body | None]])
    gone: bool = False

    async def write(self) -> None:
        """Until cancelled, or until the process is gone."""
        with suppress(ConnectionError):
            while True:
                for piece in frames(*await self.outbox.get()):
                    self.writer.write(piece)
                    await self.writer.drain()


class Workers:
    """The processes. Use `load_workers` to start them.

    `lost` says in words which workers ended by themselves; `url` is where they send.
    """

    def __init__(self, url: str, clock: Clock) -> None:
        self.url = url
        self._clock = clock
        self._workers: list[_Worker] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._next = 0
        self._lags: list[Lag] = []
        self._checks = 0
        self._closing = False
        self.lost: list[str] = []

    def __len__(self) -> int:
        return sum(not worker.gone for worker in self._workers)

    async def send(
        self,
        prepared: Prepared,
        *,
        at_ns: int | None = None,
        leave_after_ns: int | None = None,
        leave: asyncio.Event | None = None,
    ) -> RequestTimeline:
        """Has the worker with the fewest open requests send one. RuntimeError when no worker is left."""
        worker = min((w for w in self._workers if not w.gone), key=lambda w: len(w.open), default=None)
        if worker is None:
            raise RuntimeError(f"no load worker is left: {'; '.join(self.lost)}")
        number, self._next = self._next, self._next + 1
        order = order_of(number, prepared, at_ns=at_ns, leave_after_ns=leave_after_ns)
        over: asyncio.Future[RequestTimeline] = asyncio.get_running_loop().create_future()
        worker.open[number] = _Open(order=order, given_ns=self._clock.now_ns(), over=over)
        worker.outbox.put_nowait((order, prepared.body))
        del prepared  # its body is the outbox's alone, until it is written
        watch = None if leave is None else asyncio.create_task(_tell_to_leave(worker, number, leave))
        try:
            return await over
        except asyncio.CancelledError:
            worker.outbox.put_nowait((Leave(leave=number), None))
            raise
        finally:
            del worker.open[number]
            if watch is not None:
                watch.cancel()

    async def send_all(
        self,
        jobs: Iterable[Job],
        *,
        on_done: Callable[[Job, RequestTimeline], None],
        leave: asyncio.Event | None = None,
    ) -> None:
        """Sends every job at its time, whatever the others do, and returns when all are over. `leave` leaves those
        that are open and drops those whose time has not come: they end as CANCELLED too."""

        async def one(job: Job) -> None:
            timeline = await self.send(job.prepared, at_ns=job.at_ns, leave_after_ns=job.leave_after_ns, leave=leave)
            on_done(job, timeline)

        async with asyncio.TaskGroup() as sending:
            for job in jobs:
                sending.create_task(one(job))

    def take_lags(self) -> tuple[tuple[Lag, ...], int]:
        """How late the workers' event loops came back, and the number of looks, since the last call."""
        taken = tuple(sorted(self._lags, key=lambda lag: lag.at_ns)), self._checks
        self._lags, self._checks = [], 0
        return taken

    async def start(self, count: int, api_key: str | None) -> None:
        """Starts `count` processes and waits until each is ready. TimeoutError after a minute."""
        async with asyncio.timeout(_START_S):
            self._workers = list(await asyncio.gather(*(_start(n, self.url, api_key) for n in range(count))))
            for worker in self._workers:
                if await read_said(worker.reader) is None:
                    raise RuntimeError(f"load worker {worker.number} did not start")
        self._tasks = [asyncio.create_task(self._listen(worker)) for worker in self._workers]
        self._tasks += [asyncio.create_task(worker.write()) for worker in self._workers]

    async def aclose(self) -> None:
        """Ends the processes; requests that are open are left."""
        self._closing = True
        for worker in self._workers:
            worker.writer.transport.abort()
        for worker in self._workers:
            with suppress(TimeoutError):
                async with asyncio.timeout(_END_S):
                    await worker.process.wait()
            if worker.process.returncode is None:
                worker.process.kill()
                await worker.process.wait()
        listening, writing = self._tasks[: len(self._workers)], self._tasks[len(self._workers) :]
        for task in writing:
            task.cancel()
        await asyncio.gather(*listening)
        await asyncio.gather(*writing, return_exceptions=True)

    async def _listen(self, worker: _Worker) -> None:
        while (heard := await read_said(worker.reader)) is not None:
            said, _ = heard
            if isinstance(said, Done):
                request = worker.open.get(said.done)
                if request is not None and not request.over.done():
                    request.over.set_result(said.timeline)
            elif isinstance(said, Seen):
                self._lags += said.lags
                self._checks += said.checks
        worker.gone = True
        worker.writer.transport.abort()
        code = await worker.process.wait()
        words = f"load worker {worker.number} ended ({'signal' if code < 0 else 'exit code'} {abs(code)})"
        if not self._closing:
            self.lost.append(words)
        for request in worker.open.values():
            if not request.over.done():
                request.over.set_result(_lost(request, self._clock.now_ns(), words))


@asynccontextmanager
async def load_workers(
    url: str, count: int, *, api_key: str | None = None, clock: Clock | None = None
) -> AsyncGenerator[Workers, None]:
    """`count` processes that send to the server at `url` while inside."""
    workers = Workers(url, clock or SystemClock())
    try:
        await workers.start(count, api_key)
        yield workers
    finally:
        await workers.aclose()


async def _start(number: int, url: str, api_key: str | None) -> _Worker:
    ours, theirs = socket.socketpair()
    environment = dict(os.environ)
    if api_key is not None:
        environment[KEY_VARIABLE] = api_key
    with theirs:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "longproof.asking.load_worker",
            str(theirs.fileno()),
            url,
            stdin=asyncio.subprocess.DEVNULL,
            pass_fds=(theirs.fileno(),),
            start_new_session=True,  # Ctrl-C is the parent's to answer
            env=environment,
        )
    reader, writer = await asyncio.open_connection(sock=ours)
    return _Worker(number, process, reader, writer)


async def _tell_to_leave(worker: _Worker, number: int, leave: asyncio.Event) -> None:
    await leave.wait()
    worker.outbox.put_nowait((Leave(leave=number), None))


def _lost(request: _Open, now_ns: int, words: str) -> RequestTimeline:
    order = request.order
    return RequestTimeline(
        request_id=order.request_id,
        route=order.route,
        submitted_ns=request.given_ns,
        finished_ns=now_ns,
        ended_by=EndedBy.CANCELLED,
        prompt_tokens_sent=order.prompt_tokens,
        count_source=order.count_source,
        max_tokens=order.max_tokens,
        body_bytes=order.body_bytes,
        transport_error=words,
    )
