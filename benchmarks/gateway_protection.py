"""Short chats and a few giant prompts on a real vLLM with a small KV pool: straight to it, and through the gateway.

    python benchmarks/gateway_protection.py [--replicas 2] [--seconds 80] [--turns 2] [--plot FILE] [--json FILE]

In turns: the chats alone (idle), then chats and giants straight to vLLM (without), then through `longproof serve`
(with). The same chats leave at the same moments each time, whatever becomes of the others; their outputs are drawn with
a long tail, and the giants come in bursts that together are larger than the pool. Every prompt begins in its own way,
so nothing is cached. Each vLLM computes on one core.

The gateway promises a time between tokens (`[slo] itl`) and one per token of a whole answer (`[slo] tpot`). No engine
keeps the first while it prefills a giant beside the streams, so each giant's prefill runs alone: the chats' tokens keep
their pace, and chats that come meanwhile wait for their first. What that costs them is in the table (ttft): one engine
can protect one of the two. The second bounds how many streams run together; how many that is the gateway learns.
`--tpot auto` promises `--margin` (1.25) times what the first idle turn had at p99; `--slots` sets a number instead.
`--chunk` is vLLM's `--long-prefill-token-threshold`: what one prompt gets of a step while others are there.

With `--replicas 2` there are two vLLMs, and the second is the gateway's pool for the long (`[pools] long_pool`). Idle
and without it, requests alternate between the two in the order they come, as a plain proxy would send them. While a
giant has the one, all chats share the other, and have less of it than when idle: the promise is 1.6 times idle then,
so that few of them wait for their first token (answers are not all the time beside as many as may run).

Printed: preemptions by vLLM's own counter; time to first token, time per output token (a request's mean) and between
tokens of the chats, with 95 % intervals (order statistics; – where there are too few for an end); what became of the
giants; and a last line of figures.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import orjson
from protection_plot import PREEMPTIONS, USAGE, plot
from real_vllm import (
    BLOCK_TOKENS,
    Planned,
    Seen,
    ask,
    client,
    gateway,
    model_dir,
    prose,
    scrape,
    total,
    vllm,
)

from longproof.domain.measure import Unknown
from longproof.stats.quantile import lower_bound, sample_quantile, upper_bound

TARGET = 1.3
PROMISE = {1: 1.25, 2: 1.6}
SAMPLE_S = 0.5
DRAIN_S = 150.0
ENGINE = (USAGE, PREEMPTIONS, "vllm:num_requests_running")
OURS = (
    "longproof_oldest_wait_seconds",
    "longproof_waiting_requests",
    "longproof_kv_held_blocks",
    "longproof_replica_most_streams",
)
ARMS = ("idle", "without", "with")


@dataclass(slots=True)
class Turn:
    """One arm, once."""

    arm: str
    seen: list[Seen]
    preemptions: int
    oldest_wait_s: float
    samples: list[dict[str, float]] = field(default_factory=list[dict[str, float]])


def fleet(urls: Sequence[str], model: Path, tpot_ms: float | None, options: argparse.Namespace) -> str:
    """The gateway's configuration: what docs/how-to/serve.md says of long prompts among chats."""
    replicas = "".join(
        f"""
[[replica]]
name = "{pool}"
url = "{url}"
pool = "{pool}"
tokenizer = "{model}"
"""
        + (f"slots = {options.slots}\n" if options.slots else "")
        for pool, url in zip(("short", "long"), urls, strict=False)
    )
    promise = "" if tpot_ms is None else f'tpot = "{tpot_ms:.1f}ms"'
    pool = 'long_pool = "long"' if len(urls) > 1 else ""
    return f"""
{replicas}
[slo]
itl = "{options.itl}"
{promise}

[pools]
long_from = {options.giant_tokens // 3}
{pool}

[queue]
count_from = 64
age_bound = "{options.age_bound}"
overdue_share = {options.share}
"""


def chats(options: argparse.Namespace, turn: int, arm: str, *, seconds: float | None = None) -> list[Planned]:
    """The same for every arm, but for the words their prompts begin with."""
    until_s = options.seconds if seconds is None else seconds
    when, lengths, words = random.Random(turn), random.Random(turn + 100), random.Random(f"{arm}{turn}")
    found, at = list[Planned](), 0.0
    while (at := at + when.expovariate(options.rate)) < until_s:
        output = min(options.longest_output, max(16, int(lengths.lognormvariate(3.9, 0.7))))
        asked = {"role": "user", "content": prose(words, lengths.randint(15, 60))}
        found.append(Planned(kind="chat", at_s=at, messages=(asked,), output_tokens=output))
    return found


def giants(options: argparse.Namespace, turn: int, arm: str) -> list[Planned]:
    """Bursts, each larger than the pool."""
    lengths, words = random.Random(turn + 200), random.Random(f"giant {arm}{turn}")
    found = list[Planned]()
    for burst in range(options.bursts):
        for number in range(options.giants):
            tokens = int(options.giant_tokens * lengths.uniform(0.85, 1.15))
            asked = {"role": "user", "content": prose(words, tokens)}
            at = 4.0 + burst * options.seconds / options.bursts + 0.2 * number
            found.append(Planned(kind="giant", at_s=at, messages=(asked,), output_tokens=options.giant_output))
    return found


async def look(session: aiohttp.ClientSession, engines: Sequence[str], front: str | None) -> dict[str, float]:
    """All engines together, the usage of the fullest; and our own figures."""
    rows = await asyncio.gather(*(scrape(session, url, ENGINE.__contains__) for url in engines))
    found = {name: sum(total(row, name) for row in rows) for name in ENGINE}
    found[USAGE] = max(total(row, USAGE) for row in rows)
    if front is not None:
        ours = await scrape(session, front, OURS.__contains__)
        found |= {name: total(ours, name) for name in OURS}
    return found


async def one_turn(
    session: aiohttp.ClientSession, arm: str, engines: Sequence[str], front: str | None, planned: list[Planned]
) -> Turn:
    """Sends everything on time, waits until all is answered, and looks at both sides meanwhile. `front` None: straight
    to the engines, one after the other."""
    before = await look(session, engines, front)
    start_s, samples = time.monotonic(), list[dict[str, float]]()

    async def watch() -> None:
        while True:
            samples.append({"at_s": time.monotonic() - start_s} | await look(session, engines, front))
            await asyncio.sleep(SAMPLE_S)

    async def later(one: Planned, url: str) -> Seen:
        await asyncio.sleep(max(0.0, one.at_s - (time.monotonic() - start_s)))
        try:
            async with asyncio.timeout(planned[-1].at_s - one.at_s + DRAIN_S):
                return await ask(session, url, one, start_s)
        except TimeoutError:
            return Seen(one.kind, one.at_s, sent_s=one.at_s, ended_s=time.monotonic() - start_s, error="not answered")

    planned.sort(key=lambda one: one.at_s)
    watching = asyncio.create_task(watch())
    seen = await asyncio.gather(
        *(later(one, front or engines[place % len(engines)]) for place, one in enumerate(planned))
    )
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    after = await look(session, engines, front)
    waits = [row.get("longproof_oldest_wait_seconds", 0.0) for row in samples]
    return Turn(arm, list(seen), int(after[PREEMPTIONS] - before[PREEMPTIONS]), max(waits, default=0.0), samples)


async def measure(options: argparse.Namespace) -> list[Turn]:
    """All turns, on the same vLLMs and, from the first idle turn on, one gateway."""
    model, turns = model_dir(), list[Turn]()
    directory = Path(tempfile.mkdtemp(prefix="longproof-protection-"))
    arguments = ["--max-num-seqs", "32", "--max-num-batched-tokens", str(options.step)]
    if options.chunk:
        arguments += ["--long-prefill-token-threshold", str(options.chunk)]
    async with AsyncExitStack() as running:
        engines: list[str] = []
        for number in range(options.replicas):
            log = directory / f"vllm-{number}.log"
            engine = vllm(log, blocks=options.blocks, arguments=arguments, number=number)
            engines.append((await running.enter_async_context(engine)).url)
        session = await running.enter_async_context(client())
        for url in engines:
            await warm(session, url, options, requests=2)
        turns.append(await one_turn(session, "idle", engines, None, chats(options, 0, "idle")))
        tpot_ms = promised_ms(turns[0], options.tpot, options.margin or PROMISE[options.replicas])
        say(f"idle: {len(turns[0].seen)} requests; promised per token: {tpot_ms and round(tpot_ms, 1)} ms")
        configuration = fleet(engines, model, tpot_ms, options)
        front = (await running.enter_async_context(gateway(directory / "gateway.log", configuration))).url
        await warm(session, front, options, requests=4 * len(engines))  # it learns how fast they prefill, and stream
        await one_turn(session, "warm", engines, front, chats(options, -1, "warm", seconds=options.warm))
        for turn in range(options.turns):
            for arm in ARMS if turn % 2 == 0 else ("idle", "with", "without"):
                if turn == 0 and arm == "idle":
                    continue
                planned = chats(options, turn, arm) + (giants(options, turn, arm) if arm != "idle" else [])
                turns.append(await one_turn(session, arm, engines, front if arm == "with" else None, planned))
                say(f"{arm}: {len(planned)} requests, {turns[-1].preemptions} preemptions")
    return turns


async def warm(session: aiohttp.ClientSession, url: str, options: argparse.Namespace, *, requests: int) -> None:
    """What is slow the first time, done before."""
    words = random.Random(url)
    for _ in range(requests):
        asked = {"role": "user", "content": prose(words, options.step)}
        await ask(session, url, Planned(kind="warm", at_s=0, messages=(asked,), output_tokens=8), time.monotonic())


def promised_ms(idle: Turn, wanted: str, margin: float) -> float | None:
    """The time per token that the gateway promises: "none", so many ms, or "auto": so many times what idle chats
    have."""
    if wanted == "none":
        return None
    if wanted != "auto":
        return float(wanted.removesuffix("ms"))
    value = spread([s.tpot_s * 1e3 for s in idle.seen if s.done and len(s.at) > 1])["p99"][0]
    if value is None:
        raise SystemExit("too few chats were answered on idle engines to promise anything")
    return margin * value


# ── figures ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def figures(turns: list[Turn]) -> dict[str, dict[str, object]]:
    """By arm, all its turns together."""
    found: dict[str, dict[str, object]] = {}
    for arm in ARMS:
        mine = [turn for turn in turns if turn.arm == arm]
        short = [s for turn in mine for s in turn.seen if s.kind == "chat"]
        giant = [s for turn in mine for s in turn.seen if s.kind == "giant"]
        done = [s for s in short if s.done and len(s.at) > 1]
        gaps = [b - a for s in done for a, b in zip(s.at, s.at[1:], strict=False)]
        finished = [s for s in giant if s.done]
        found[arm] = {
            "preemptions": sum(turn.preemptions for turn in mine),
            "chats": len(short),
            "chats_done": len(done),
            "ttft_s": spread([s.ttft_s for s in done]),
            "tpot_ms": spread([s.tpot_s * 1e3 for s in done]),
            "itl_ms": spread([gap * 1e3 for gap in gaps]),
            "longest_gap_s": max(gaps, default=0.0),
            "longest_ttft_s": max((s.ttft_s for s in done), default=0.0),
            "giants": len(giant),
            "giants_done": len(finished),
            "giant_prompt_tokens": int(statistics.mean(s.prompt_tokens for s in finished)) if finished else 0,
            "giant_ttft_s": spread([s.ttft_s for s in finished]),
            "giants_longest_s": max((s.ended_s - s.sent_s for s in finished), default=0.0),
            "queued_longest_s": max((turn.oldest_wait_s for turn in mine), default=0.0),
            "most_streams": _median([r[OURS[3]] for turn in mine for r in turn.samples if r.get(OURS[3])]),
            "kv_peak": max((r.get(USAGE, 0.0) for turn in mine for r in turn.samples), default=0.0),
            "refused": sum(s.status in (429, 503) for s in short + giant),
            "failed": sum(not s.done and s.status not in (429, 503) for s in short + giant),
        }
    return found


def _median(values: list[float]) -> float | None:
    return statistics.median(values) if values else None


def spread(values: list[float]) -> dict[str, list[float | None]]:
    """p50 and p99: the value and the ends of its interval, None where there are too few."""
    found: dict[str, list[float | None]] = {}
    for name, q in (("p50", 0.5), ("p99", 0.99)):
        told = sample_quantile(values, q), lower_bound(values, q, 0.975), upper_bound(values, q, 0.975)
        found[name] = [None if isinstance(one, Unknown) else one for one in told]
    return found


def verdict(found: dict[str, dict[str, object]], *, replicas: int = 1) -> dict[str, object]:
    """What was to be shown, and whether it is. A burst that is larger than one pool may be smaller than two."""

    def p99(arm: str, name: str) -> float:
        value = found[arm][name]["p99"][0]  # type: ignore[index]
        return float("nan") if value is None else value

    idle, without, protected = (p99(arm, "tpot_ms") for arm in ARMS)
    with_ = found["with"]
    return {
        "preemptions": {arm: found[arm]["preemptions"] for arm in ARMS},
        "tpot_p99_ms": {"idle": idle, "without": without, "with": protected},
        "tpot_p99_over_idle": {"without": without / idle, "with": protected / idle},
        "ttft_p99_over_idle": {arm: p99(arm, "ttft_s") / p99("idle", "ttft_s") for arm in ("without", "with")},
        "most_streams": with_["most_streams"],
        "giants_done": {arm: f"{found[arm]['giants_done']}/{found[arm]['giants']}" for arm in ("without", "with")},
        "refused": {arm: found[arm]["refused"] for arm in ARMS},
        "holds": bool(
            (found["without"]["preemptions"] or replicas > 1)
            and not with_["preemptions"]
            and protected <= TARGET * idle
            and with_["giants_done"] == with_["giants"]
            and not with_["failed"]
            and not with_["refused"]
        ),
    }


def show(found: dict[str, dict[str, object]]) -> None:
    """The table."""
    rows: list[tuple[str, list[str]]] = [("", list(ARMS))]

    def row(label: str, one: str, form: str) -> None:
        rows.append((label, [format(found[arm][one], form) for arm in ARMS]))

    row("preemptions (vLLM)", "preemptions", "d")
    row("chats sent", "chats", "d")
    row("chats answered", "chats_done", "d")
    for name, unit, digits in (("ttft_s", "s", 2), ("tpot_ms", "ms", 1), ("itl_ms", "ms", 0)):
        for q in ("p50", "p99"):
            cells = [_cell(found[arm][name][q], digits) for arm in ARMS]  # type: ignore[index]
            rows.append((f"chats: {name.split('_')[0]} {q}, {unit}", cells))
    row("chats: longest gap, s", "longest_gap_s", ".2f")
    row("giants sent", "giants", "d")
    row("giants answered", "giants_done", "d")
    row("giants: mean input tokens", "giant_prompt_tokens", "d")
    rows.append(("giants: ttft p50, s", [_cell(found[arm]["giant_ttft_s"]["p50"], 1) for arm in ARMS]))  # type: ignore[index]
    row("giants: longest, s", "giants_longest_s", ".1f")
    row("longest wait in the queue, s", "queued_longest_s", ".1f")
    rows.append(("streams allowed together, median", [f"{found[arm]['most_streams'] or '–'}" for arm in ARMS]))
    row("KV usage at most", "kv_peak", ".0%")
    row("refused (429, 503)", "refused", "d")
    row("failed", "failed", "d")
    width = max(len(label) for label, _ in rows)
    for label, cells in rows:
        print(f"{label:<{width}}  " + "  ".join(f"{cell:>24}" for cell in cells))


def _cell(value: list[float | None], digits: int) -> str:
    middle, low, high = value
    if middle is None:
        return "–"
    low_end, high_end = ("–" if end is None else f"{end:.{digits}f}" for end in (low, high))
    return f"{middle:.{digits}f} [{low_end}, {high_end}]"


def say(text: str) -> None:
    """Progress, on stderr."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=80.0, help="during which chats come, each turn")
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--rate", type=float, default=1.2, help="chats per second")
    parser.add_argument("--longest-output", type=int, default=240)
    parser.add_argument("--blocks", type=int, default=320, help=f"KV blocks of {BLOCK_TOKENS} tokens")
    parser.add_argument("--step", type=int, default=512, help="vLLM's --max-num-batched-tokens")
    parser.add_argument("--chunk", type=int, default=128, help="vLLM's --long-prefill-token-threshold; 0: none")
    parser.add_argument("--itl", default="100ms", help="what the gateway promises between tokens")
    parser.add_argument("--tpot", default="auto", help='what it promises per token of an answer: "auto", ms or "none"')
    parser.add_argument("--margin", type=float, help='of "auto", over what idle chats have')
    parser.add_argument("--slots", type=int, help="streams that the gateway lets run together on a replica")
    parser.add_argument("--warm", type=float, default=15.0, help="seconds of chats before, from which it learns")
    parser.add_argument("--replicas", type=int, choices=(1, 2), default=1, help="2: short and long have one each")
    parser.add_argument("--share", type=float, default=0.5, help="of the time that giants may take from chats")
    parser.add_argument("--giants", type=int, default=4, help="in each burst")
    parser.add_argument("--bursts", type=int, default=1)
    parser.add_argument("--giant-tokens", type=int, default=3_000)
    parser.add_argument("--giant-output", type=int, default=24)
    parser.add_argument("--age-bound", default="8s")
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--json", type=Path, dest="json_file")
    options = parser.parse_args()
    turns = asyncio.run(measure(options))
    found = figures(turns)
    show(found)
    if options.plot:
        plot(turns, found, options.plot, replicas=options.replicas, target=TARGET)
    said = verdict(found, replicas=options.replicas)
    if options.json_file:
        rows = [
            {
                "arm": turn.arm,
                "preemptions": turn.preemptions,
                "samples": turn.samples,
                "requests": [
                    {"kind": s.kind, "sent_s": s.sent_s, "ended_s": s.ended_s, "status": s.status, "at_s": s.at}
                    for s in turn.seen
                ],
            }
            for turn in turns
        ]
        told = {"options": {k: str(v) for k, v in vars(options).items()}, "figures": found, "verdict": said}
        options.json_file.write_bytes(orjson.dumps({**told, "turns": rows}))
    print(f"load {os.getloadavg()[0]:.1f}; {json.dumps(said)}")


if __name__ == "__main__":
    main()
