"""Warmth: what does a prompt cost that the server has seen before, whole or up to a new tail?

    cold        a fresh prompt; caching is allowed, there is nothing to reuse
    again       the same prompt, byte for byte
    new_tail    the same beginning, another last part
    forbidden   the same prompt once more, asking the engine not to reuse anything (once per run, where it has that
    switch)

The arms of one pair follow each other directly: nothing else may push the prompt out of the cache between them.
"""

from __future__ import annotations

from collections.abc import Sequence

from longproof.asking.context import Cell, ProbeContext
from longproof.asking.recovery import check_alive
from longproof.domain.request import GenerationRequest
from longproof.evidence.records import RequestBody, SessionBody
from longproof.probe.speed import note_shared_prefix

PROBE = "warmth"
REUSING_ARMS = ("again", "new_tail")


async def run(ctx: ProbeContext, lengths: Sequence[int], repeats: int) -> None:
    """Asks all arms at every length (tokens of the whole prompt), `repeats` times. Raises BudgetSpent or EngineGone."""
    ordered = sorted(set(lengths))
    await note_shared_prefix(ctx, PROBE)
    for repeat in range(repeats):
        for length in ordered:
            forbid = ctx.engine.capabilities.cold and repeat == 0 and length == ordered[0]
            await _arms(ctx, length, repeat, (*REUSING_ARMS, "forbidden") if forbid else REUSING_ARMS)


async def _arms(ctx: ProbeContext, length: int, repeat: int, arms: Sequence[str]) -> None:
    """One prompt cold, then in every other arm. A pair that a crash tore apart is warmed again first: the engine may
    have been restarted, and its cache with it."""
    missing = [arm for arm in arms if ctx.journal.get(_key(arm, length, repeat)) is None]
    cold_key = _key("cold", length, repeat)
    torn = bool(missing) and ctx.journal.get(cold_key) is not None
    nonce = _nonce(ctx, cold_key)
    await _ask(ctx, cold_key, "cold", length, repeat, nonce)
    if torn:
        sessions = sum(isinstance(record.body, SessionBody) for record in ctx.journal.records)
        await _ask(ctx, f"{_key('rewarm', length, repeat)}/{sessions}", "rewarm", length, repeat, nonce)
    for arm in missing:
        await _ask(ctx, _key(arm, length, repeat), arm, length, repeat, nonce)


async def _ask(ctx: ProbeContext, key: str, arm: str, length: int, repeat: int, nonce: str) -> None:
    async def build(own_nonce: str) -> GenerationRequest:
        tail = own_nonce if arm == "new_tail" else None
        built = await ctx.prompts.exact(length, nonce=nonce, tail_nonce=tail)
        return GenerationRequest(
            prompt=built.prompt,
            max_tokens=ctx.protocol.output_tokens,
            prompt_tokens=built.count.total,
            count_source=built.count.source,
            cold=arm == "forbidden",
            seed=ctx.protocol.seed,
            timeout_s=ctx.protocol.request_timeout_s,
        )

    cell: Cell = {"arm": arm, "length": length, "repeat": repeat, "nonce": nonce}
    answer = await ctx.ask_if_provable(
        key, probe=PROBE, cell=cell, build=build, expected_tokens=length + ctx.protocol.output_tokens, sampled=True
    )
    if answer is not None:
        await check_alive(ctx, key, probe=PROBE, after=answer.timeline)


def _nonce(ctx: ProbeContext, cold_key: str) -> str:
    """The nonce of this prompt: an earlier session's where the cold request was asked then, since salts differ."""
    cold = ctx.journal.get(cold_key)
    return str(cold.cell["nonce"]) if isinstance(cold, RequestBody) else ctx.prompts.nonce(cold_key)


def _key(arm: str, length: int, repeat: int) -> str:
    return f"{PROBE}/{arm}/{length}/{repeat}"
