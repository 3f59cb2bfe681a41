"""Speed: how long does a cold prompt of each length take, one request at a time?

Repeats go round by round (all lengths, then all lengths again), so that a server that drifts does not turn its drift
into an effect of length. Every prompt has a nonce of its own in front and, where the engine has a switch for it,
forbids the prefix cache. The first request of a session is kept apart: engines compile and allocate on it.
"""

from __future__ import annotations

from collections.abc import Sequence

from longproof.asking.context import Cell, ProbeContext
from longproof.asking.prompts import LengthUnproven
from longproof.asking.recovery import check_alive
from longproof.domain.request import GenerationRequest
from longproof.evidence.records import SessionBody

PROBE = "speed"


async def run(ctx: ProbeContext, lengths: Sequence[int], repeats: int) -> None:
    """Asks every length (tokens of the whole prompt) `repeats` times, short to long. Raises BudgetSpent or
    EngineGone.
    """
    ordered = sorted(set(lengths))
    cells = [(length, repeat) for repeat in range(repeats) for length in ordered]
    if all(ctx.journal.get(_key(length, repeat)) is not None for length, repeat in cells):
        return
    await note_shared_prefix(ctx, PROBE)
    await _warm_up(ctx, ordered[0])
    for length, repeat in cells:
        await _ask(ctx, _key(length, repeat), {"arm": "cold", "length": length, "repeat": repeat})


async def note_shared_prefix(ctx: ProbeContext, probe: str) -> None:
    """Records how many tokens two fresh prompts can have in common: a server that reports more as cached is wrong."""
    key = f"{probe}/shared_prefix"
    if ctx.journal.get(key) is not None:
        return
    try:
        tokens = await ctx.prompts.most_shared_tokens()
    except LengthUnproven:
        return  # nobody counts here; the reader falls back to a fixed bound
    ctx.note(key, probe=probe, what="shared_prefix", tokens=tokens)


async def _warm_up(ctx: ProbeContext, length: int) -> None:
    """One request before the first cell, and one more after each resume: the engine may have been started anew."""
    sessions = sum(isinstance(record.body, SessionBody) for record in ctx.journal.records)
    key = f"{PROBE}/warmup" if sessions <= 1 else f"{PROBE}/warmup/{sessions}"
    await _ask(ctx, key, {"arm": "warmup", "length": length, "repeat": 0})


async def _ask(ctx: ProbeContext, key: str, cell: Cell) -> None:
    length = int(cell["length"])

    async def build(nonce: str) -> GenerationRequest:
        built = await ctx.prompts.exact(length, nonce=nonce)
        return GenerationRequest(
            prompt=built.prompt,
            max_tokens=ctx.protocol.output_tokens,
            prompt_tokens=built.count.total,
            count_source=built.count.source,
            cold=ctx.engine.capabilities.cold,
            seed=ctx.protocol.seed,
            timeout_s=ctx.protocol.request_timeout_s,
        )

    answer = await ctx.ask_if_provable(
        key, probe=PROBE, cell=cell, build=build, expected_tokens=length + ctx.protocol.output_tokens, sampled=True
    )
    if answer is not None:
        await check_alive(ctx, key, probe=PROBE, after=answer.timeline)


def _key(length: int, repeat: int) -> str:
    return f"{PROBE}/cold/{length}/{repeat}"
