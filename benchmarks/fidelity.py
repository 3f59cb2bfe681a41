"""How true a client's times are: its time to first token and its gaps, held against the server's own stamps.

    python benchmarks/fidelity.py [--quick] [--turns N] [--streams 64,256] [--paces spread,steps]

A server in a process of its own (`stamping_server.py`) streams chat completions and notes when it wrote each chunk. It
is asked by, in turns:

    longproof   `OpenAIEngine.send`, one process, one event loop
    guidellm    its own command line, in an environment of its own (made at the first run, see prompt_build.py)
    aiperf      the same
    floor       a bare asyncio socket that reads the clock and counts, and parses nothing

All keep so many streams open until so many requests are over. What is compared, request by request, by the id that the
server gave the answer or the one the tool gave the request:

    TTFT        |the tool's time to first token - the server's, from the request read whole to the first chunk written|:
                the client's error, the kernel's, and the server's own lateness in reading; the same for all
    first       the tool's stamp of the first token - the server's stamp of the same chunk
    ITL         |gap between two chunks as the tool reports it - the same gap as written|; guidellm reports none but a
                request's mean, so that one is in brackets and is no gap's error
    mean ITL    |a request's mean gap - the same as written|, which every tool reports

Requests of the first second are left out: all streams open at once in it. The pace is "spread" (each stream in its own
time) or "steps" (all streams in one sweep, as an engine's step writes them). A figure is the median of its turns. The
machine's own noise is in all of them, and "floor" shows how much; where it is allowed, all that is started here runs
before other processes (nice -15).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from prompt_build import environment, tokenizer_directory

from longproof.asking.loop_watch import LoopWatch
from longproof.asking.steady import steady
from longproof.clock import NS_PER_MS, SystemClock
from longproof.domain.request import ChatMessage, ChatPrompt, GenerationRequest
from longproof.engines.link import Link
from longproof.engines.model_files import resolve_model
from longproof.engines.openai import OpenAIEngine

HERE = Path(__file__).parent
LIMITS_MS = {64: 2.0, 256: 10.0}
ROUNDS = 3
COLUMNS = ("TTFT", "first", "ITL", "mean")
RUSH_NS = 1_000_000_000
PACES = {64: (30.0, 100), 256: (18.0, 60)}
"""Streams: tokens per second of each, tokens of an answer."""


@dataclass
class Reported:
    """What a tool said of one request, in ms; `first_ns` on the server's clock. `gaps_ms` where it reports them."""

    ttft_ms: float
    first_ns: int
    mean_gap_ms: float
    gaps_ms: list[float] | None


@dataclass
class Turn:
    """One run of one tool: its errors in ms, by column, and what else it says of itself."""

    errors: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in COLUMNS})
    requests: int = 0
    chunks_per_s: float = 0.0
    cpu_us: float | None = None
    lag_ms: float | None = None


class Server:
    """The stamping server, running."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "stamping_server.py")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.url = f"http://127.0.0.1:{int(self.process.stdout.readline())}"

    def pace(self, **settings: object) -> None:
        httpx.post(f"{self.url}/pace", json=settings)

    def log(self) -> dict:
        return httpx.get(f"{self.url}/log", timeout=60).json()

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


# -- clients of our own, each in a process of its own: fidelity.py --client NAME URL STREAMS REQUESTS TOKENS -----------


async def longproof(url: str, streams: int, requests: int, tokens: int) -> list[dict]:
    engine = OpenAIEngine(Link(url), model="stamped")
    prompt = ChatPrompt(messages=(ChatMessage(role="user", content="Tell a story."),))
    left, found = iter(range(requests)), []

    async def stream() -> None:
        for _ in left:
            timeline = await engine.send(GenerationRequest(prompt=prompt, max_tokens=tokens))
            found.append(
                {
                    "id": timeline.engine_request_id,
                    "start_ns": timeline.submitted_ns,
                    "at_ns": [chunk.at_ns for chunk in timeline.chunks],
                }
            )

    await asyncio.gather(*(stream() for _ in range(streams)))
    await engine.aclose()
    return found


class Bare(asyncio.Protocol):
    """Writes one request, stamps every read."""

    def __init__(self, tokens: int) -> None:
        body = json.dumps({"model": "stamped", "max_tokens": tokens, "messages": []}).encode()
        head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body)
        self.request = head + body
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.at_ns: list[int] = []
        self.id = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.start_ns = time.monotonic_ns()
        transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        now_ns = time.monotonic_ns()
        if not self.id:
            self.id = data.split(b'"id": "')[1].split(b'"')[0].decode()
        self.at_ns += [now_ns] * data.count(b'"content": " token"')
        if b"[DONE]" in data:
            self.over.set_result(None)
            self.transport.close()


async def floor(url: str, streams: int, requests: int, tokens: int) -> list[dict]:
    left, found = iter(range(requests)), []
    loop, port = asyncio.get_running_loop(), int(url.rpartition(":")[2])

    async def stream() -> None:
        for _ in left:
            _, bare = await loop.create_connection(lambda: Bare(tokens), "127.0.0.1", port)
            await bare.over
            found.append({"id": bare.id, "start_ns": bare.start_ns, "at_ns": bare.at_ns})

    await asyncio.gather(*(stream() for _ in range(streams)))
    return found


async def client(name: str, url: str, streams: int, requests: int, tokens: int) -> None:
    """Runs one of our own and prints what it saw as JSON."""
    watch = LoopWatch(SystemClock())
    watching = asyncio.create_task(watch.run())
    with steady():  # as the windows of a run are
        began_s = time.process_time()
        found = await {"longproof": longproof, "floor": floor}[name](url, streams, requests, tokens)
        cpu_s = time.process_time() - began_s
    watching.cancel()
    lags, checks = watch.take()
    late = sorted([lag.late_ns for lag in lags] + [0] * (checks - len(lags)))
    print(json.dumps({"requests": found, "cpu_s": cpu_s, "lag_ns": late[int(0.99 * len(late))]}))


# -- one turn of each tool ---------------------------------------------------------------------------------------------


def ours(name: str, server: Server, streams: int, requests: int, tokens: int, _scratch: Path) -> tuple[dict, dict]:
    """A client of this file: (what it reported by id, what it says of itself)."""
    arguments = [name, server.url, str(streams), str(requests), str(tokens)]
    done = subprocess.run(
        [sys.executable, __file__, "--client", *arguments], check=True, stdout=subprocess.PIPE, timeout=600
    )
    answer = json.loads(done.stdout)
    reported = {
        one["id"]: Reported(
            ttft_ms=(one["at_ns"][0] - one["start_ns"]) / NS_PER_MS,
            first_ns=one["at_ns"][0],
            mean_gap_ms=(one["at_ns"][-1] - one["at_ns"][0]) / (len(one["at_ns"]) - 1) / NS_PER_MS,
            gaps_ms=_gaps(one["at_ns"]),
        )
        for one in answer["requests"]
        if len(one["at_ns"]) == tokens
    }
    return reported, answer


def guidellm(server: Server, streams: int, requests: int, tokens: int, scratch: Path) -> tuple[dict, dict]:
    """GuideLLM 0.8.1 as its documentation says, over HTTP/1.1 (the server speaks nothing else)."""
    python = environment("guidellm")
    tokenizer, output = tokenizer_directory(python, resolve_model()), scratch / "guidellm.json"
    run_tool(
        [str(python.parent / "guidellm"), "run", "--disable-console"],
        ["--backend", f"kind=openai_http,target={server.url},model=stamped,http2=false"],
        ["--profile", f"kind=concurrent,streams={streams}"],
        ["--constraint", f"kind=max_requests,count={requests}"],
        ["--data", f"kind=synthetic_text,prompt_tokens=32,output_tokens={tokens}"],
        ["--tokenizer", f"kind=hf_auto,model={tokenizer}"],
        ["--output", f"kind=json,path={output}"],
    )
    shift_ns = server.log()["wall_minus_monotonic_ns"]
    found = json.loads(output.read_text())["benchmarks"][0]["requests"]["successful"]
    return {
        one["response_id"]: Reported(
            ttft_ms=one["time_to_first_token_ms"],
            first_ns=round(one["info"]["timings"]["first_token_iteration"] * 1e9) - shift_ns,
            mean_gap_ms=one["inter_token_latency_ms"],
            gaps_ms=None,
        )
        for one in found
        if one["output_tokens"] == tokens
    }, {}


def aiperf(server: Server, streams: int, requests: int, tokens: int, scratch: Path) -> tuple[dict, dict]:
    """AIPerf 0.13.0 as its documentation says; token counts from the server's usage, so that nothing is tokenized."""
    python = environment("aiperf")
    tokenizer = tokenizer_directory(environment("guidellm"), resolve_model())
    run_tool(
        [str(python.parent / "aiperf"), "profile", "-m", "stamped", "--url", server.url, "--ui", "none"],
        ["--endpoint-type", "chat", "--streaming", "--use-server-token-count", "--tokenizer", str(tokenizer)],
        ["--concurrency", str(streams), "--request-count", str(requests), "--isl", "32", "--osl", str(tokens)],
        ["--export-level", "records", "--output-artifact-dir", str(scratch / "aiperf")],
    )
    shift_ns = server.log()["wall_minus_monotonic_ns"]
    reported = {}
    for line in (scratch / "aiperf" / "profile_export.jsonl").read_text().splitlines():
        one = json.loads(line)
        if one.get("error") or one["metadata"]["benchmark_phase"] != "profiling":
            continue
        values = {name: metric["value"] for name, metric in one["metrics"].items()}
        if values["output_sequence_length"] == tokens:
            ttft_ms = values["time_to_first_token"]
            reported[one["metadata"]["x_request_id"]] = Reported(
                ttft_ms=ttft_ms,
                first_ns=one["metadata"]["request_start_ns"] + round(ttft_ms * NS_PER_MS) - shift_ns,
                mean_gap_ms=values["inter_token_latency"],
                gaps_ms=values["inter_chunk_latency"],
            )
    return reported, {}


def run_tool(*words: list[str]) -> None:
    """Runs a rival. Raises CalledProcessError with the end of what it said."""
    command = [word for part in words for word in part]
    done = subprocess.run(
        command,
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=900,
        cwd=tempfile.gettempdir(),
    )
    if done.returncode:
        raise subprocess.CalledProcessError(done.returncode, command[0], done.stdout[-2000:])


def _gaps(at_ns: list[int]) -> list[float]:
    return [(after - before) / NS_PER_MS for before, after in itertools.pairwise(at_ns)]


Tool = Callable[[Server, int, int, int, Path], tuple[dict, dict]]
TOOLS: dict[str, Tool] = {
    "floor": lambda *given: ours("floor", *given),
    "longproof": lambda *given: ours("longproof", *given),
    "guidellm": guidellm,
    "aiperf": aiperf,
}


def take_turn(server: Server, tool: Tool, streams: int, mode: str, seed: int, scratch: Path) -> Turn:
    """One run, and its reports held against the server's log."""
    rate, tokens = PACES.get(streams, (15.0, 60))
    server.pace(mode=mode, tokens_per_s=rate, seed=seed)
    reported, self_told = tool(server, streams, ROUNDS * streams, tokens, scratch)
    log = [entry for entry in server.log()["requests"] if len(entry["sent_ns"]) == tokens]
    turn = Turn()
    begun_ns = log[0]["read_ns"]
    for entry in log:
        said = reported.get(entry["id"]) or reported.get(entry["name"])
        if said is None or entry["read_ns"] - begun_ns < RUSH_NS:
            continue
        turn.requests += 1
        sent_ns, written = entry["sent_ns"], _gaps(entry["sent_ns"])
        turn.errors["TTFT"].append(abs(said.ttft_ms - (sent_ns[0] - entry["read_ns"]) / NS_PER_MS))
        turn.errors["first"].append((said.first_ns - sent_ns[0]) / NS_PER_MS)
        turn.errors["mean"].append(abs(said.mean_gap_ms - statistics.fmean(written)))
        if said.gaps_ms is not None and len(said.gaps_ms) == len(written):
            turn.errors["ITL"] += [abs(a - b) for a, b in zip(said.gaps_ms, written, strict=True)]
    chunks = sum(len(entry["sent_ns"]) for entry in log)
    turn.chunks_per_s = chunks / (max(entry["sent_ns"][-1] for entry in log) - begun_ns) * 1e9
    if self_told:
        turn.cpu_us = self_told["cpu_s"] / chunks * 1e6
        turn.lag_ms = self_told["lag_ns"] / NS_PER_MS
    return turn


# -- the table ---------------------------------------------------------------------------------------------------------


def quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def middle(turns: list[Turn], column: str, share: float) -> float | None:
    """The median over turns of one quantile; None where a tool does not report it."""
    found = [quantile(turn.errors[column], share) for turn in turns if turn.errors[column]]
    return statistics.median(found) if found else None


def row(name: str, turns: list[Turn]) -> str:
    def pair(column: str) -> str:
        both = middle(turns, column, 0.5), middle(turns, column, 0.99)
        return f"{'-':>7} {'-':>7}" if None in both else f"{both[0]:7.2f} {both[1]:7.2f}"

    cpu = [turn.cpu_us for turn in turns if turn.cpu_us is not None]
    lag = [turn.lag_ms for turn in turns if turn.lag_ms is not None]
    told = f"{statistics.median(cpu):7.0f} {statistics.median(lag):8.2f}" if cpu else f"{'-':>7} {'-':>8}"
    columns = "  ".join(pair(column) for column in COLUMNS)
    rate = statistics.median(turn.chunks_per_s for turn in turns)
    return f"  {name:<10}{sum(turn.requests for turn in turns):>6}  {rate:7.0f}  {columns}  {told}"


def compare(server: Server, tools: dict[str, Tool], sizes: list[int], modes: list[str], turns: int) -> bool:
    """Prints the tables. Whether longproof kept its limits in each."""
    kept = True
    names = "  ".join(f"{name + ' p50':>7} {'p99':>7}" for name in COLUMNS)
    for streams in sizes:
        for mode in modes:
            found: dict[str, list[Turn]] = {name: [] for name in tools}
            for turn in range(turns):
                for name, tool in tools.items():
                    with tempfile.TemporaryDirectory() as scratch:
                        try:
                            found[name].append(take_turn(server, tool, streams, mode, turn, Path(scratch)))
                        except (subprocess.SubprocessError, OSError, KeyError) as problem:
                            print(f"  {name:<10} left out: {problem} {getattr(problem, 'output', '')}", file=sys.stderr)
            rate, tokens = PACES.get(streams, (15.0, 60))
            print(f"{streams} streams, {mode}, {rate:g} tokens/s each, {tokens} tokens an answer; errors in ms")
            print(f"  {'tool':<10}{'asked':>6}  {'chunks/s':>7} {names}  {'µs/chunk':>7} {'lag p99':>8}")
            for name, runs in found.items():
                if runs:
                    print(row(name, runs), flush=True)
            worst = max(middle(found["longproof"], column, 0.99) or 0.0 for column in ("TTFT", "ITL"))
            limit = LIMITS_MS.get(streams)
            if limit is not None:
                within = worst < limit
                kept = kept and within
                print(f"  longproof's worst p99 {worst:.2f} ms, limit {limit:g} ms: {'kept' if within else 'BROKEN'}")
    return kept


def main() -> int:
    """0 when longproof kept its limits, else 1."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="longproof and the floor alone")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--streams", default="64,256")
    parser.add_argument("--paces", default="spread,steps")
    parser.add_argument("--client", nargs=5, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.client:
        name, url, *numbers = options.client
        asyncio.run(client(name, url, *map(int, numbers)))
        return 0
    with contextlib.suppress(OSError):
        os.setsid()
        Path("/proc/self/autogroup").write_text("-15")
        os.setpriority(os.PRIO_PROCESS, 0, -15)
    load, nice = os.getloadavg()[0], os.getpriority(os.PRIO_PROCESS, 0)
    print(f"{platform.platform()}, {os.cpu_count()} CPUs, load {load:.1f}, nice {nice}")
    chosen = ["floor", "longproof"] if options.quick else list(TOOLS)
    server = Server()
    try:
        sizes = [int(size) for size in options.streams.split(",")]
        modes = options.paces.split(",")
        kept = compare(server, {name: TOOLS[name] for name in chosen}, sizes, modes, options.turns)
    finally:
        server.close()
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
