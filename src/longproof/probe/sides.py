"""Sides: one question asked of two servers in turns, byte for byte the same, one request at a time.

    round 0   512: A B    2048: B A    8192: A B        the order of the sides alternates from question to question
    round 1   512: B A    2048: A B    8192: B A        and from round to round: what drifts, on a machine they share
    …                                                   or on the way to them, meets both alike

In round 0 every prompt is then asked again on both sides (`again`): a side that does not repeat itself cannot be blamed
for differing from the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from longproof.asking.context import Cell, ProbeContext
from longproof.asking.prompts import BuiltPrompt, LengthUnproven
from longproof.asking.recovery import check_alive
from longproof.domain.request import GenerationRequest
from longproof.probe.speed import note_shared_prefix

PROBE = "compare"


@dataclass(frozen=True, slots=True, kw_only=True)
class SidesPlan:
    """Every length (tokens of the whole prompt, as A counts it) `rounds` times on both sides."""

    lengths: tuple[int, ...]
    rounds: int


def cost(plan: SidesPlan, output_tokens: int) -> tuple[int, int]:
    """(requests, tokens) on each side, warm-up included."""
    once = sum(length + output_tokens for length in plan.lengths)
    first = min(plan.lengths) + output_tokens
    return 1 + len(plan.lengths) * (plan.rounds + 1), first + once * (plan.rounds + 1)


async def run(a: ProbeContext, b: ProbeContext, plan: SidesPlan) -> None:
    """Asks both sides. Prompts are built on A, whose tokens are counted; B counts them too, and what it says is
    recorded. Raises EngineGone, LengthUnproven where no length at all can be promised."""
    for ctx in (a, b):
        await note_shared_prefix(ctx, PROBE)
    lengths = sorted(set(plan.lengths))
    warm_up = await a.prompts.exact(lengths[0], nonce=a.prompts.nonce(f"{PROBE}/warmup"))
    for ctx in (a, b):
        await _ask(ctx, f"{PROBE}/warmup", {"arm": "warmup", "length": lengths[0]}, warm_up)
    for round_ in range(plan.rounds):
        for place, length in enumerate(lengths):
            sides = (a, b) if (round_ + place) % 2 == 0 else (b, a)
            await _question(sides, a, length, round_)


async def _question(sides: Sequence[ProbeContext], builder: ProbeContext, length: int, round_: int) -> None:
    key = f"{PROBE}/{length}/{round_}"
    try:
        built = await builder.prompts.exact(length, nonce=builder.prompts.nonce(key))
    except LengthUnproven as reason:
        for ctx in sides:
            ctx.note(f"{key}/unproven", probe=PROBE, what="length_unproven", reason=str(reason), length=length)
        return
    for turn, ctx in enumerate(sides):
        if round_ == 0 and ctx.engine.capabilities.counts:
            await ctx.count(f"{key}/count", probe=PROBE, cell={"length": length}, prompt=built.prompt)
        await _ask(ctx, key, {"arm": "pair", "length": length, "repeat": round_, "turn": turn}, built)
    if round_ == 0:
        for ctx in sides:
            await _ask(ctx, f"{key}/again", {"arm": "again", "length": length, "repeat": round_}, built)


async def _ask(ctx: ProbeContext, key: str, cell: Cell, built: BuiltPrompt) -> None:
    async def build(_: str) -> GenerationRequest:
        return GenerationRequest(
            prompt=built.prompt,
            max_tokens=ctx.protocol.output_tokens,
            prompt_tokens=built.count.total,
            count_source=built.count.source,
            cold=ctx.engine.capabilities.cold,
            seed=ctx.protocol.seed,
            timeout_s=ctx.protocol.request_timeout_s,
        )

    tokens = built.count.total + ctx.protocol.output_tokens
    body = await ctx.ask(key, probe=PROBE, cell=cell, build=build, expected_tokens=tokens, sampled=True)
    await check_alive(ctx, key, probe=PROBE, after=body.timeline)
