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
from longproof.evidence.records import RequestBody, SessionBody
from longproof.probe.speed import note_shared_prefix

PROBE = "compare"


@dataclass(frozen=True, slots=True, kw_only=True)
class SidesPlan:
    """Every length (tokens of the whole prompt, as A counts it) `rounds` times on both sides."""

    lengths: tuple[int, ...]
    rounds: int


def asked_tokens(plan: SidesPlan, output_tokens: int) -> list[int]:
    """Tokens (prompt + output) of every request to either side, warm-up included."""
    lengths = [length + output_tokens for length in sorted(set(plan.lengths))]
    return [*lengths[:1], *lengths * (plan.rounds + 1)] * 2


async def warm_up(a: ProbeContext, b: ProbeContext, plan: SidesPlan) -> None:
    """One short request to either side, which enters nothing; once for each session, since a server may have been
    started anew in between. Does nothing where all is answered."""
    if all(_is_answered((a, b), *question) for question in _questions(plan)):
        return
    for ctx in (a, b):
        await note_shared_prefix(ctx, PROBE)
    sessions = sum(isinstance(record.body, SessionBody) for record in a.journal.records)
    key, length = f"{PROBE}/warmup" if sessions <= 1 else f"{PROBE}/warmup/{sessions}", min(plan.lengths)
    nonce = a.prompts.nonce(key)
    built = await a.prompts.exact(length, nonce=nonce)
    for ctx in (a, b):
        await _ask(ctx, key, {"arm": "warmup", "length": length}, built, nonce, expected_tokens=0)


async def run(a: ProbeContext, b: ProbeContext, plan: SidesPlan) -> None:
    """Asks both sides, after `warm_up`. Prompts are built on A, whose tokens are counted; B counts them too, and what
    it says is recorded. A question that an interruption left between the sides is asked anew: what lies hours apart is
    no pair. Raises EngineGone, BudgetSpent before a question, LengthUnproven where no length at all can be promised."""
    for number, (length, round_) in enumerate(_questions(plan)):
        if not _is_answered((a, b), length, round_):
            place = number % len(set(plan.lengths))
            sides = (a, b) if (round_ + place) % 2 == 0 else (b, a)
            await _question(sides, a, length, round_)


def _questions(plan: SidesPlan) -> list[tuple[int, int]]:
    """(length, round) in the order of asking."""
    return [(length, round_) for round_ in range(plan.rounds) for length in sorted(set(plan.lengths))]


async def _question(sides: Sequence[ProbeContext], builder: ProbeContext, length: int, round_: int) -> None:
    key = _keys(sides, length, round_)[-1]
    again = round_ == 0
    tokens = length + builder.protocol.output_tokens
    builder.budget.check(tokens * len(sides) * (2 if again else 1))
    nonce = _nonce(sides, key) or builder.prompts.nonce(key)
    try:
        built = await builder.prompts.exact(length, nonce=nonce)
    except LengthUnproven as reason:
        for ctx in sides:
            ctx.note(f"{key}/unproven", probe=PROBE, what="length_unproven", reason=str(reason), length=length)
        return
    for turn, ctx in enumerate(sides):
        if again and ctx.engine.capabilities.counts:
            await ctx.count(f"{key}/count", probe=PROBE, cell={"length": length}, prompt=built.prompt)
        cell: Cell = {"arm": "pair", "length": length, "repeat": round_, "turn": turn}
        await _ask(ctx, key, cell, built, nonce, expected_tokens=tokens)
    if again:
        for ctx in sides:
            cell = {"arm": "again", "length": length, "repeat": round_}
            await _ask(ctx, f"{key}/again", cell, built, nonce, expected_tokens=tokens)


async def _ask(
    ctx: ProbeContext, key: str, cell: Cell, built: BuiltPrompt, nonce: str, *, expected_tokens: int
) -> None:
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

    body = await ctx.ask(
        key, probe=PROBE, cell=cell, build=build, expected_tokens=expected_tokens, sampled=True, nonce=nonce
    )
    await check_alive(ctx, key, probe=PROBE, after=body.timeline)


def _keys(sides: Sequence[ProbeContext], length: int, round_: int) -> list[str]:
    """The keys under which a question was asked, the last one to be gone on with: one attempt after the other, each
    torn one behind it."""
    keys = [f"{PROBE}/{length}/{round_}"]
    while sum(ctx.journal.get(keys[-1]) is not None for ctx in sides) == 1:
        keys.append(f"{PROBE}/{length}/{round_}/{len(keys) + 1}")
    return keys


def _is_answered(sides: Sequence[ProbeContext], length: int, round_: int) -> bool:
    key = _keys(sides, length, round_)[-1]
    wanted = [key, f"{key}/again"] if round_ == 0 else [key]
    unproven = all(ctx.journal.get(f"{key}/unproven") is not None for ctx in sides)
    return unproven or all(ctx.journal.get(name) is not None for ctx in sides for name in wanted)


def _nonce(sides: Sequence[ProbeContext], key: str) -> str | None:
    """The nonce that this question has already been asked with."""
    asked = (ctx.journal.get(key) for ctx in sides)
    return next((body.nonce for body in asked if isinstance(body, RequestBody)), None)
