"""The gateway's ledger against vLLM's own KV usage, over minutes of mixed load.

    python benchmarks/gateway_drift.py [--minutes 10] [--rate 0.8] [--keep DIRECTORY] [--json FILE]

Short chats, chats that share a long system prompt, conversations turn by turn, long prompts, plain answers, and clients
that leave (before the first token and after some) go through `longproof serve` to one vLLM. Ten times a second
`vllm:kv_cache_usage_perc` times its usable blocks is read, and `longproof_kv_used_blocks` (of what our requests hold,
the part that is filled by now). Printed: how the difference, ledger less engine, is distributed per active request, for
a moment every half second, with and without a prefill. The target: within two blocks per active request.

Which figure of vLLM tells of which moment (0.32, read in v1/core/sched/scheduler.py and v1/engine/core.py): a step's
blocks are taken when it is scheduled, chunk by chunk of a prompt (of the whole it is only asked whether it would fit);
usage is taken when the step has ended, after what ended with it was freed. Without asynchronous scheduling, and on CPU
there is none, the blocks of the step at hand are therefore in use before any figure shows them, for as long as the step
takes. Each moment is compared with the last figure, and ("about the step") with what lies between the last figure and
the next one: the pool at that moment does.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import tempfile
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import aiohttp
import orjson
from real_vllm import BLOCK_TOKENS, Planned, Seen, ask, client, gateway, model_dir, prose, scrape, total, vllm

SAMPLE_S = 0.5
LOOK_S = 0.1
TARGET_BLOCKS = 2.0
THEIRS = frozenset(
    {
        "vllm:kv_cache_usage_perc",
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
        "vllm:iteration_tokens_total_count",
    }
)
OURS = frozenset(
    {
        "longproof_kv_used_blocks",
        "longproof_kv_held_blocks",
        "longproof_replica_prefilling",
        "longproof_replica_decoding",
        "longproof_running_requests",
    }
)


def fleet(url: str, model: Path, decisions: Path) -> str:
    """One replica whose prompts are counted here, short ones too."""
    return f"""
[gateway]
decision_log = "{decisions}"

[[replica]]
name = "vllm"
url = "{url}"
tokenizer = "{model}"

[pools]
long_from = 1500

[queue]
count_from = 64
"""


class Load:
    """Everything that goes on, until `until_s`."""

    def __init__(self, session: aiohttp.ClientSession, url: str, options: argparse.Namespace) -> None:
        self._session, self._url, self._options = session, url, options
        self._draw = random.Random(options.seed)
        self.start_s = time.monotonic()
        self.until_s = options.minutes * 60
        self.seen: list[Seen] = []
        self._systems = [prose(self._draw, 500) for _ in range(3)]
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Arrivals at random, conversations beside them; returns when all have ended."""
        talks = [asyncio.create_task(self._converse(number)) for number in range(self._options.conversations)]
        while (now_s := time.monotonic() - self.start_s) < self.until_s:
            task = asyncio.create_task(self._send(self._planned(now_s)))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            await asyncio.sleep(self._draw.expovariate(self._options.rate))
        await asyncio.gather(*talks, *self._tasks)

    def _planned(self, now_s: float) -> Planned:
        draw = self._draw
        kind = draw.choices(
            ("chat", "shared", "long", "plain", "leaves", "gone"), weights=(0.35, 0.25, 0.1, 0.08, 0.16, 0.06)
        )[0]
        messages = ({"role": "user", "content": prose(draw, draw.randint(10, 200))},)
        if kind == "shared":
            messages = ({"role": "system", "content": draw.choice(self._systems)}, *messages)
        elif kind == "long" or (kind == "gone" and draw.random() < 0.5):
            messages = ({"role": "user", "content": prose(draw, draw.randint(1_200, 2_600))},)
        output = min(320, max(8, int(draw.lognormvariate(3.8, 0.8))))
        return Planned(
            kind=kind,
            at_s=now_s,
            messages=messages,
            output_tokens=output,
            leave_after=draw.randint(1, output) if kind == "leaves" else None,
            leave_s=draw.uniform(0.05, 1.0) if kind == "gone" else None,
            plain=kind == "plain",
        )

    async def _send(self, planned: Planned) -> Seen:
        seen = await ask(self._session, self._url, planned, self.start_s)
        self.seen.append(seen)
        return seen

    async def _converse(self, number: int) -> None:
        """Turns, each with all that was said before."""
        draw = random.Random(f"{self._options.seed} {number}")
        while time.monotonic() - self.start_s < self.until_s:
            said: tuple[Mapping[str, str], ...] = ()
            for _ in range(draw.randint(2, 6)):
                said = (*said, {"role": "user", "content": prose(draw, draw.randint(20, 120))})
                now_s = time.monotonic() - self.start_s
                if now_s >= self.until_s:
                    return
                planned = Planned(kind="turn", at_s=now_s, messages=said, output_tokens=draw.randint(16, 120))
                seen = await self._send(planned)
                said = (*said, {"role": "assistant", "content": seen.text})
                await asyncio.sleep(draw.uniform(0.2, 3.0))


async def measure(options: argparse.Namespace) -> tuple[list[dict[str, float]], list[Seen]]:
    """The moments, and what became of the requests."""
    model = model_dir()
    directory = options.keep or Path(tempfile.mkdtemp(prefix="longproof-drift-"))
    directory.mkdir(parents=True, exist_ok=True)
    arguments = ("--max-num-seqs", "32", "--max-num-batched-tokens", str(options.step))
    ours, theirs = list[dict[str, float]](), list[dict[str, float]]()
    async with (
        vllm(directory / "vllm.log", blocks=options.blocks, arguments=arguments) as engine,
        gateway(directory / "gateway.log", fleet(engine.url, model, directory / "decisions.jsonl")) as front,
        client() as session,
        client() as looking,
    ):
        load = Load(session, front.url, options)

        async def look(url: str, wanted: frozenset[str], rows: list[dict[str, float]]) -> None:
            while True:
                asked_s = time.monotonic()
                row = await scrape(looking, url, wanted.__contains__)
                rows.append({"at_s": (asked_s + time.monotonic()) / 2 - load.start_s} | row)
                await asyncio.sleep(asked_s + LOOK_S - time.monotonic())

        watching = [
            asyncio.create_task(look(front.url, OURS, ours)),
            asyncio.create_task(look(engine.url, THEIRS, theirs)),
        ]
        await load.run()
        await asyncio.sleep(3 * SAMPLE_S)
        for task in watching:
            task.cancel()
        await asyncio.gather(*watching, return_exceptions=True)
    if options.keep:
        (directory / "looks.json").write_bytes(orjson.dumps({"ours": ours, "theirs": theirs, "start_s": load.start_s}))
    return moments(ours, theirs, options.blocks, options.lag), load.seen


def moments(
    ours: Sequence[Mapping[str, float]], theirs: Sequence[Mapping[str, float]], blocks: int, lag_s: float
) -> list[dict[str, float]]:
    """Every half second a figure of the ledger, with vLLM's last figure before it (`engine`) and its next one (`next`,
    the same where none is published within `lag_s`). The null block is none of the usable ones, nor in use."""
    found, due_s = list[dict[str, float]](), float("-inf")
    for mine in ours:
        at_s = mine["at_s"]
        place = bisect_right(theirs, at_s, key=lambda row: row["at_s"]) - 1
        if at_s < due_s or place < 0:
            continue
        due_s, before = at_s + SAMPLE_S, theirs[place]
        later = (row for row in theirs[place + 1 :] if any(row[key] != before[key] for key in before if key != "at_s"))
        after = next(later, before)
        if after["at_s"] - at_s > lag_s:
            after = before
        found.append(joined(mine, before, blocks, at_s) | {"next": _in_use(after, blocks)})
    return found


def joined(ours: Mapping[str, float], theirs: Mapping[str, float], blocks: int, at_s: float) -> dict[str, float]:
    """One moment."""
    return {
        "at_s": at_s,
        "ledger": _kv(ours, "longproof_kv_used_blocks"),
        "held": _kv(ours, "longproof_kv_held_blocks"),
        "engine": _in_use(theirs, blocks),
        "active": total(ours, "longproof_running_requests"),
        "prefilling": total(ours, "longproof_replica_prefilling"),
        "engine_active": total(theirs, "vllm:num_requests_running"),
    }


def _in_use(theirs: Mapping[str, float], blocks: int) -> float:
    return total(theirs, "vllm:kv_cache_usage_perc") * (blocks - 1)


def _kv(samples: Mapping[str, float], name: str) -> float:
    return sum(value for key, value in samples.items() if key.split("{")[0] == name and 'stage="kv"' in key)


def apart(row: Mapping[str, float], *, in_step: bool) -> float:
    """Ledger less engine, in blocks per active request; `in_step`: from vLLM's figures before and after, between which
    the step at hand is."""
    low, high = row["engine"], row["engine"]
    if in_step:
        low, high = min(low, row["next"]), max(high, row["next"])
    return (row["ledger"] - min(max(row["ledger"], low), high)) / row["active"]


def quantile(values: list[float], share: float) -> float:
    """The smallest that at least this share does not exceed; nan of none."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else float("nan")


def report(samples: list[dict[str, float]], seen: list[Seen]) -> dict[str, object]:
    """Prints the table; the figures of the last line."""
    kinds = Counter(one.kind for one in seen)
    print(f"{len(samples)} samples, {len(seen)} requests: {', '.join(f'{k} {n}' for k, n in sorted(kinds.items()))}")
    failed = [one for one in seen if not one.done and not one.left]
    active = [row for row in samples if row["active"] > 0]
    idle = [row for row in samples if row["active"] == 0 and row["engine_active"] == 0]
    parts = {
        "all": active,
        "no prefill": [row for row in active if not row["prefilling"]],
        "in prefill": [row for row in active if row["prefilling"]],
    }
    columns = "".join(f"{name:>8}" for name in ("p1", "p5", "p50", "p95", "p99"))
    print(f"{'ledger - engine, blocks per active request':<44}{'n':>6}{columns}{'within':>9}")
    told: dict[str, object] = {}
    for against, in_step in (("last figure", False), ("figures about the step", True)):
        for name, rows in parts.items():
            far = [apart(row, in_step=in_step) for row in rows]
            within = sum(abs(one) <= TARGET_BLOCKS for one in far) / len(far) if far else float("nan")
            cells = "".join(f"{quantile(far, q):>8.2f}" for q in (0.01, 0.05, 0.5, 0.95, 0.99))
            print(f"{f'{against}, {name}':<44}{len(rows):>6}{cells}{within:>9.1%}")
            told[f"{against}, {name}"] = {"n": len(rows), "within": within} | {
                label: quantile(far, q) for label, q in (("p1", 0.01), ("p50", 0.5), ("p99", 0.99))
            }
    mean = sum(row["ledger"] - row["engine"] for row in active) / max(1, len(active))
    print(f"mean difference {mean:+.2f} blocks of {sum(r['engine'] for r in active) / max(1, len(active)):.1f} in use")
    most = [max((row[name] for row in idle), default=0.0) for name in ("ledger", "engine")]
    print(f"idle ({len(idle)} samples): ledger at most {most[0]:.0f}, engine {most[1]:.0f}")
    print("the worst:")
    for row in sorted(active, key=lambda row: -abs(apart(row, in_step=True)))[:8]:
        print("  " + "  ".join(f"{key} {value:.1f}" for key, value in row.items()))
    ends = samples[-1]
    told |= {"failed": len(failed), "left_in_ledger": ends["ledger"], "left_in_engine": round(ends["engine"], 1)}
    for one in failed[:5]:
        print(f"failed: {one.kind} {one.status} {one.error}")
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--rate", type=float, default=0.8, help="requests per second, conversations aside")
    parser.add_argument("--conversations", type=int, default=3)
    parser.add_argument("--blocks", type=int, default=480, help=f"KV blocks of {BLOCK_TOKENS} tokens")
    parser.add_argument("--step", type=int, default=128, help="vLLM's --max-num-batched-tokens")
    parser.add_argument("--lag", type=float, default=2.0, help="seconds that a step of vLLM may take")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="a directory for logs, decisions and all that was looked at")
    parser.add_argument("--json", type=Path, dest="json_file")
    options = parser.parse_args()
    samples, seen = asyncio.run(measure(options))
    told = report(samples, seen)
    if options.json_file:
        options.json_file.write_bytes(orjson.dumps({"verdict": told, "moments": samples}))
    print(f"load {os.getloadavg()[0]:.1f}; {json.dumps(told)}")


if __name__ == "__main__":
    main()
