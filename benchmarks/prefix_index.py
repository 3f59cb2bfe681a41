"""What the prefix index costs: bytes per known block, time per operation, and memory over ten million changes.

    python benchmarks/prefix_index.py                    # ten million stores and as many removals, about two minutes
    python benchmarks/prefix_index.py --changes 1000000  # shorter

Blocks have 16 tokens. `bytes` are resident memory of a process of its own per row, before and after filling, divided by
the blocks; the index accounts for itself with `bytes_per_block`, which has to be at least that. The churn is the one
that leaks in other routers: unique long prompts stored and evicted for ever, some of it told twice, some removals of
what was never stored, a clear now and then. Its memory is shown at tenths of the run.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path

import psutil
from xxhash import xxh3_64_intdigest

from longproof.domain.kv_event import KvCleared, KvRemoved, KvStored
from longproof.policy.prefix import PrefixIndex

PROMPT_BLOCKS = 500


def rss() -> int:
    """Resident bytes of this process."""
    return psutil.Process().memory_info().rss


def prompts(blocks: int, of: int = 1) -> tuple[int, ...]:
    """The names of a prompt's blocks, never seen before."""
    base = of << 20
    return tuple(xxh3_64_intdigest((base + at).to_bytes(8, "little")) for at in range(blocks))


def timed(work: Callable[[], object], operations: int) -> float:
    """Nanoseconds per operation."""
    start = time.perf_counter_ns()
    work()
    return (time.perf_counter_ns() - start) / operations


def weigh(kind: str, blocks: int) -> None:
    """One row of the first table."""
    index = PrefixIndex(limit_bytes=1 << 40)
    index.add("r", capacity_blocks=None if kind == "told" else blocks)
    numbers = count(1)
    before = rss()
    start = time.perf_counter_ns()
    for _ in range(blocks // PROMPT_BLOCKS):
        names = prompts(PROMPT_BLOCKS, next(numbers))
        if kind == "told":
            index.apply("r", KvStored(blocks=names))
        else:
            index.use("x", "r", names)
            index.unuse("x", kept=True)
    spent = time.perf_counter_ns() - start
    measured = (rss() - before) / index.known_blocks("r")
    hashing = timed(lambda: [prompts(PROMPT_BLOCKS, at) for at in range(200)], 200 * PROMPT_BLOCKS)
    print(
        f"| {kind} | {index.known_blocks('r'):,} | {measured:.0f} | {index.bytes / index.known_blocks('r'):.0f} |"
        f" {spent / blocks - hashing:.0f} |"
    )


def speeds() -> None:
    """The second table: what one request pays."""
    print("\n| operation | blocks | µs | ns per block |\n|---|---|---|---|")
    for blocks in (1, 64, 625, 6_250, 62_500):
        index = PrefixIndex()
        for replica in "abcd":
            index.add(replica)
        names = prompts(blocks)
        index.apply("a", KvStored(blocks=names))
        rounds = max(3, 20_000 // blocks)
        numbers = count()

        def use(index: PrefixIndex = index, names: tuple[int, ...] = names, numbers: count[int] = numbers) -> None:
            request = str(next(numbers))
            index.use(request, "a", names)
            index.unuse(request, kept=True)

        for name, operation in (
            ("match, all held", lambda index=index, names=names: index.match("a", names)),
            ("match, none held", lambda index=index, names=names: index.match("b", names)),
            ("use and unuse", use),
        ):
            spent = timed(lambda operation=operation, rounds=rounds: [operation() for _ in range(rounds)], rounds)
            print(f"| {name} | {blocks:,} | {spent / 1e3:.1f} | {spent / blocks:.0f} |")


def churn(changes: int, held: int) -> None:
    """Stores and removals for ever: `held` blocks stay, the rest comes and goes."""
    index = PrefixIndex()
    index.add("r")
    index.add("guessed", capacity_blocks=held)
    window: list[tuple[int, ...]] = []
    stored, limit = 0, held // PROMPT_BLOCKS
    print(f"\n{changes:,} blocks stored and removed, {held:,} held:")
    start, first = time.perf_counter(), 0
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
    spent = time.perf_counter() - start
    print(f"  {spent:.1f} s, {spent / stored * 1e9:.0f} ns per block stored, followed twice and removed")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--changes", type=int, default=10_000_000)
    parser.add_argument("--held", type=int, default=200_000)
    parser.add_argument("--weigh", nargs=2, metavar=("KIND", "BLOCKS"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.weigh:
        weigh(given.weigh[0], int(given.weigh[1]))
        return
    print(
        "| contents | blocks | bytes per block | accounted | ns per block stored |\n|---|---|---|---|---|", flush=True
    )
    for kind in ("told", "guessed"):
        for blocks in (100_000, 600_000, 1_000_000, 2_000_000):
            subprocess.run([sys.executable, str(Path(__file__)), "--weigh", kind, str(blocks)], check=True)
    speeds()
    churn(given.changes, given.held)


if __name__ == "__main__":
    main()
