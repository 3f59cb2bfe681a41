"""One process, 256 streams, prompts of a million tokens: what it costs the client.

    python benchmarks/long_streams.py [--streams N] [--tokens N] [--rounds N]

Each request has a prompt of its own, a million ids that differ in their first eight (`Series`: one body of 6 MB in
memory for all). They leave on a schedule, one every 25 ms, whatever the others do. The server (`stamping_server.py`)
reads every byte and streams 40 tokens at 10 a second. Printed per round:

    delay    when a request left less when it was to leave
    upload   from there until the server had read it whole: 6 MB through the loopback, next to all the others
    ITL      |gap between two chunks as the client stamped them - as the server wrote them|
    lag      how late the client's event loop came back, at the 99th percentile of a look every 20 ms, and at worst
    memory   resident, at the end of the round and at its peak so far
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
import time
from pathlib import Path

import psutil
from fidelity import Server, quantile

from longproof.asking.loop_watch import LoopWatch
from longproof.asking.steady import steady
from longproof.clock import NS_PER_MS, NS_PER_S, SystemClock
from longproof.domain.events import EndedBy, RequestTimeline
from longproof.domain.request import CountSource, GenerationRequest, IdsPrompt
from longproof.engines.link import Link
from longproof.engines.openai import OpenAIEngine
from longproof.engines.request_body import Series

OPENING_IDS = 8
EVERY_NS = 25_000_000
ANSWER_TOKENS = 40


async def one_round(
    engine: OpenAIEngine, series: Series, streams: int, draw: random.Random
) -> list[tuple[int, RequestTimeline]]:
    """All streams of a round: (when it was to leave, what became of it)."""
    begun_ns = time.monotonic_ns() + 200_000_000

    async def one(number: int) -> tuple[int, RequestTimeline]:
        prepared = series.prepared(tuple(draw.randrange(1_000, 50_000) for _ in range(OPENING_IDS)))
        planned_ns = begun_ns + number * EVERY_NS
        await asyncio.sleep(max(0.0, (planned_ns - time.monotonic_ns()) / NS_PER_S))
        return planned_ns, await engine.send(prepared)

    return await asyncio.gather(*(one(number) for number in range(streams)))


def report(number: int, found: list[tuple[int, RequestTimeline]], log: list[dict], lags: list[int]) -> None:
    """One line of the table."""
    served = {entry["id"]: entry for entry in log}
    delays, uploads, gaps = [], [], []
    done = 0
    for planned_ns, timeline in found:
        entry = served.get(timeline.engine_request_id)
        if timeline.ended_by is not EndedBy.DONE or entry is None:
            continue
        done += 1
        delays.append((timeline.submitted_ns - planned_ns) / NS_PER_MS)
        uploads.append((entry["read_ns"] - timeline.submitted_ns) / NS_PER_MS)
        at_ns, sent_ns = [chunk.at_ns for chunk in timeline.chunks], entry["sent_ns"]
        for i in range(1, len(at_ns)):
            gaps.append(abs((at_ns[i] - at_ns[i - 1]) - (sent_ns[i] - sent_ns[i - 1])) / NS_PER_MS)
    rss_mib = psutil.Process().memory_info().rss / 2**20
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    print(
        f"{number:>5}  {done:>4} done  delay p50 {quantile(delays, 0.5):.2f} p99 {quantile(delays, 0.99):.2f} ms  "
        f"upload p50 {quantile(uploads, 0.5):.0f} p99 {quantile(uploads, 0.99):.0f} ms  "
        f"ITL p50 {quantile(gaps, 0.5):.2f} p99 {quantile(gaps, 0.99):.2f} ms  "
        f"lag p99 {quantile(lags, 0.99) / NS_PER_MS:.1f} worst {max(lags) / NS_PER_MS:.1f} ms  "
        f"memory {rss_mib:.0f} MiB, peak {peak_mib:.0f}",
        flush=True,
    )


async def main(streams: int, tokens: int, rounds: int, server: Server) -> None:
    engine = OpenAIEngine(Link(server.url), model="stamped")
    before_mib = psutil.Process().memory_info().rss / 2**20
    draw = random.Random(1)
    opening = tuple(draw.randrange(1_000, 50_000) for _ in range(OPENING_IDS))
    ids = opening + tuple(draw.randrange(1_000, 50_000) for _ in range(tokens - OPENING_IDS))
    request = GenerationRequest(
        prompt=IdsPrompt(ids=ids), max_tokens=ANSWER_TOKENS, prompt_tokens=tokens, count_source=CountSource.IDS
    )
    prepared = await engine.prepare(request)
    print(f"body {prepared.body.size_bytes / 1e6:.1f} MB, {streams} streams; before it was made {before_mib:.0f} MiB")
    series = Series(prepared, opening)
    del prepared, request, ids
    for number in range(1, rounds + 1):
        server.pace(mode="spread", tokens_per_s=10, first_s=[0.5, 1.5], seed=number)
        watch = LoopWatch(SystemClock())
        watching = asyncio.create_task(watch.run())
        with steady():
            found = await one_round(engine, series, streams, draw)
        watching.cancel()
        lags, checks = watch.take()
        report(number, found, server.log()["requests"], [lag.late_ns for lag in lags] + [0] * (checks - len(lags)))
    await engine.aclose()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with contextlib.suppress(OSError):
        os.setsid()
        Path("/proc/self/autogroup").write_text("-15")
        os.setpriority(os.PRIO_PROCESS, 0, -15)
    print(f"{platform.platform()}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}")
    running = Server()
    try:
        asyncio.run(main(options.streams, options.tokens, options.rounds, running))
    finally:
        running.close()
    sys.exit(0)
