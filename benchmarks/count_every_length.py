"""Is a prompt of exactly N tokens used as N tokens, for every N of the window?

    python benchmarks/count_every_length.py                         # the embedded llama.cpp, 8,192 tokens
    python benchmarks/count_every_length.py http://127.0.0.1:8000   # a server that takes token ids
    python benchmarks/count_every_length.py --every 64

Prompt N is the first N ids of one fixed sequence, so a server with a prefix cache computes one more token each time,
not the whole
prompt. The longest prompt that can be answered is one token below the window; at the window itself the count is read
from the
refusal, where the server tells one.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

from longproof.asking.prompts import PromptBuilder
from longproof.domain.measure import value_or_none
from longproof.domain.request import CountSource, GenerationRequest, IdsPrompt, Route
from longproof.engines.base import Engine
from longproof.prove.target import EmbeddedTarget, Target, UrlTarget


@dataclass
class Tally:
    """What was seen: equal counts, differing ones as (sent, used), answers without usage, refusals as (sent, told)."""

    equal: int = 0
    differing: list[tuple[int, int]] = field(default_factory=list)
    silent: list[int] = field(default_factory=list)
    refused: list[tuple[int, str]] = field(default_factory=list)


async def count_lengths(engine: Engine, lengths: list[int], together: int) -> Tally:
    """Sends one prompt per length, `together` at a time, and compares."""
    builder = PromptBuilder(engine, route=Route.COMPLETIONS, seed=0, salt="every length")
    longest = await builder.ids(max(lengths), nonce=builder.nonce("every length"))
    if not isinstance(longest.prompt, IdsPrompt):
        raise TypeError("the builder gave no ids")
    ids, tally = longest.prompt.ids, Tally()
    for start in track(range(0, len(lengths), together), console=Console(stderr=True), description="lengths"):
        await asyncio.gather(*(_one(engine, ids[:length], tally) for length in lengths[start : start + together]))
    return tally


async def _one(engine: Engine, ids: tuple[int, ...], tally: Tally) -> None:
    request = GenerationRequest(
        prompt=IdsPrompt(ids=ids), max_tokens=1, prompt_tokens=len(ids), count_source=CountSource.IDS
    )
    timeline = await engine.send(request)
    if timeline.error is not None:
        tally.refused.append((len(ids), timeline.error.message))
    elif timeline.usage is None or timeline.usage.prompt_tokens is None:
        tally.silent.append(len(ids))
    elif timeline.usage.prompt_tokens == len(ids):
        tally.equal += 1
    else:
        tally.differing.append((len(ids), timeline.usage.prompt_tokens))


async def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", nargs="?", help="a running server; default: the embedded engine")
    parser.add_argument("--window", type=int, default=8192, help="window of the embedded engine")
    parser.add_argument("--every", type=int, default=1, help="only every so many lengths")
    parser.add_argument("--together", type=int, default=1, help="requests at a time; more than 1 for paged engines")
    options = parser.parse_args()
    target: Target = UrlTarget(url=options.url) if options.url else EmbeddedTarget(window_tokens=options.window)
    with tempfile.TemporaryDirectory() as scratch:
        engine = await target.open(Path(scratch) / "engine.log")
        try:
            deployment = await engine.introspect()
            window = value_or_none(deployment.configured_limit_tokens) or options.window
            lengths = sorted({*range(1, window, options.every), window - 1, window})
            began = time.monotonic()
            tally = await count_lengths(engine, lengths, options.together)
            seconds = time.monotonic() - began
        finally:
            await engine.aclose()
    table = Table("engine", "lengths", "sent = used", "differ", "without usage", "refused", "seconds")
    table.add_row(
        deployment.engine.value,
        f"1 … {window:,}" + (f" every {options.every}" if options.every > 1 else ""),
        f"{tally.equal:,}",
        str(len(tally.differing)),
        str(len(tally.silent)),
        ", ".join(f"{length:,}: {words}" for length, words in tally.refused) or "none",
        f"{seconds:.0f}",
    )
    Console().print(table)
    for sent, used in tally.differing[:10]:
        print(f"sent {sent}, used {used}")
    return 1 if tally.differing or tally.silent else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
