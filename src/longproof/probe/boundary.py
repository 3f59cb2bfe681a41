"""Boundary: the largest prompt + output that is admitted and completed, and what happens just above it.

    top good?  ──yes──▶ top is the limit? ──yes──▶ ask limit+1, done
       │                        └──no (cut by --context)──▶ done: nothing above was tried
       no
       ▼
    smallest good? ──no──▶ done: nothing completes
       │yes
       ▼
    halve between good and bad until they are `resolution` apart

A total is good when every repeat completes with exactly the output that was asked for. A clamped answer is not good:
the output did not fit. Configured limit, calculated capacity and this boundary are three numbers, and stay three.
"""

from __future__ import annotations

from dataclasses import dataclass

from longproof.asking.context import Cell, ProbeContext
from longproof.asking.recovery import check_alive
from longproof.domain.events import RequestTimeline
from longproof.domain.outcome import Outcome, classify, completed_as_asked
from longproof.domain.request import GenerationRequest
from longproof.stats.bisection import next_question

PROBE = "boundary"
_DEAR_MISSES = (Outcome.SHORT, Outcome.HUNG, Outcome.TIMED_OUT, Outcome.UNREACHABLE)


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundaryPlan:
    """`top_tokens`: where to begin: the limit, --context, or a guess where there is neither. `limit_tokens`: the
    configured limit if known. `hint_tokens`: the engine's own KV capacity, tried first when below the top.
    """

    top_tokens: int
    limit_tokens: int | None
    hint_tokens: int | None
    floor_tokens: int
    resolution_tokens: int
    repeats: int


async def run(ctx: ProbeContext, plan: BoundaryPlan) -> None:
    """Runs the search. Raises BudgetSpent or EngineGone; the path it took is in the records."""
    if await _good(ctx, plan, plan.top_tokens):
        if plan.top_tokens == plan.limit_tokens:
            await _good(ctx, plan, plan.top_tokens + 1)
        return
    await _search_below(ctx, plan, plan.top_tokens)


async def _search_below(ctx: ProbeContext, plan: BoundaryPlan, bad: int) -> None:
    good: int | None = None
    if plan.hint_tokens is not None and plan.floor_tokens < plan.hint_tokens < bad:
        if await _good(ctx, plan, plan.hint_tokens):
            good = plan.hint_tokens
        else:
            bad = plan.hint_tokens
    if good is None and await _good(ctx, plan, plan.floor_tokens):
        good = plan.floor_tokens
    if good is not None:
        await _halve(ctx, plan, good, bad)


async def _halve(ctx: ProbeContext, plan: BoundaryPlan, good: int, bad: int) -> None:
    while (total := next_question(good, bad, plan.resolution_tokens)) is not None:
        if await _good(ctx, plan, total):
            good = total
        else:
            bad = total


async def _good(ctx: ProbeContext, plan: BoundaryPlan, total: int) -> bool:
    """Asks a total `repeats` times. One miss makes it bad. A quick refusal is repeated, to see whether it is
    consistent; a miss that costs as much as an answer (clamped) or a whole timeout (hung) is not."""
    good = True
    for repeat in range(plan.repeats):
        timeline = await _ask(ctx, total, repeat)
        if timeline is None:
            return False
        if not completed_as_asked(timeline):
            good = False
            if classify(timeline) in _DEAR_MISSES:
                break
    return good


async def _ask(ctx: ProbeContext, total: int, repeat: int) -> RequestTimeline | None:
    output = ctx.protocol.output_tokens
    prompt_tokens = total - output

    async def build(nonce: str) -> GenerationRequest:
        built = await ctx.prompts.exact(prompt_tokens, nonce=nonce)
        return GenerationRequest(
            prompt=built.prompt,
            max_tokens=output,
            prompt_tokens=built.count.total,
            count_source=built.count.source,
            cold=True,
            seed=ctx.protocol.seed,
            timeout_s=ctx.protocol.request_timeout_s,
        )

    key = f"{PROBE}/{total}/{repeat}"
    cell: Cell = {"total": total, "prompt": prompt_tokens, "output": output, "repeat": repeat}
    answer = await ctx.ask_if_provable(key, probe=PROBE, cell=cell, build=build, expected_tokens=total, sampled=True)
    if answer is None:
        return None
    await check_alive(ctx, key, probe=PROBE, after=answer.timeline)
    return answer.timeline
