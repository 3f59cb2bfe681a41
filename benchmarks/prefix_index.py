"""What the prefix index costs: bytes per known block, time per operation, and memory over ten million changes.

    python benchmarks/prefix_index.py                    # ten million stores and as many removals, about two minutes
    python benchmarks/prefix_index.py --changes 1000000  # shorter

Blocks have 16 tokens. `bytes` are resident memory of a process of its own per row, before and after filling, divided by
the blocks; what the index accounts for itself has to be at least that. Guessed contents pay for each run as well as for
each block, so the shorter what a prompt adds, the more a block of it costs; of told ones a row is an event. Times are
processor time. The churn is the one that leaks in other routers: unique long prompts stored and evicted for ever, some
of it told twice, some removals of what was never stored, a clear now and then. Its memory is shown at tenths of the
run.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import count

import psutil
from xxhash import xxh3_64_intdigest

from longproof.domain.kv_event import KvCleared, KvRemoved, KvStored
from longproof.policy.prefix import PrefixIndex

PROMPT_BLOCKS = 500
SIZES = (
    (100_000, 500),
    (600_000, 500),
    (1_000_000, 500),
    (2_000_000, 500),
    (200_000, 1),
    (200_000, 16),
    (600_000, 16),
    (200_000, 40),
)


def rss() -> int:
    """Resident bytes of this process."""
    return psutil.Process().memory_info().rss


def prompts(blocks: int, of: int = 1) -> tuple[int, ...]:
    """The names of a prompt's blocks, never seen before."""
    base = of << 20
    return tuple(xxh3_64_intdigest((base + at).to_bytes(8, "little")) for at in range(blocks))


def timed(work: Callable[[], object], operations: int) -> float:
    """Nanoseconds of this thread's processor time per operation."""
    start = time.thread_time_ns()
    work()
    return (time.thread_time_ns() - start) / operations


def weigh(kind: str, blocks: int, each: int) -> None:
    """One row of the first table: prompts, or events, of `each` blocks."""
    index = PrefixIndex(limit_bytes=1 << 40)
    index.add("r", capacity_blocks=None if kind == "told" else blocks)
    numbers = count(1)
    before = rss()
    start = time.thread_time_ns()
    for _ in range(blocks // each):
        names = prompts(each, next(numbers))
        if kind == "told":
            index.apply("r", KvStored(blocks=names))
        else:
            index.use("x", "r", names)
            index.unuse("x", kept=True)
    spent = time.thread_time_ns() - start
    measured = (rss() - before) / index.known_blocks("r")
    hashing = timed(lambda: [prompts(each, at) for at in range(100_000 // each)], 100_000)
    print(
        f"| {kind} | {index.known_blocks('r'):,} | {each:,} | {measured:.0f} |"
        f" {index.bytes / index.known_blocks('r'):.0f} |"
        f" {spent / blocks - hashing:.0f} |"
    )


def speeds() -> None:
    """The second table: what one request pays, among a million blocks that are known. Medians; `known` prompts are
    equal to those that were stored, but other objects."""
    print("\n| contents | operation | blocks | µs | ns per block |\n|---|---|---|---|---|")
    for kind in ("told", "guessed"):
        for blocks in (1, 64, 625, 6_250, 62_500):
            index = PrefixIndex()
            index.add("r", capacity_blocks=None if kind == "told" else 1_000_000)
            numbers = count(2)
            fill = prompts(1_000_000)
            for start in range(0, len(fill), 512):
                index.apply("r", KvStored(blocks=fill[start : start + 512]))
            spent: dict[str, list[float]] = {}
            for _ in range(15):
                request_pays(index, kind, blocks, numbers, spent)
            for name, times in spent.items():
                middle = statistics.median(times)
                print(f"| {kind} | {name} | {blocks:,} | {middle / 1e3:.1f} | {middle / blocks:.0f} |", flush=True)


def request_pays(
    index: PrefixIndex, kind: str, blocks: int, numbers: count[int], spent: dict[str, list[float]]
) -> None:
    """One prompt that nobody knows, and then the same again."""
    number = next(numbers)
    for known in ("cold", "known"):
        names = prompts(blocks, number)
        for name, operation in (
            ("match", lambda names=names: index.match("r", names)),
            ("match and use", lambda names=names: index.use("x", "r", names)),
            ("unuse", lambda: index.unuse("x", kept=True)),
        ):
            spent.setdefault(f"{name}, {known}", []).append(timed(operation, 1))
            if kind == "told" and name == "match and use" and known == "cold":
                for start in range(0, blocks, 512):
                    index.apply("r", KvStored(blocks=names[start : start + 512]))


def churn(changes: int, held: int) -> None:
    """Stores and removals for ever: `held` blocks stay, the rest comes and goes."""
    index = PrefixIndex()
    index.add("r")
    index.add("guessed", capacity_blocks=held)
    window: list[tuple[int, ...]] = []
    stored, limit = 0, held // PROMPT_BLOCKS
    print(f"\n{changes:,} blocks stored and removed, {held:,} held:")
    start, first = time.thread_time(), 0
    for turn in count(1):
        names = prompts(PROMPT_BLOCKS, turn)
        index.apply("r", KvStored(blocks=names))
        index.use(str(turn), "guessed", names)
        index.unuse(str(turn), kept=turn % 2 == 0)
        window.append(names)
        if turn % 7 == 0:
            index.apply("r", KvStored(blocks=names))  # told twice
        if len(window) > limit:
            gone = window.pop(0)
            index.apply("r", KvRemoved(blocks=gone))
            if turn % 5 == 0:
                index.apply("r", KvRemoved(blocks=gone))  # removed twice
        if turn % 4_001 == 0:
            index.apply("r", KvCleared())
            window.clear()
        stored += PROMPT_BLOCKS
        if stored % (changes // 10) < PROMPT_BLOCKS:
            now = rss()
            first = first or now
            print(
                f"  {stored:>11,} stored: {index.known_blocks('r'):>8,} + {index.known_blocks('guessed'):>8,} blocks"
                f" known, index says {index.bytes / 1e6:.1f} MB, process {now / 1e6:.1f} MB"
                f" ({(now - first) / 1e6:+.1f})"
            )
        if stored >= changes:
            break
    spent = time.thread_time() - start
    print(f"  {spent:.1f} s of processor time, {spent / stored * 1e9:.0f} ns per block named, stored, used and removed")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--changes", type=int, default=10_000_000)
    parser.add_argument("--held", type=int, default=200_000)
    parser.add_argument("--weigh", nargs=3, metavar=("KIND", "BLOCKS", "EACH"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.weigh:
        weigh(given.weigh[0], int(given.weigh[1]), int(given.weigh[2]))
        return
    print(
        "| contents | blocks | in prompts or events of | bytes per block | accounted | ns per block stored |\n"
        "|---|---|---|---|---|---|",
        flush=True,
    )
    for kind in ("told", "guessed"):
        for blocks, each in SIZES:
            subprocess.run([sys.executable, __file__, "--weigh", kind, str(blocks), str(each)], check=True)
    speeds()
    churn(given.changes, given.held)


if __name__ == "__main__":
    main()
