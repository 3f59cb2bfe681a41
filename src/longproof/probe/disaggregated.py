"""Disaggregated: does KV really go from the prefill side to the decode side, and what does it cost or save?

    pair        a request through both sides, their metrics sampled before and after
    alone       the same prompt computed by the decode side itself: the same text? sooner or later?
    control     alone once more, where texts are compared: does this server repeat itself at all?
    together    some at the same time

Rounds go over all lengths, so every length is asked again after longer ones: what works once may be what never gives
its blocks back.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from longproof.asking.context import Cell, ProbeContext
from longproof.asking.lot import lot_of
from longproof.asking.prompts import LengthUnproven
from longproof.asking.recovery import check_alive
from longproof.asking.window import Load, LoadRequest, run_window
from longproof.domain.request import GenerationRequest
from longproof.engines.pd import PdEngine
from longproof.evidence.records import RequestBody

PROBE = "disaggregated"
PAIR, ALONE, CONTROL, TOGETHER = "pair", "alone", "control", "together"
_CONTROLS = 2
_SECOND_NS = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class DisaggregatedPlan:
    """`lengths`: prompts; `repeats`: rounds over them. `concurrency`: so many of the longest together, 0 = none;
    `together`: how often."""

    lengths: tuple[int, ...]
    repeats: int = 3
    concurrency: int = 2
    together: int = 2


def cost(plan: DisaggregatedPlan, output_tokens: int) -> tuple[int, int]:
    """Requests and tokens (prompt + output)."""
    rounds = 2 * plan.repeats + min(_CONTROLS, plan.repeats)
    together = plan.concurrency * plan.together
    tokens = rounds * sum(length + output_tokens for length in plan.lengths)
    return rounds * len(plan.lengths) + together, tokens + together * (max(plan.lengths) + output_tokens)


async def run(ctx: ProbeContext, plan: DisaggregatedPlan) -> None:
    """All rounds, then several together. Raises BudgetSpent or EngineGone. A single server has nothing to show here."""
    pair = ctx.engine
    if not isinstance(pair, PdEngine):
        ctx.note(f"{PROBE}/none", probe=PROBE, what="no_pair")
        return
    alone = replace(ctx, engine=pair.decode)
    try:
        for repeat in range(plan.repeats):
            for length in sorted(set(plan.lengths)):
                nonce = _nonce(ctx, length, repeat)
                await _ask(ctx, PAIR, length, repeat, nonce)
                await _ask(alone, ALONE, length, repeat, nonce)
                if repeat < _CONTROLS:
                    await _ask(alone, CONTROL, length, repeat, nonce)
        for number in range(plan.together if plan.concurrency else 0):
            await _together(ctx, plan, number)
    except LengthUnproven as reason:
        ctx.note(f"{PROBE}/unproven", probe=PROBE, what="length_unproven", reason=str(reason))


async def _ask(ctx: ProbeContext, arm: str, length: int, repeat: int, nonce: str) -> None:
    """The same prompt in every arm; none may come from a cache, or nothing would have to be transferred."""
    key = _key(arm, length, repeat)
    cell: Cell = {"arm": arm, "length": length, "repeat": repeat, "nonce": nonce}

    async def build(_: str) -> GenerationRequest:
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

    expected = length + ctx.protocol.output_tokens
    body = await ctx.ask(key, probe=PROBE, cell=cell, build=build, expected_tokens=expected, sampled=True)
    await check_alive(ctx, key, probe=PROBE, after=body.timeline)


async def _together(ctx: ProbeContext, plan: DisaggregatedPlan, number: int) -> None:
    length, output = max(plan.lengths), ctx.protocol.output_tokens
    lot = lot_of(ctx, await ctx.prompts.stock(length, key=f"{PROBE}/stock"))

    def one(i: int) -> LoadRequest:
        request = lot.request(number * plan.concurrency + i)
        return LoadRequest(name=f"request/{i}", cell={"arm": TOGETHER, "repeat": number}, request=request, at_ns=0)

    done = await run_window(
        ctx,
        f"{PROBE}/{TOGETHER}/{number}",
        probe=PROBE,
        cell={"length": length},
        load=Load(
            for_ns=0,
            scheduled=tuple(one(i) for i in range(plan.concurrency)),
            describe={"concurrency": plan.concurrency},
        ),
        expected_tokens=plan.concurrency * (length + output),
        expected_ns=_SECOND_NS,
    )
    for key, body in done.requests:
        await check_alive(ctx, key, probe=PROBE, after=body.timeline)


def _nonce(ctx: ProbeContext, length: int, repeat: int) -> str:
    """One for all arms: an earlier session's where the first arm was asked then."""
    key = _key(PAIR, length, repeat)
    first = ctx.journal.get(key)
    return str(first.cell["nonce"]) if isinstance(first, RequestBody) else ctx.prompts.nonce(key)


def _key(arm: str, length: int, repeat: int) -> str:
    return f"{PROBE}/{arm}/{length}/{repeat}"
