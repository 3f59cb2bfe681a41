"""How fast a haystack is assembled, and in how much memory, once its corpus has been tokenized.

    python benchmarks/haystack_speed.py [--tokens 1000000] [--items 20] [--naive-items 1]

The corpus is the generated one, tokenized once by the embedded llama.cpp. Then items of one length after another, each
with eight needles and another seed:

    longproof   chooses units by their costs, joins slices once; nothing is tokenized again
    naive       joins lines and lets the server count, taking more or fewer until it fits (a bisection over the number
                of lines, as several long-context benchmarks do)

Both are held against the server's own count of one finished text. Memory: the peak of Python's allocations while one
item is assembled, as a multiple of its text, and what stays after all items. Last line: the rate against the limit.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import statistics
import sys
import tempfile
import time
import tracemalloc
from pathlib import Path
from random import Random

from longproof.domain.request import Route
from longproof.engines.base import Engine
from longproof.engines.embedded import EmbeddedOptions, start_embedded
from longproof.engines.model_files import resolve_model
from longproof.engines.registry import connect
from longproof.quality.corpora.opening import open_corpus
from longproof.quality.haystack import TokenizedCorpus, choose_haystack, haystack_text, tokenize_corpus
from longproof.quality.item import Needle

LIMIT_TOKENS_PER_S = 2_000_000
NEEDLES = 8


def needles_of(item: int) -> tuple[Needle, ...]:
    chance = Random(item)
    return tuple(
        Needle(
            text=f"The passcode for Fjord {number} is {chance.randrange(100_000, 1_000_000)}.",
            depth=(number + chance.random()) / NEEDLES,
        )
        for number in range(NEEDLES)
    )


def assemble(corpus: TokenizedCorpus, tokens: int, item: int) -> str:
    needles = needles_of(item)
    avoid = corpus.units_to_avoid(needles, [needle.text.split()[-1].rstrip(".") for needle in needles])
    haystack = choose_haystack(corpus, needles, tokens=tokens, seed=f"benchmark/{item}", avoid=avoid)
    if haystack is None:
        raise SystemExit(f"no whole units make up {tokens} tokens")
    return haystack_text(corpus, haystack, needles)


async def assemble_naively(engine: Engine, corpus: TokenizedCorpus, tokens: int, item: int) -> tuple[str, int]:
    """(text, how often it was counted). Lines from a random one on."""
    lines = corpus.text.splitlines()
    first = Random(item).randrange(len(lines) // 20)
    low, high, counts = 1, len(lines) - first, 0
    while low < high:
        middle = (low + high + 1) // 2
        counts += 1
        text = "\n".join(lines[first : first + middle])
        low, high = (middle, high) if len(await engine.tokenize(text)) <= tokens else (low, middle - 1)
    return "\n".join(lines[first : first + low]), counts


def memory_of(corpus: TokenizedCorpus, tokens: int, items: int) -> tuple[float, int]:
    """(bytes at the peak of one assembly per byte of its text, bytes that stay after all of them)."""
    gc.collect()
    tracemalloc.start()
    text_bytes = len(assemble(corpus, tokens, -1))
    _, peak_bytes = tracemalloc.get_traced_memory()
    before_bytes, _ = tracemalloc.get_traced_memory()
    for item in range(items):
        assemble(corpus, tokens, item)
    gc.collect()
    after_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak_bytes / text_bytes, after_bytes - before_bytes


async def compare(engine: Engine, tokens: int, items: int, naive_items: int) -> float:
    """Prints the table; returns the median rate in tokens per second."""
    source = open_corpus(None, kind="prose", seed=0, tokens=tokens)
    source.units()
    began = time.perf_counter()
    corpus = await tokenize_corpus(engine, source, route=Route.CHAT)
    once_s = time.perf_counter() - began
    print(f"corpus {corpus.name}: {corpus.total_tokens:,} tokens in {len(corpus.tokens):,} units, {corpus.how}")
    print(f"tokenized once by the server: {once_s:.1f} s, {corpus.total_tokens / once_s:,.0f} tokens/s\n")
    times: list[float] = []
    text = ""
    for item in range(items):
        began = time.perf_counter()
        text = assemble(corpus, tokens, item)
        times.append(time.perf_counter() - began)
    own_s = statistics.median(times)
    behind = len(await engine.tokenize("\n".join(needle.text for needle in needles_of(items - 1)) + "\n"))
    off = len(await engine.tokenize(text + "\n")) - behind - tokens
    naive_times: list[float] = []
    counts = short = 0
    for item in range(naive_items):
        began = time.perf_counter()
        joined, counts = await assemble_naively(engine, corpus, tokens, item)
        naive_times.append(time.perf_counter() - began)
        short = len(await engine.tokenize(joined)) - tokens
    naive_s = statistics.median(naive_times) if naive_times else float("nan")
    print(f"{'':<12}{'ms per item':>14}{'tokens/s':>16}{'time, ratio':>13}{'counts':>9}{'tokens off':>12}")
    print(f"{'longproof':<12}{own_s * 1e3:>14.1f}{tokens / own_s:>16,.0f}{1:>13}{0:>9}{off:>12}")
    if naive_times:
        ratio = naive_s / own_s
        print(f"{'naive':<12}{naive_s * 1e3:>14.1f}{tokens / naive_s:>16,.0f}{ratio:>13,.0f}{counts:>9}{short:>12}")
    print(f"\n{tokens:,} tokens an item, median of {items}; slowest {max(times) * 1e3:.1f} ms")
    peak, kept_bytes = memory_of(corpus, tokens, items)
    print(
        f"memory: {peak:.1f} x the text at the peak of one item; {kept_bytes / 1024:,.0f} KiB more after {items} items"
    )
    return tokens / own_s


async def main(tokens: int, items: int, naive_items: int) -> int:
    with tempfile.TemporaryDirectory() as scratch:
        options = EmbeddedOptions(model=resolve_model(), context_tokens=512)
        server = await start_embedded(options, Path(scratch) / "engine.log")
        engine = await connect(server.url)
        try:
            rate = await compare(engine, tokens, items, naive_items)
        finally:
            await engine.aclose()
            await server.process.stop()
    kept = rate > LIMIT_TOKENS_PER_S
    print(f"limit: over {LIMIT_TOKENS_PER_S:,} tokens/s once tokenized: {'kept' if kept else 'BROKEN'}")
    return 0 if kept else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=1_000_000)
    parser.add_argument("--items", type=int, default=20)
    parser.add_argument("--naive-items", type=int, default=1)
    chosen = parser.parse_args()
    sys.exit(asyncio.run(main(chosen.tokens, chosen.items, chosen.naive_items)))
