"""What the gateway's data path costs, beside a proxy of the same libraries that does nothing but pass on.

    python benchmarks/gateway_transport.py [--rounds 5] [--only small,stream,paced] [--json FILE]

Engines, load and whoever is measured are processes of their own; with two cores or more, the measured one has the last
core to itself. Both take turns (A B A B …). Figures are processor time of the whole process, background work included:
"least" is the best round, since a busy machine only ever adds; latencies mean something on a quiet machine alone.

    proxy           aiohttp's server and client on uvloop, nothing else
    gateway, bare   a route that passes through: no ledger, routing or metering (/v1/embeddings)
    gateway         generation, with ledger, routing, metering, metrics
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import orjson

from longproof.testing.ports import free_ports

HERE = Path(__file__).parent
CHAT, BARE = "/v1/chat/completions", "/v1/embeddings"
CHUNKS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One line of the table for each who is measured. `every_ms`: between two chunks of a stream."""

    name: str
    connections: int
    requests: int
    chunks: int = 0
    every_ms: int = 0


CASES = (
    Case(name="small", connections=32, requests=3_000),
    Case(name="stream", connections=32, requests=400, chunks=CHUNKS),
    Case(name="paced", connections=256, requests=256, chunks=CHUNKS, every_ms=20),
    Case(name="paced, one", connections=1, requests=3, chunks=CHUNKS, every_ms=20),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One round."""

    case: str
    who: str
    us_per_request: float
    p50_ms: float
    p99_ms: float
    transit_p50_ms: float | None
    transit_p99_ms: float | None
    first_transit_p99_ms: float | None


def processor_ns(pid: int) -> int:
    """Processor time of all threads of a process, as the kernel counts it."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            total += int((task / "schedstat").read_text().split()[0])
        except FileNotFoundError:  # it has just ended
            continue
    return total


@contextmanager
def started(command: Sequence[str], core: int | None, log: Path, **environment: str) -> Iterator[int]:
    """A process, on one core if there is a choice, until the end of the block; its id."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=output, cwd=HERE, env={**os.environ, **environment}, process_group=0
        )
    try:
        if core is not None:
            os.sched_setaffinity(process.pid, {core})
        yield process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_until_up(port: int, log: Path) -> None:
    """SystemExit after a minute."""
    asked = urllib.request.Request(
        f"http://127.0.0.1:{port}{CHAT}",
        data=b'{"model":"fake","messages":[{"role":"user","content":"hi"}],"max_tokens":1}',
        headers={"Content-Type": "application/json"},
    )
    end_s = time.monotonic() + 60
    while time.monotonic() < end_s:
        try:
            with urllib.request.urlopen(asked, timeout=5):
                return
        except OSError:
            time.sleep(0.2)
    raise SystemExit(f"{log} says why it does not serve:\n{log.read_text()[-2_000:]}")


def measure(case: Case, who: str, path: str, port: int, pid: int, core: int | None) -> Measured:
    """One round of one case."""
    numbers = (case.connections, case.requests, case.chunks, case.every_ms)
    command = [sys.executable, "-m", "transport.load", str(port), path, *map(str, numbers)]
    if core is not None:
        command = [sys.executable, "-c", _PINNED.format(core=core), *command]
    before = processor_ns(pid)
    done = subprocess.run(command, cwd=HERE, capture_output=True, check=True, timeout=300)
    spent = processor_ns(pid) - before
    found = orjson.loads(done.stdout)
    if found["bad"] or found["done"] != case.requests:
        raise SystemExit(f"{who}, {case.name}: not every answer was whole: {found}")
    return Measured(
        case=case.name,
        who=who,
        us_per_request=spent / case.requests / 1e3,
        **{name: found[name] for name in Measured.__slots__ if name.endswith("_ms")},
    )


_PINNED = "import os, sys; os.sched_setaffinity(0, {{{core}}}); os.execv(sys.argv[1], sys.argv[1:])"


def run(rounds: int, only: Sequence[str]) -> list[Measured]:
    """All cases, in turns."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    ours, others = (cores[-1], cores[0]) if len(cores) > 1 else (None, None)
    *engine_ports, proxy_port, gateway_port = free_ports(6)
    urls = ",".join(f"http://127.0.0.1:{port}" for port in engine_ports)
    gateway = [sys.executable, "-m", "longproof", "serve", "--port", str(gateway_port), "--engines", urls]
    gateway += ["--kv-capacity", "64M", "--context", "64M", "--prefill-rate", "200000"]
    found: list[Measured] = []
    with ExitStack() as running, tempfile.TemporaryDirectory() as folder:
        logs = Path(folder)
        engines = [sys.executable, "-m", "transport.engine", ",".join(map(str, engine_ports))]
        running.enter_context(started(engines, others, logs / "engines"))
        time.sleep(1)
        proxy = [sys.executable, "-m", "transport.proxy", str(proxy_port), urls]
        proxy_pid = running.enter_context(started(proxy, ours, logs / "proxy"))
        gateway_pid = running.enter_context(started(gateway, ours, logs / "gateway", XDG_STATE_HOME=folder))
        wait_until_up(proxy_port, logs / "proxy")
        wait_until_up(gateway_port, logs / "gateway")
        for case in CASES:
            if only and not any(case.name.startswith(name) for name in only):
                continue
            for _ in range(rounds):
                found.append(measure(case, "proxy", CHAT, proxy_port, proxy_pid, others))
                if case.name == "small":
                    found.append(measure(case, "gateway, bare", BARE, gateway_port, gateway_pid, others))
                found.append(measure(case, "gateway", CHAT, gateway_port, gateway_pid, others))
    return found


def table(found: Sequence[Measured]) -> Iterator[str]:
    """As Markdown. A chunk's cost is the request's without what a plain request costs."""
    yield "| case | who | CPU us/request, least (median) | ratio | us/chunk | p50 ms | transit p50/p99 ms | of first |"
    yield "|---|---|---|---|---|---|---|---|"
    small = {who: _least(found, "small", who) for who in ("proxy", "gateway")}
    for case, who in dict.fromkeys((one.case, one.who) for one in found):
        rows = [one for one in found if (one.case, one.who) == (case, who)]
        least = _least(found, case, who) or 0.0
        median = statistics.median(row.us_per_request for row in rows)
        bare = _least(found, case, "proxy")
        plain = small.get(who)
        chunk = "" if case == "small" or plain is None else f"{(least - plain) / CHUNKS:.1f}"
        yield (
            f"| {case} | {who} | {least:.0f} ({median:.0f}) | {least / bare if bare else 0:.2f} | {chunk} |"
            f" {_middle(rows, 'p50_ms')} | {_middle(rows, 'transit_p50_ms')}/{_middle(rows, 'transit_p99_ms')} |"
            f" {_middle(rows, 'first_transit_p99_ms')} |"
        )


def _least(found: Sequence[Measured], case: str, who: str) -> float | None:
    return min((one.us_per_request for one in found if (one.case, one.who) == (case, who)), default=None)


def _middle(rows: Sequence[Measured], name: str) -> str:
    values = [value for row in rows if (value := getattr(row, name)) is not None]
    return f"{statistics.median(values):.1f}" if values else ""


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="cases, by the beginnings of their names")
    parser.add_argument("--json", type=Path, help="where every round goes")
    given = parser.parse_args()
    found = run(given.rounds, [name for name in given.only.split(",") if name])
    print("\n".join(table(found)))
    if given.json is not None:
        given.json.write_bytes(orjson.dumps([asdict(one) for one in found], option=orjson.OPT_INDENT_2))


if __name__ == "__main__":
    main()
