"""What comes in. Times in nanoseconds; every workload is a function of its seed or its trace."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from itertools import count
from pathlib import Path

from longproof.domain.units import NS_PER_MS, NS_PER_S
from routing.requests import Job

SYSTEM_TOKENS, DOCUMENT_TOKENS, TURN_TOKENS = 1_026, 6_002, 605
"""Of the multi-turn workload, as the chat template of its fake engine counts them."""


def multi_turn(
    seed: int, *, conversations: int = 64, turns: int = 8, think_s: float = 0.3, block_tokens: int = 16
) -> Iterator[tuple[int, Job]]:
    """Conversations about a document each, under one system prompt: they begin within 1.5 s, and every turn brings the
    whole of it again, 605 tokens longer. The client answers `think_s` (exponential) after the last token."""
    draw, names = random.Random(seed), count(1_000)
    system = tuple(range(1, 1 + SYSTEM_TOKENS // block_tokens))

    def job(conversation: int, turn: int, blocks: tuple[int, ...]) -> Job:
        tokens = SYSTEM_TOKENS + DOCUMENT_TOKENS + TURN_TOKENS * turn
        missing = tokens // block_tokens - len(blocks)
        known = blocks + tuple(next(names) for _ in range(missing))

        def following(now_ns: int) -> tuple[int, Job] | None:
            if turn + 1 == turns:
                return None
            return now_ns + int(draw.expovariate(1 / think_s) * NS_PER_S), job(conversation, turn + 1, known)

        return Job(f"{conversation}.{turn}", tokens, 16, known, session=str(conversation), following=following)

    for conversation in range(conversations):
        yield int(draw.random() * 1.5 * NS_PER_S), job(conversation, 0, system)


def long_short(
    seed: int, *, requests: int = 400, rate_per_s: float = 40, every: int | None = 25, block_tokens: int = 16
) -> Iterator[tuple[int, Job]]:
    """Poisson arrivals: prompts of 1,000 tokens, and every 25th of 200,000 (`every` None: one in 25 by chance)."""
    draw, names, at_s = random.Random(seed), count(1), 0.0
    for number in range(requests):
        at_s += draw.expovariate(rate_per_s)
        is_long = number % every == every // 2 if every else draw.random() < 0.04
        tokens = 200_002 if is_long else 1_002
        blocks = tuple(next(names) for _ in range(tokens // block_tokens))
        yield int(at_s * NS_PER_S), Job(str(number), tokens, 16, blocks, kind="long" if is_long else "short")


def mooncake(trace: Path, *, speed: float = 1.0) -> Iterator[tuple[int, Job]]:
    """A trace of Mooncake (FAST'25): 512-token blocks named by the trace, the last may be partial. Ties within a
    time-stamp are kept as the bursts they are."""
    with trace.open() as lines:
        for number, line in enumerate(lines):
            row = json.loads(line)
            at_ns = int(row["timestamp"] * NS_PER_MS / speed)
            yield at_ns, Job(str(number), row["input_length"], row["output_length"], tuple(row["hash_ids"]))
