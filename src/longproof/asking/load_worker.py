"""A load worker: ``python -m longproof.asking.load_worker FD URL``. Sends what its parent tells it to, over connections
of its own, and reports each request when it is over. It ends with its parent: the socket FD is its lifeline.

The API key comes in the environment variable that `KEY_VARIABLE` names.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from contextlib import suppress

from longproof.asking.loop_watch import LoopWatch
from longproof.asking.steady import steady
from longproof.asking.worker_frames import Done, Leave, Order, Said, Seen, frames, prepared_of, read_said
from longproof.clock import NS_PER_S, Clock, SystemClock
from longproof.domain.events import RequestTimeline
from longproof.engines.link import Link
from longproof.engines.request_body import Prepared

KEY_VARIABLE = "LONGPROOF_LOAD_WORKER_KEY"
_REPORT_EVERY_S = 0.5


class Worker:
    """The requests under way, by number."""

    def __init__(self, link: Link, writer: asyncio.StreamWriter, clock: Clock) -> None:
        self._link = link
        self._writer = writer
        self._clock = clock
        self._leaves: dict[int, asyncio.Event] = {}

    async def run(self, reader: asyncio.StreamReader) -> None:
        """Until the parent is gone."""
        watch = LoopWatch(self._clock)
        async with asyncio.TaskGroup() as tasks:
            beside = [tasks.create_task(watch.run()), tasks.create_task(self._report(watch))]
            under_way: set[asyncio.Task[None]] = set()
            while (heard := await read_said(reader)) is not None:
                said, body = heard
                if isinstance(said, Order):
                    self._leaves[said.number] = asyncio.Event()
                    task = tasks.create_task(self._serve(said, prepared_of(said, body)))
                    under_way.add(task)
                    task.add_done_callback(under_way.discard)
                elif isinstance(said, Leave) and said.leave in self._leaves:
                    self._leaves[said.leave].set()
                del heard, body
            for task in [*beside, *under_way]:
                task.cancel()

    async def _serve(self, order: Order, prepared: Prepared) -> None:
        leave = self._leaves[order.number]
        if order.at_ns is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, (order.at_ns - self._clock.now_ns()) / NS_PER_S)):
                    await leave.wait()
        timer = None
        if order.leave_after_ns is not None:
            timer = asyncio.get_running_loop().call_later(order.leave_after_ns / NS_PER_S, leave.set)
        sending = self._link.stream(prepared, leave=leave)
        del prepared
        timeline: RequestTimeline = await sending
        if timer is not None:
            timer.cancel()
        del self._leaves[order.number]
        self._say(Done(done=order.number, timeline=timeline))

    async def _report(self, watch: LoopWatch) -> None:
        while True:
            await asyncio.sleep(_REPORT_EVERY_S)
            lags, checks = watch.take()
            self._say(Seen(checks=checks, lags=lags))

    def _say(self, said: Said) -> None:
        for piece in frames(said):
            self._writer.write(piece)


async def main(descriptor: int, url: str) -> None:
    """Serves the parent at the other end of a socket."""
    key = os.environ.pop(KEY_VARIABLE, None)
    reader, writer = await asyncio.open_connection(sock=socket.socket(fileno=descriptor))
    clock = SystemClock()
    async with Link(url, api_key=key, clock=clock) as link:
        with steady():
            writer.write(next(frames(Seen(checks=0))))  # ready
            await Worker(link, writer, clock).run(reader)
    writer.transport.abort()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), sys.argv[2]))
