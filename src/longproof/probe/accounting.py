"""Accounting: is the count we sent the count the server used, was all of it read, and what happens at the very edge?

template   how many tokens the template adds, special ones apart length     prompts of exact lengths; their counts go
against `usage` canary     three codes at head, middle and tail, a short control, and the same with one code changed
edge       limit-2, limit-1, limit, limit+1 and far above, each asking for 16 tokens
"""

from __future__ import annotations

from dataclasses import dataclass

from longproof.asking.context import Build, Cell, ProbeContext
from longproof.asking.prompts import BuiltPrompt
from longproof.asking.recovery import check_alive
from longproof.domain.request import ChatMessage, ChatPrompt, GenerationRequest
from longproof.evidence.records import RequestBody
from longproof.probe.canaries import PLACES, QUESTION, Codes, codes_for

PROBE = "accounting"
EDGE_OUTPUT_TOKENS = 16
CANARY_OUTPUT_TOKENS = 24
CONTROL_TOKENS = 256
_TOP_LOGPROBS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountingPlan:
    """What accounting will ask. `limit_tokens` None = the server does not tell its limit, so there is no edge to ask
    at."""

    lengths: tuple[int, ...]
    canary_tokens: int
    limit_tokens: int | None


def edge_positions(limit_tokens: int) -> dict[str, int]:
    """Prompt lengths around the limit by name. ``far`` is twice the limit: what an over-long paste looks like."""
    return {
        "limit-2": limit_tokens - 2,
        "limit-1": limit_tokens - 1,
        "limit": limit_tokens,
        "limit+1": limit_tokens + 1,
        "far": 2 * limit_tokens,
    }


async def run(ctx: ProbeContext, plan: AccountingPlan) -> None:
    """Asks all of it. Raises BudgetSpent or EngineGone; what the server does is in the records."""
    await _template(ctx)
    for length in plan.lengths:
        await _length(ctx, length)
    await _canaries(ctx, plan.canary_tokens)
    if plan.limit_tokens is not None:
        for position, prompt_tokens in edge_positions(plan.limit_tokens).items():
            await _edge(ctx, position, prompt_tokens)


async def _template(ctx: ProbeContext) -> None:
    if ctx.engine.capabilities.counts and ctx.engine.capabilities.chat:
        prompt = ChatPrompt(messages=(ChatMessage(role="user", content="Hello"),))
        await ctx.count(f"{PROBE}/template", probe=PROBE, cell={"arm": "template"}, prompt=prompt)


async def _length(ctx: ProbeContext, length: int) -> None:
    async def build(nonce: str) -> GenerationRequest:
        built = await ctx.prompts.exact(length, nonce=nonce)
        return _request(ctx, built, max_tokens=ctx.protocol.output_tokens)

    key = f"{PROBE}/length/{length}"
    await _ask(ctx, key, {"arm": "length", "length": length}, build, length + ctx.protocol.output_tokens)


async def _canaries(ctx: ProbeContext, full_tokens: int) -> None:
    for length in sorted({min(CONTROL_TOKENS, full_tokens), full_tokens}):
        codes = codes_for(ctx.protocol.seed, length)
        variants = {"base": codes}
        if ctx.engine.capabilities.logprobs:
            variants |= {place: codes.changed(place) for place in PLACES}
        # One nonce for all variants: they must differ in the changed code and in nothing else. A resumed run has a new
        # salt, so
        # the nonce of the first variant is read back from its record.
        base = ctx.journal.get(f"{PROBE}/canary/{length}/base")
        nonce = (
            str(base.cell["nonce"]) if isinstance(base, RequestBody) else ctx.prompts.nonce(f"{PROBE}/canary/{length}")
        )
        for variant, variant_codes in variants.items():
            await _canary(ctx, length, variant, variant_codes, nonce)


async def _canary(ctx: ProbeContext, length: int, variant: str, codes: Codes, nonce: str) -> None:
    async def build(_own_nonce: str) -> GenerationRequest:
        built = await ctx.prompts.exact(length, nonce=nonce, inserts=codes.inserts(), question=QUESTION)
        logprobs = _TOP_LOGPROBS if ctx.engine.capabilities.logprobs else 0
        # Cold, so that all variants are computed in the same shapes: a half-cached prefill moves log probabilities by
        # rounding alone.
        return _request(
            ctx, built, max_tokens=CANARY_OUTPUT_TOKENS, exact_output=False, top_logprobs=logprobs, cold=True
        )

    cell: Cell = {"arm": "canary", "length": length, "variant": variant, "nonce": nonce}
    cell |= {place: getattr(codes, place) for place in PLACES}
    await _ask(ctx, f"{PROBE}/canary/{length}/{variant}", cell, build, length + CANARY_OUTPUT_TOKENS)


async def _edge(ctx: ProbeContext, position: str, prompt_tokens: int) -> None:
    async def build(nonce: str) -> GenerationRequest:
        built = await ctx.prompts.exact(prompt_tokens, nonce=nonce)
        return _request(ctx, built, max_tokens=EDGE_OUTPUT_TOKENS)

    cell: Cell = {"arm": "edge", "position": position, "prompt": prompt_tokens, "output": EDGE_OUTPUT_TOKENS}
    await _ask(ctx, f"{PROBE}/edge/{position}", cell, build, prompt_tokens + EDGE_OUTPUT_TOKENS)


async def _ask(ctx: ProbeContext, key: str, cell: Cell, build: Build, expected_tokens: int) -> None:
    answer = await ctx.ask_if_provable(key, probe=PROBE, cell=cell, build=build, expected_tokens=expected_tokens)
    if answer is not None:
        await check_alive(ctx, key, probe=PROBE, after=answer.timeline)


def _request(
    ctx: ProbeContext,
    built: BuiltPrompt,
    *,
    max_tokens: int,
    exact_output: bool = True,
    top_logprobs: int = 0,
    cold: bool = False,
) -> GenerationRequest:
    return GenerationRequest(
        prompt=built.prompt,
        max_tokens=max_tokens,
        prompt_tokens=built.count.total,
        count_source=built.count.source,
        exact_output=exact_output,
        cold=cold,
        seed=ctx.protocol.seed,
        top_logprobs=top_logprobs,
        timeout_s=ctx.protocol.request_timeout_s,
    )
