"""What large bodies cost the gateway: time, CPU, memory, and what its event loop notices of them.

    python benchmarks/gateway_bodies.py [--mib 4,16,40] [--clients 1,8,32] [--rounds 3] [--model FILES]
                                        [--no-tokenizer] [--json]

Three processes: an engine that answers at once (and counts with the model's own tokenizer when it is asked to), the
gateway, and the client here. Every request goes through the whole gateway: body, count, ledger, routing, metering.

    cold      a text that nobody sent before
    known     the same as one before, and a question more: of a conversation, the next turn

ms: of one request, p50 and the worst, from its first byte to the end of its answer; the engine reads and answers
meanwhile. CPU: of the gateway alone, per request. Copies: what its memory grew by at most, in bodies of all clients.
Loop lag: how late a timer of its event loop fires meanwhile, from its own metrics (the upper end of a bucket).
With `--no-tokenizer` the gateway is not told the model's: lengths are estimated and blocks named by their text.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import itertools
import json
import logging
import statistics
import sys
import sysconfig
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import psutil
from aiohttp import web
from prometheus_client.parser import text_string_to_metric_families

from longproof.domain.request import Route
from longproof.engines.model_files import resolve_model
from longproof.gateway.local_count import LocalCount
from longproof.gateway.model_tokenizer import load_model_tokenizer
from longproof.gateway.text_memory import TextMemory

MODEL = "m"
WINDOW = 64 << 20
FLEET = """
[gateway]
host = "127.0.0.1"
port = 0
body_limit = "128MiB"
open_limit = "2GiB"
state = "{state}"

[[replica]]
name = "a"
url = "{url}"
kv_capacity = {window}
context = {window}
prefill_rate = 1000000000
{tokenizer}
"""
_MOST_LATE_S = 600.0
LAGS = ("lag_p50_ms", "lag_p99_ms", "lag_worst_ms")
HEADER = "| MiB | clients | prefix | ms p50 / worst | CPU ms each | peak MiB | copies | loop lag ms p50 / p99 / worst |"


def library_text(size: int) -> str:
    """Source files of the standard library, again and again, as ASCII."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    text = "".join(file.read_text("utf-8", "ignore") for file in files).encode("ascii", "ignore").decode()
    return (text * (size // len(text) + 1))[:size]


async def engine(model: Path) -> None:
    """An engine of vLLM's dialect that generates nothing; prints its port and ends with its standard input."""
    local = LocalCount(load_model_tokenizer(model), TextMemory(capacity_bytes=0))
    answer = orjson.dumps(
        {
            "id": "x",
            "object": "chat.completion",
            "model": MODEL,
            "choices": [{"index": 0, "message": {"role": "assistant", "content": "ok"}, "finish_reason": "stop"}],
        }
    )

    async def generate(request: web.Request) -> web.Response:
        while await request.content.readany():
            pass
        return web.Response(body=answer, content_type="application/json")

    async def tokenize(request: web.Request) -> web.Response:
        fields = orjson.loads(await request.read())
        route = Route.CHAT if "messages" in fields else Route.COMPLETIONS
        (ids,) = await asyncio.to_thread(local.ids, route, fields)
        return web.json_response({"tokens": ids.tolist(), "count": len(ids), "max_model_len": WINDOW})

    async def models(_: web.Request) -> web.Response:
        card = {"id": MODEL, "object": "model", "owned_by": "vllm", "root": MODEL, "max_model_len": WINDOW}
        return web.json_response({"object": "list", "data": [card]})

    async def version(_: web.Request) -> web.Response:
        return web.json_response({"version": "0.32.0"})

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(
            text="vllm:num_requests_running 0\nvllm:num_requests_waiting 0\nvllm:kv_cache_usage_perc 0\n"
        )

    app = web.Application(client_max_size=1 << 30)
    app.router.add_post("/v1/chat/completions", generate)
    app.router.add_post("/tokenize", tokenize)
    app.router.add_get("/v1/models", models)
    app.router.add_get("/version", version)
    app.router.add_get("/metrics", metrics)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.to_thread(sys.stdin.read)


class Process:
    """A child with a line of output that is waited for, and what the system says of it."""

    def __init__(self, child: asyncio.subprocess.Process) -> None:
        self.child = child
        self._seen = psutil.Process(child.pid)

    def cpu_s(self) -> float:
        """User and system time so far."""
        times = self._seen.cpu_times()
        return times.user + times.system

    def forget_peak(self) -> int:
        """Begin to look for the highest memory anew; returns what it has now, in bytes."""
        Path(f"/proc/{self.child.pid}/clear_refs").write_text("5")
        return self._seen.memory_info().rss

    def peak(self) -> int:
        """The highest since then, in bytes."""
        status = Path(f"/proc/{self.child.pid}/status").read_text()
        return 1024 * int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1])


@contextlib.asynccontextmanager
async def running(*command: str) -> AsyncIterator[tuple[Process, asyncio.StreamReader]]:
    """A child process with all its output in one; it is ended with the block."""
    child = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    assert child.stdout is not None
    try:
        yield Process(child), child.stdout
    finally:
        if child.returncode is None:
            child.terminate()
        await child.wait()


async def lag(session: aiohttp.ClientSession, url: str) -> dict[float, float]:
    """The gateway's histogram of its loop's lag: upper end of a bucket → how many are below it."""
    async with session.get(f"{url}/metrics") as answer:
        text = await answer.text()
    for family in text_string_to_metric_families(text):
        if family.name == "longproof_event_loop_lag_seconds":
            return {float(s.labels["le"]): s.value for s in family.samples if s.name.endswith("_bucket")}
    return {}


def quantile_ms(grown: Counter[float], share: float) -> float | None:
    """The upper end of the bucket in which a quantile lies, in ms."""
    total = max(grown.values(), default=0.0)
    if not total:
        return None
    return 1e3 * min(end for end, count in grown.items() if count >= share * total)


@dataclass(frozen=True, slots=True)
class Burst:
    """What was seen while a number of bodies went through at once. `lags`: upper end of a bucket → samples below it."""

    times_s: list[float]
    cpu_s: float
    peak_bytes: int
    copies: float
    lags: Counter[float]


class Bench:
    """The client's side, and what is noted of the gateway meanwhile."""

    def __init__(self, session: aiohttp.ClientSession, url: str, gateway: Process, *, quiet: bool) -> None:
        self._session, self._url, self._gateway, self._quiet = session, url, gateway, quiet
        self.rows: list[dict[str, Any]] = []
        self._bursts: dict[str, list[Burst]] = {}

    async def burst(self, kind: str, bodies: list[bytes]) -> None:
        """All bodies at once, for one line of the table."""
        before, cpu_s, held = await lag(self._session, self._url), self._gateway.cpu_s(), self._gateway.forget_peak()
        times = await asyncio.gather(*map(self._post, bodies))
        cpu_s, peak = self._gateway.cpu_s() - cpu_s, self._gateway.peak()
        after = await lag(self._session, self._url)
        grown = Counter({end: after[end] - before.get(end, 0.0) for end in after})
        burst = Burst(times, cpu_s, peak, max(0, peak - held) / sum(map(len, bodies)), grown)
        self._bursts.setdefault(kind, []).append(burst)

    def row(self, mib: int, kind: str) -> None:
        """One line of the table, of all its bursts."""
        bursts = self._bursts.pop(kind)
        times = [time_s for burst in bursts for time_s in burst.times_s]
        lags_seen = sum((burst.lags for burst in bursts), Counter[float]())
        row = {
            "mib": mib,
            "clients": len(bursts[0].times_s),
            "rounds": len(bursts),
            "kind": kind,
            "p50_ms": 1e3 * statistics.median(times),
            "worst_ms": 1e3 * max(times),
            "cpu_ms": 1e3 * sum(burst.cpu_s for burst in bursts) / len(times),
            "peak_mib": max(burst.peak_bytes for burst in bursts) / 2**20,
            "copies": max(burst.copies for burst in bursts),
            "lag_samples": max(lags_seen.values(), default=0),
            "lag_p50_ms": quantile_ms(lags_seen, 0.5),
            "lag_p99_ms": quantile_ms(lags_seen, 0.99),
            "lag_worst_ms": quantile_ms(lags_seen, 1.0),
        }
        self.rows.append(row)
        lags = " / ".join("-" if row[name] is None else f"{row[name]:g}" for name in LAGS)
        print(
            f"| {mib} | {row['clients']} | {kind} | {row['p50_ms']:,.0f} / {row['worst_ms']:,.0f}"
            f" | {row['cpu_ms']:,.0f} | {row['peak_mib']:,.0f} | {row['copies']:.1f} | {lags} |",
            file=sys.stderr if self._quiet else sys.stdout,
            flush=True,
        )

    async def _post(self, body: bytes) -> float:
        began_s = time.monotonic()
        headers = {"Content-Type": "application/json"}
        data = aiohttp.BytesIOPayload(io.BytesIO(body))
        async with self._session.post(f"{self._url}/v1/chat/completions", data=data, headers=headers) as answer:
            text = await answer.text()
            if answer.status != 200:
                raise RuntimeError(f"{answer.status}: {text[:300]}")
        return time.monotonic() - began_s


def body(text: str, *more: str) -> bytes:
    """A chat that begins with a text."""
    messages = [{"role": "user", "content": text}]
    for question in more:
        messages += [{"role": "assistant", "content": "Yes."}, {"role": "user", "content": question}]
    return orjson.dumps({"model": MODEL, "messages": messages, "max_tokens": 1})


async def measure(options: argparse.Namespace) -> None:
    """All rows."""
    model = options.model or resolve_model()
    sizes, clients = ([int(one) for one in text.split(",")] for text in (options.mib, options.clients))
    timeout = aiohttp.ClientTimeout(total=_MOST_LATE_S)
    async with contextlib.AsyncExitStack() as stack:
        state = stack.enter_context(tempfile.TemporaryDirectory())
        _, said = await stack.enter_async_context(running(sys.executable, __file__, "--engine", "--model", str(model)))
        url = f"http://127.0.0.1:{int(await said.readline())}"
        tokenizer = "" if options.no_tokenizer else f'tokenizer = "{model}"'
        fleet = Path(state) / "fleet.toml"
        fleet.write_text(FLEET.format(state=state, url=url, window=WINDOW, tokenizer=tokenizer))
        gateway, said = await stack.enter_async_context(running(sys.executable, "-m", "longproof", "serve", str(fleet)))
        while b"serving at" not in (line := await said.readline()):
            if not line:
                raise SystemExit("the gateway did not start")
        session = await stack.enter_async_context(
            aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0))
        )
        bench = Bench(session, line.decode().split()[-1].removesuffix("/v1"), gateway, quiet=options.json)
        if not options.json:
            print(HEADER)
            print("|---" * HEADER.count(" | ") + "|---|")
        number = itertools.count()
        for mib in sizes:
            text = library_text(mib << 20)
            for count in clients:
                if mib * count > options.most_mib:
                    continue
                for _ in range(options.rounds):
                    texts = [f"{next(number)} {time.time_ns()} {text}" for _ in range(count)]
                    await bench.burst("cold", [body(one) for one in texts])
                    await bench.burst("known", [body(one, "What does it do?") for one in texts])
                bench.row(mib, "cold")
                bench.row(mib, "known")
    if options.json:
        print(json.dumps(bench.rows, indent=1))


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", default="4,16,40", help="sizes of bodies")
    parser.add_argument("--clients", default="1,8,32", help="how many at once")
    parser.add_argument("--rounds", type=int, default=3, help="bursts of each row")
    parser.add_argument("--most-mib", type=int, default=640, help="skip rows with more than this in all")
    parser.add_argument("--model", type=Path, default=None, help="directory, tokenizer.json or GGUF")
    parser.add_argument("--no-tokenizer", action="store_true", help="the gateway has none; lengths are estimated")
    parser.add_argument("--json", action="store_true", help="rows as JSON on standard output")
    parser.add_argument("--engine", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    logging.getLogger("aiohttp").setLevel(logging.ERROR)
    asyncio.run(engine(options.model) if options.engine else measure(options))


if __name__ == "__main__":
    main()
