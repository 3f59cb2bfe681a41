"""A thousand streams through the gateway at once, for minutes: does memory stay, does anything break, is there a limit?

    python benchmarks/gateway_soak.py [--streams N] [--minutes M] [--rate TOKENS_PER_S] [--json]

`longproof serve` runs as a process of its own, metering and logging its decisions, before three lying engines that
stream `--rate` tokens a second to each client. Every client opens its next stream when one has ended; a tenth leaves
midway. Sampled every second: streams that are open as clients see them, requests that run as the gateway says, and its
resident memory. Printed: memory once all streams had been open for a while and at the end, the most streams that were
open together (a connection pool with a limit would show as fewer), errors, descriptors, and what is held at rest.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import json
import random
import resource
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import psutil
from chaos.clients import MODEL
from chaos.laws import leaks
from chaos.processes import Disk, Engine, Gateway, WallClock

_STREAM_S = (8.0, 30.0)
_REST_S = 30.0
_EVENT = b"data: "


@dataclass(slots=True, kw_only=True)
class Soak:
    """What was seen. `rate`: tokens a second of each stream. Memory in bytes."""

    streams: int
    rate: float
    opened: int = 0
    ended: collections.Counter[str] = field(default_factory=collections.Counter[str])
    tokens: int = 0
    open_now: int = 0
    most_open: int = 0
    most_running: float = 0.0
    samples: list[tuple[float, int, int, float]] = field(default_factory=list[tuple[float, int, int, float]])
    """Seconds since the start, streams open, resident memory, processor seconds of the gateway."""
    descriptors: tuple[int, int, int] = (0, 0, 0)
    held: list[str] = field(default_factory=list[str])
    problems: collections.Counter[str] = field(default_factory=collections.Counter[str])


async def client(session: aiohttp.ClientSession, url: str, soak: Soak, rng: random.Random, until_s: float) -> None:
    """One client: stream after stream."""
    await asyncio.sleep(rng.random() * 5.0)  # they do not all come in one moment
    while time.monotonic() < until_s:
        try:
            soak.ended[await stream(session, url, soak, rng)] += 1
        except (aiohttp.ClientError, ConnectionError, TimeoutError) as problem:
            soak.ended["broken"] += 1
            soak.problems[f"{type(problem).__name__}: {problem}"[:100]] += 1


async def stream(session: aiohttp.ClientSession, url: str, soak: Soak, rng: random.Random) -> str:
    """One stream: how it ended."""
    seconds = rng.uniform(*_STREAM_S)
    leave_s = rng.random() * seconds if rng.random() < 0.1 else None
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": f"{rng.random()} " + "word " * rng.randrange(60)}],
        "max_tokens": max(2, int(seconds * soak.rate)),
        "ignore_eos": True,
        "stream": True,
    }
    soak.opened += 1
    began_s, done, error = time.monotonic(), False, ""
    async with session.post(f"{url}/v1/chat/completions", json=body) as response:
        if response.status != 200:
            soak.problems[(await response.text())[:100]] += 1
            return f"status {response.status}"
        soak.open_now += 1
        soak.most_open = max(soak.most_open, soak.open_now)
        try:
            async for line in response.content:
                if not line.startswith(_EVENT):
                    continue
                soak.tokens += 1
                done |= line.startswith(b"data: [DONE]")
                error = error or (line[:100].decode() if b'"error"' in line else "")
                if leave_s is not None and time.monotonic() - began_s > leave_s:
                    response.close()
                    return "left"
        finally:
            soak.open_now -= 1
    if error:
        soak.problems[error] += 1
    return "error" if error else "completed" if done else "cut"


async def watch(gateway: Gateway, soak: Soak, began_s: float, until_s: float) -> None:
    """Looks every second."""
    process = psutil.Process(gateway.pid)
    while time.monotonic() < until_s:
        times = process.cpu_times()
        sample = (time.monotonic() - began_s, soak.open_now, process.memory_info().rss, times.user + times.system)
        soak.samples.append(sample)
        if len(soak.samples) % 5 == 0:
            try:
                figures = await asyncio.to_thread(gateway.figures)
                soak.most_running = max(soak.most_running, figures["longproof_running_requests"])
            except httpx.HTTPError as problem:
                soak.problems[f"/metrics: {type(problem).__name__}"] += 1
        await asyncio.sleep(1.0)


async def soaked(streams: int, rate: float, minutes: float) -> Soak:
    """The whole."""
    soak, rng = Soak(streams=streams, rate=rate), random.Random(streams)
    directory = Path(tempfile.mkdtemp(prefix="gateway-soak-"))
    engines = [
        Engine(f"r{i}", directory, i, slots=streams, capacity=streams * 1_024, token_s=1 / rate) for i in range(3)
    ]
    disk = Disk(directory / "state", mib=1_024)
    gateway = Gateway(engines, directory, disk, WallClock(directory), silence_s=120.0)
    try:
        for engine in engines:
            engine.start()
        gateway.start()
        process = psutil.Process(gateway.pid)
        before = process.num_fds()
        began_s = time.monotonic()
        until_s = began_s + minutes * 60
        # the connector of aiohttp has a limit of 100: the gateway's own must have none, and so must ours
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, force_close=True)) as session:
            watching = asyncio.create_task(watch(gateway, soak, began_s, until_s))
            clients = [client(session, gateway.url, soak, random.Random(rng.random()), until_s) for _ in range(streams)]
            work = asyncio.gather(*clients)
            await watching
            most = process.num_fds()
            await work
        rest_until_s = time.monotonic() + _REST_S
        while time.monotonic() < rest_until_s:
            cached = {engine.name: engine.tell() for engine in engines}
            soak.held = list(leaks(gateway.figures(), *gateway.sockets(), cached))
            if not soak.held:
                break
            await asyncio.sleep(0.5)
        await asyncio.sleep(4.0)  # idle connections to engines close after three seconds
        soak.descriptors = before, most, process.num_fds()
        soak.samples.append((time.monotonic() - began_s, 0, process.memory_info().rss, sum(process.cpu_times()[:2])))
        gateway.drain()
    finally:
        for engine in engines:
            engine.kill()
        gateway.kill()
        disk.leave()
        shutil.rmtree(directory, ignore_errors=True)
    return soak


def steady(soak: Soak) -> list[tuple[float, int, int, float]]:
    """Samples from a quarter of the time on, while streams were open."""
    loaded = [sample for sample in soak.samples if sample[1]]
    return loaded[len(loaded) // 4 :]


def table(soak: Soak) -> str:
    """For people."""
    loaded, mib = steady(soak), 1 << 20
    fifth = max(1, len(loaded) // 5)

    def median(samples: list[tuple[float, int, int, float]]) -> float:
        return sorted(sample[2] for sample in samples)[len(samples) // 2] / mib

    first, last = median(loaded[:fifth]), median(loaded[-fifth:])
    spent_s = loaded[-1][3] - loaded[0][3]
    rows = [
        ("streams asked for at once", f"{soak.streams}"),
        ("most open at once, clients' count", f"{soak.most_open}"),
        ("most running at once, gateway's count", f"{soak.most_running:g}"),
        ("streams in all", f"{soak.opened}"),
        *((f"  {how}", f"{count}") for how, count in soak.ended.most_common()),
        ("events received", f"{soak.tokens}"),
        ("RSS before, MiB", f"{soak.samples[0][2] / mib:.1f}"),
        ("RSS loaded, median of first and last fifth, MiB", f"{first:.1f} {last:.1f}"),
        ("RSS at rest, MiB", f"{soak.samples[-1][2] / mib:.1f}"),
        ("processor time of the gateway, share of a core", f"{spent_s / (loaded[-1][0] - loaded[0][0]):.2f}"),
        ("descriptors before, loaded, at rest", " ".join(map(str, soak.descriptors))),
        ("held at rest", "; ".join(soak.held) or "nothing"),
        *((f"problem: {text}", f"{count}") for text, count in soak.problems.most_common(5)),
    ]
    return "\n".join(f"{name:<50} {value}" for name, value in rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=1_000)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--rate", type=float, default=1.0, help="tokens a second of each stream")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # clients and engines need a descriptor for each stream
    soak = asyncio.run(soaked(options.streams, options.rate, options.minutes))
    shown: dict[str, Any] = {name: getattr(soak, name) for name in Soak.__dataclass_fields__}
    print(json.dumps(shown, indent=1) if options.json else table(soak))
    wrong = sum(count for how, count in soak.ended.items() if how not in ("completed", "left"))
    return int(bool(wrong or soak.held))


if __name__ == "__main__":
    sys.exit(main())
