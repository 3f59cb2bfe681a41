"""One process, 256 streams, prompts of a million tokens: what a window of such a load costs the client.

    python benchmarks/long_streams.py [--streams N] [--tokens N] [--rounds N] [--workers N]

Each round is one window, as the probes of load run it. Each request has a prompt of its own, a million ids that differ
in their first eight (a `Lot`: one body of 6 MB in memory for all). They leave on a schedule, one every 25 ms, whatever
the others do. The server (`stamping_server.py`) reads every byte and streams 40 tokens at 10 a second. Printed per
round:

    delay    when a request left less when it was to leave
    upload   from there until the server had read it whole: 6 MB through the loopback, next to all the others
    ITL      |gap between two chunks as the client stamped them - as the server wrote them|
    lag      how late the client's event loop came back, at the 99th percentile of a look every 20 ms, and at worst
    memory   resident, at the end of the round and at its peak so far; with --workers that of the parent and of all
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import platform
import random
import resource
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
from fidelity import Server, quantile

from longproof.asking.context import ProbeContext
from longproof.asking.exact import BuiltPrompt
from longproof.asking.lot import Lot
from longproof.asking.prompts import PromptBuilder
from longproof.asking.stock import PromptStock
from longproof.asking.window import Load, LoadRequest, run_window
from longproof.asking.workers import load_workers
from longproof.clock import NS_PER_MS, SystemClock
from longproof.domain.events import EndedBy
from longproof.domain.request import CountSource, IdsPrompt, Route, TokenCount
from longproof.engines.link import Link
from longproof.engines.openai import OpenAIEngine
from longproof.evidence.records import RequestBody, WindowBody
from longproof.evidence.store import Journal
from longproof.evidence.windows import Window
from longproof.testing.builders import build_deployment, build_header, build_protocol

OPENING_IDS = 8
EVERY_NS = 25_000_000
ANSWER_TOKENS = 40
TIMEOUT_S = 600.0


class Unlimited:
    """A budget that holds everything, and nobody who watches."""

    def check(self, tokens: int, ns: int = 0) -> None: ...

    def step(self, probe: str, what: str) -> None: ...

    def finished(self, key: str, body: RequestBody) -> None: ...

    def window_ended(self, key: str, body: WindowBody) -> None: ...


@contextlib.asynccontextmanager
async def context(url: str, workers: int, directory: Path) -> AsyncIterator[ProbeContext]:
    """What a probe has, over the stamping server."""
    engine = OpenAIEngine(Link(url), model="stamped")
    deployment, protocol = build_deployment(), build_protocol(output_tokens=ANSWER_TOKENS, route=Route.COMPLETIONS)
    journal = Journal.create(directory, build_header(deployment=deployment, protocol=protocol))
    journal.start_session(SystemClock())
    async with contextlib.AsyncExitStack() as stack:
        yield ProbeContext(
            engine=engine,
            deployment=deployment,
            protocol=protocol,
            journal=journal,
            prompts=PromptBuilder(engine, route=Route.COMPLETIONS, seed=1, salt=""),
            budget=Unlimited(),
            progress=Unlimited(),
            workers=await stack.enter_async_context(load_workers(url, workers)) if workers else None,
        )
    journal.close()
    await engine.aclose()


def lot_of_ids(tokens: int, draw: random.Random) -> Lot:
    """Requests with prompts of that many ids."""
    count = TokenCount(total=tokens, content=tokens, template=0, special=None, source=CountSource.IDS, how="ids sent")
    stock = PromptStock(
        built=BuiltPrompt(
            prompt=IdsPrompt(ids=tuple(draw.randrange(1_000, 50_000) for _ in range(tokens))), count=count
        ),
        nonce="",
        words=(),
        word_ids=tuple(range(1_000, 50_000)),
        nonce_ids=OPENING_IDS,
    )
    return Lot(stock, max_tokens=ANSWER_TOKENS, timeout_s=TIMEOUT_S)


async def one_round(ctx: ProbeContext, lot: Lot, number: int, streams: int) -> Window:
    """All streams of a round."""
    load = Load(
        for_ns=0,
        scheduled=tuple(
            LoadRequest(name=f"long/{i}", cell={}, request=lot.request(number * streams + i), at_ns=(8 + i) * EVERY_NS)
            for i in range(streams)
        ),
    )
    key = f"round/{number}"
    return await run_window(ctx, key, probe="busy", cell={}, load=load, expected_tokens=0, expected_ns=0)


def report(number: int, done: Window, log: list[dict]) -> None:
    """One line of the table."""
    served = {entry["id"]: entry for entry in log}
    delays, uploads, gaps = [], [], []
    for _, body in done.requests:
        timeline = body.timeline
        entry = served.get(timeline.engine_request_id)
        if timeline.ended_by is not EndedBy.DONE or entry is None:
            continue
        delays.append((timeline.submitted_ns - body.planned_ns) / NS_PER_MS)
        uploads.append((entry["read_ns"] - timeline.submitted_ns) / NS_PER_MS)
        at_ns, sent_ns = [chunk.at_ns for chunk in timeline.chunks], entry["sent_ns"]
        for i in range(1, len(at_ns)):
            gaps.append(abs((at_ns[i] - at_ns[i - 1]) - (sent_ns[i] - sent_ns[i - 1])) / NS_PER_MS)
    lags = [lag.late_ns for lag in done.body.lags] + [0] * (done.body.lag_checks - len(done.body.lags))
    me = psutil.Process()
    rss_mib = me.memory_info().rss / 2**20
    workers = [child for child in me.children() if "longproof.asking.load_worker" in child.cmdline()]
    theirs = f" + workers {sum(child.memory_info().rss for child in workers) / 2**20:.0f} MiB" if workers else ""
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    print(
        f"{number:>5}  {len(delays):>4} done  "
        f"delay p50 {quantile(delays, 0.5):.2f} p99 {quantile(delays, 0.99):.2f} ms  "
        f"upload p50 {quantile(uploads, 0.5):.0f} p99 {quantile(uploads, 0.99):.0f} ms  "
        f"ITL p50 {quantile(gaps, 0.5):.2f} p99 {quantile(gaps, 0.99):.2f} ms  "
        f"lag p99 {quantile(lags, 0.99) / NS_PER_MS:.1f} worst {max(lags) / NS_PER_MS:.1f} ms  "
        f"memory {rss_mib:.0f} MiB, peak {peak_mib:.0f}{theirs}",
        flush=True,
    )


async def main(streams: int, tokens: int, rounds: int, workers: int, server: Server) -> None:
    before_mib = psutil.Process().memory_info().rss / 2**20
    lot = lot_of_ids(tokens, random.Random(1))
    with tempfile.TemporaryDirectory() as scratch:
        async with context(server.url, workers, Path(scratch) / "evidence") as ctx:
            size = (await lot.prepare(ctx.engine, 0)).body.size_bytes
            print(f"body {size / 1e6:.1f} MB, {streams} streams; before it was made {before_mib:.0f} MiB")
            for number in range(1, rounds + 1):
                server.pace(mode="spread", tokens_per_s=10, first_s=[0.5, 1.5], seed=number)
                done = await one_round(ctx, lot, number, streams)
                report(number, done, server.log()["requests"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=0)
    options = parser.parse_args()
    with contextlib.suppress(OSError):
        os.setsid()
        Path("/proc/self/autogroup").write_text("-15")
        os.setpriority(os.PRIO_PROCESS, 0, -15)
    print(f"{platform.platform()}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}")
    running = Server()
    try:
        asyncio.run(main(options.streams, options.tokens, options.rounds, options.workers, running))
    finally:
        running.close()
    sys.exit(0)
