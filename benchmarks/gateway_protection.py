"""Short chats and a few giant prompts on a real vLLM with a small KV pool: straight to it, and through the gateway.

    python benchmarks/gateway_protection.py [--seconds 80] [--turns 2] [--plot FILE] [--json FILE]

In turns: the chats alone (idle), then chats and giants straight to vLLM (without), then through `longproof serve`
(with). The same chats leave at the same moments each time, whatever becomes of the others; their outputs are drawn with
a long tail, and the giants come in bursts that together are larger than the pool. Every prompt begins in its own way,
so nothing is cached. vLLM computes on one core.

The gateway promises a time between tokens (`[slo] itl`). No engine keeps it while it prefills a giant beside the
streams, so each giant's prefill runs alone: the chats' tokens keep their pace, and chats that come meanwhile wait for
their first. What that costs them is in the table (ttft): one engine can protect one of the two. `--chunk` is vLLM's
`--long-prefill-token-threshold`: what one prompt gets of a step while others are there.

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
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import orjson
from real_vllm import (
    BLOCK_TOKENS,
    Planned,
    Seen,
    ask,
    client,
    gateway,
    prose,
    run_script,
    scrape,
    total,
    vllm,
)

from longproof.domain.measure import Unknown
from longproof.stats.quantile import lower_bound, sample_quantile, upper_bound

TARGET = 1.3
SAMPLE_S = 0.5
DRAIN_S = 150.0
ENGINE = ("vllm:kv_cache_usage_perc", "vllm:num_preemptions_total", "vllm:num_requests_running")
OURS = ("longproof_oldest_wait_seconds", "longproof_waiting_requests", "longproof_kv_held_blocks")
ARMS = ("idle", "without", "with")


@dataclass(slots=True)
class Turn:
    """One arm, once."""

    arm: str
    seen: list[Seen]
    preemptions: int
    oldest_wait_s: float
    samples: list[dict[str, float]] = field(default_factory=list[dict[str, float]])


def fleet(url: str, model: Path, options: argparse.Namespace) -> str:
    """The gateway's configuration: what docs/how-to/serve.md says of one replica for short and long."""
    return f"""
[[replica]]
name = "vllm"
url = "{url}"
tokenizer = "{model}"
slots = {options.slots}

[slo]
itl = "{options.itl}"

[pools]
long_from = {options.giant_tokens // 3}

[queue]
count_from = 64
age_bound = "{options.age_bound}"
overdue_share = {options.share}
"""


def chats(options: argparse.Namespace, turn: int, arm: str) -> list[Planned]:
    """The same for every arm, but for the words their prompts begin with."""
    when, lengths, words = random.Random(turn), random.Random(turn + 100), random.Random(f"{arm}{turn}")
    found, at = list[Planned](), 0.0
    while (at := at + when.expovariate(options.rate)) < options.seconds:
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


async def one_turn(session: aiohttp.ClientSession, arm: str, url: str, engine_url: str, planned: list[Planned]) -> Turn:
    """Sends everything on time, waits until all is answered, and looks at both sides meanwhile."""
    before = await scrape(session, engine_url, ENGINE.__contains__)
    start_s, samples = time.monotonic(), list[dict[str, float]]()

    async def look() -> None:
        while True:
            row = await scrape(session, engine_url, ENGINE.__contains__)
            if url != engine_url:
                row |= await scrape(session, url, OURS.__contains__)
            samples.append({"at_s": time.monotonic() - start_s} | {k.split("{")[0]: 0.0 for k in row})
            for name in {key.split("{")[0] for key in row}:
                samples[-1][name] = total(row, name)
            await asyncio.sleep(SAMPLE_S)

    async def later(one: Planned) -> Seen:
        await asyncio.sleep(max(0.0, one.at_s - (time.monotonic() - start_s)))
        try:
            async with asyncio.timeout(planned[-1].at_s - one.at_s + DRAIN_S):
                return await ask(session, url, one, start_s)
        except TimeoutError:
            return Seen(one.kind, one.at_s, sent_s=one.at_s, ended_s=time.monotonic() - start_s, error="not answered")

    planned.sort(key=lambda one: one.at_s)
    looking = asyncio.create_task(look())
    seen = await asyncio.gather(*(later(one) for one in planned))
    looking.cancel()
    await asyncio.gather(looking, return_exceptions=True)
    after = await scrape(session, engine_url, ENGINE.__contains__)
    name = "vllm:num_preemptions_total"
    waits = [row.get("longproof_oldest_wait_seconds", 0.0) for row in samples]
    return Turn(arm, list(seen), int(total(after, name) - total(before, name)), max(waits, default=0.0), samples)


async def measure(options: argparse.Namespace) -> list[Turn]:
    """All turns, on one vLLM and one gateway."""
    model, turns = run_script("export_smollm2.py"), list[Turn]()
    directory = Path(tempfile.mkdtemp(prefix="longproof-protection-"))
    arguments = ["--max-num-seqs", "32", "--max-num-batched-tokens", str(options.step)]
    if options.chunk:
        arguments += ["--long-prefill-token-threshold", str(options.chunk)]
    async with (
        vllm(directory / "vllm.log", blocks=options.blocks, arguments=arguments) as engine,
        gateway(directory / "gateway.log", fleet(engine.url, model, options)) as front,
        client() as session,
    ):
        words = random.Random(options.giant_tokens)
        for _ in range(6):  # what is slow the first time; and how fast vLLM prefills, for the gateway
            asked = {"role": "user", "content": prose(words, options.step)}
            warm = Planned(kind="warm", at_s=0, messages=(asked,), output_tokens=8)
            await ask(session, front.url, warm, time.monotonic())
        for turn in range(options.turns):
            for arm in ARMS if turn % 2 == 0 else ("idle", "with", "without"):
                planned = chats(options, turn, arm) + (giants(options, turn, arm) if arm != "idle" else [])
                url = front.url if arm == "with" else engine.url
                turns.append(await one_turn(session, arm, url, engine.url, planned))
                say(f"{arm}: {len(planned)} requests, {turns[-1].preemptions} preemptions")
    return turns


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
            "kv_peak": max((r.get(ENGINE[0], 0.0) for turn in mine for r in turn.samples), default=0.0),
            "refused": sum(s.status in (429, 503) for s in short + giant),
            "failed": sum(not s.done and s.status not in (429, 503) for s in short + giant),
        }
    return found


def spread(values: list[float]) -> dict[str, list[float | None]]:
    """p50 and p99: the value and the ends of its interval, None where there are too few."""
    found: dict[str, list[float | None]] = {}
    for name, q in (("p50", 0.5), ("p99", 0.99)):
        told = sample_quantile(values, q), lower_bound(values, q, 0.975), upper_bound(values, q, 0.975)
        found[name] = [None if isinstance(one, Unknown) else one for one in told]
    return found


def verdict(found: dict[str, dict[str, object]]) -> dict[str, object]:
    """What was to be shown, and whether it is."""

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
        "giants_done": {arm: f"{found[arm]['giants_done']}/{found[arm]['giants']}" for arm in ("without", "with")},
        "refused": {arm: found[arm]["refused"] for arm in ARMS},
        "holds": bool(
            found["without"]["preemptions"]
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


def plot(turns: list[Turn], found: dict[str, dict[str, object]], options: argparse.Namespace) -> None:
    """One column without the gateway, one with: time per token and to the first of each chat, KV usage, giants."""
    from matplotlib.figure import Figure

    idle = found["idle"]["tpot_ms"]["p99"][0]  # type: ignore[index]
    shown = {arm: next(turn for turn in turns if turn.arm == arm) for arm in ("without", "with")}
    end = max(s.ended_s for turn in shown.values() for s in turn.seen)
    figure = Figure(figsize=(9.2, 6.8), layout="constrained")
    axes = figure.subplots(4, 2, sharex=True, sharey="row", height_ratios=(3, 2, 2, 1.6))
    for column, (arm, turn) in enumerate(shown.items()):
        pace, wait, usage, rows = (row[column] for row in axes)
        done = [s for s in turn.seen if s.kind == "chat" and s.done and len(s.at) > 1]
        pace.scatter([s.at[0] for s in done], [s.tpot_s * 1e3 for s in done], s=12, color="#1f6fb4", linewidths=0)
        wait.scatter([s.sent_s for s in done], [s.ttft_s for s in done], s=12, color="#1f6fb4", linewidths=0)
        wait.set_ylim(bottom=0)
        pace.axhline(TARGET * idle, color="#a33", linewidth=1, linestyle="--")
        pace.set_yscale("log")
        every = found[arm]
        pace.set_title(f"{arm} the gateway: {every['preemptions']} preemptions in all turns", fontsize=10)
        usage.plot([r["at_s"] for r in turn.samples], [100 * r[ENGINE[0]] for r in turn.samples], color="#1f6fb4")
        moves = [b["at_s"] for a, b in zip(turn.samples, turn.samples[1:], strict=False) if b[ENGINE[1]] > a[ENGINE[1]]]
        usage.scatter(moves, [104] * len(moves), marker="v", s=16, color="#a33", clip_on=False, linewidths=0)
        usage.set_ylim(0, 110)
        for place, one in enumerate(s for s in turn.seen if s.kind == "giant"):
            first = one.at[0] if one.at else one.ended_s
            rows.barh(place, first - one.sent_s, left=one.sent_s, color="#e0a64a", height=0.7)
            rows.barh(place, one.ended_s - first, left=first, color="#7a5195", height=0.7)
        rows.set_xlabel("seconds")
        rows.set_xlim(0, end)
        rows.set_yticks([])
        for ax in (pace, wait, usage, rows):
            ax.spines[["top", "right"]].set_visible(False)
            ax.grid(axis="y", color="#ddd", linewidth=0.6)
            ax.set_axisbelow(True)
    axes[0][0].set_ylabel("chats: ms per\noutput token")
    axes[0][0].annotate(
        f"{TARGET} × p99 of idle", (end, TARGET * idle), ha="right", va="bottom", fontsize=8, color="#a33"
    )
    axes[1][0].set_ylabel("chats: s to the\nfirst token")
    axes[2][0].set_ylabel("vLLM's KV pool, %\n▾ preemption")
    axes[3][0].set_ylabel("giants\n(orange: to the\nfirst token)")
    figure.savefig(options.plot, dpi=150, metadata={"Date": None} if str(options.plot).endswith(".svg") else None)


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
    parser.add_argument("--slots", type=int, default=6, help="streams that the gateway lets run together")
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
        plot(turns, found, options)
    said = verdict(found)
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
