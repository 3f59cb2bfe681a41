"""Sustained: does it stay so? A mixed load in windows that all ask the same, with a look at the idle engine between.

    window 0        idle   window 1        idle   window 2        …
    s s s s s s s   kv     s s s s s s s   kv     s s s s s s s       s: short ones, `concurrency` always under way
        L     L     rss        L     L     rss        L     L         L: long ones, at the same moments of each window

Every window is asked in the same way, so that what differs between windows is the server's doing. Between them nothing
runs: KV usage and memory that do not come back down there belong to nobody.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

from longproof.asking.context import ProbeContext
from longproof.asking.lot import Lot, lot_of
from longproof.asking.prompts import LengthUnproven
from longproof.asking.recovery import check_alive
from longproof.asking.sampler import WATCHED
from longproof.asking.stock import PromptStock
from longproof.asking.window import Load, LoadRequest, run_window
from longproof.clock import NS_PER_S
from longproof.domain.events import EngineSample
from longproof.domain.outcome import Outcome, classify
from longproof.errors import EngineMisbehaved
from longproof.evidence.records import RequestBody
from longproof.evidence.windows import Window

PROBE = "sustained"
_SETTLE_NS = 3 * NS_PER_S
_SETTLE_STEP_S = 0.1
_SCRAPE_S = 15.0
_RSS = "process_resident_memory_bytes"
_FINE = {Outcome.COMPLETED, Outcome.SHORT, Outcome.REFUSED_BUSY, Outcome.REFUSED_LENGTH, Outcome.REFUSED_OTHER}


@dataclass(frozen=True, slots=True, kw_only=True)
class SustainedPlan:
    """`windows` windows of `window_ns` each: `concurrency` prompts of `short_tokens` always under way, and in each
    window `longs_per_window` of `long_tokens` at even distances (None = no long ones)."""

    short_tokens: int
    long_tokens: int | None
    concurrency: int
    windows: int
    window_ns: int
    longs_per_window: int = 2


def cost(plan: SustainedPlan, output_tokens: int) -> tuple[int, int, int, int]:
    """(requests one at a time, their tokens, ns of windows, tokens in windows): time is what is asked for; tokens are
    at least these, since nobody knows yet how many short ones a server answers in that time."""
    return 0, 0, plan.windows * plan.window_ns, plan.windows * _least_tokens(plan, output_tokens)


async def run(ctx: ProbeContext, plan: SustainedPlan) -> None:
    """Runs all windows. Raises BudgetSpent between two of them, and EngineGone when the server no longer answers."""
    if all(ctx.journal.get(f"{_key(index)}/idle") is not None for index in range(plan.windows)):
        return
    try:
        short = await ctx.prompts.stock(plan.short_tokens, key=f"{PROBE}/short")
        long = None if plan.long_tokens is None else await ctx.prompts.stock(plan.long_tokens, key=f"{PROBE}/long")
    except LengthUnproven as reason:
        ctx.note(f"{PROBE}/unproven", probe=PROBE, what="length_unproven", reason=str(reason))
        return
    tokens = _least_tokens(plan, ctx.protocol.output_tokens)
    for index in range(plan.windows):
        done = await run_window(
            ctx,
            _key(index),
            probe=PROBE,
            cell={"window": index},
            load=_load(ctx, plan, index, short, long),
            expected_tokens=tokens,
            expected_ns=plan.window_ns,
        )
        tokens = max(tokens, _tokens(done))
        await _check(ctx, index, done)
        await _look_at_idle(ctx, index)


def _load(ctx: ProbeContext, plan: SustainedPlan, index: int, short: PromptStock, long: PromptStock | None) -> Load:
    def ask(lot: Lot, role: str, name: str, number: int, at_ns: int | None) -> LoadRequest:
        return LoadRequest(
            name=name,
            cell={"role": role, "length": lot.stock.length_tokens},
            request=lot.request(number),
            nonce=lot.stock.nonce_of(number),
            at_ns=at_ns,
        )

    def ith(i: int) -> LoadRequest:  # numbers of different windows never meet: no prompt is sent twice
        return ask(shorts, "short", f"short/{i}", i * plan.windows + index, None)

    shorts, long_ones = lot_of(ctx, short), lot_of(ctx, long or short)
    longs = () if long is None else tuple(range(plan.longs_per_window))
    return Load(
        concurrency=plan.concurrency,
        stock=ith,
        for_ns=plan.window_ns,
        scheduled=tuple(
            ask(
                long_ones,
                "long",
                f"long/{i}",
                i * plan.windows + index,
                plan.window_ns * (2 * i + 1) // (2 * len(longs)),
            )
            for i in longs
        ),
        describe={
            "windows": plan.windows,
            "concurrency": plan.concurrency,
            "short_tokens": plan.short_tokens,
            "longs_per_window": len(longs),
            **({} if plan.long_tokens is None else {"long_tokens": plan.long_tokens}),
        },
    )


async def _check(ctx: ProbeContext, index: int, done: Window) -> None:
    """After a window in which something broke: is the server still there?"""
    broken = [body.timeline for _, body in done.requests if classify(body.timeline) not in _FINE]
    if broken:
        await check_alive(ctx, _key(index), probe=PROBE, after=broken[-1])


async def _look_at_idle(ctx: ProbeContext, index: int) -> None:
    """What the engine still holds when nothing runs: the least of a few looks, because a gauge may be a step old."""
    key = f"{_key(index)}/idle"
    if ctx.journal.get(key) is not None:
        return
    until_ns = ctx.clock.now_ns() + _SETTLE_NS
    samples: list[EngineSample] = []
    while ctx.engine.capabilities.metrics and ctx.clock.now_ns() < until_ns:
        sample = await _scrape(ctx)
        if sample is None:
            break
        samples.append(sample)
        if len(samples) > 1 and not sample.running and not sample.waiting and _same(samples[-2:]):
            break
        await asyncio.sleep(_SETTLE_STEP_S)
    usages = [sample.kv_usage for sample in samples if sample.kv_usage is not None]
    detail: dict[str, int | float | str | bool] = {"window": index, "at_ns": ctx.clock.now_ns()}
    if usages:
        detail["kv_usage"] = min(usages)
    if samples:
        detail["running"] = samples[-1].running or 0
        detail["waiting"] = samples[-1].waiting or 0
    owned = ctx.engine.memory_bytes()
    scraped = _rss(samples)
    if owned is not None:
        detail |= {"memory_bytes": owned, "memory_of": "all processes of the engine"}
    elif scraped is not None:
        detail |= {"memory_bytes": scraped, "memory_of": "the process that serves /metrics"}
    ctx.note(key, probe=PROBE, what="idle", **detail)


async def _scrape(ctx: ProbeContext) -> EngineSample | None:
    try:
        async with asyncio.timeout(_SCRAPE_S):
            return await ctx.engine.sample(wanted=WATCHED)
    except (EngineMisbehaved, TimeoutError):
        return None


def _rss(samples: Iterable[EngineSample]) -> int | None:
    found = [value for sample in samples for name, value in sample.values.items() if name.partition("{")[0] == _RSS]
    return round(found[-1]) if found else None


def _same(samples: list[EngineSample]) -> bool:
    return len({sample.kv_usage for sample in samples}) == 1


def _tokens(done: Window) -> int:
    return sum(_used(body) for _, body in done.requests)


def _used(body: RequestBody) -> int:
    usage = body.timeline.usage
    return (body.timeline.prompt_tokens_sent or 0) + ((usage.completion_tokens or 0) if usage is not None else 0)


def _least_tokens(plan: SustainedPlan, output_tokens: int) -> int:
    longs = 0 if plan.long_tokens is None else plan.longs_per_window * (plan.long_tokens + output_tokens)
    return plan.concurrency * (plan.short_tokens + output_tokens) + longs


def _key(index: int) -> str:
    return f"{PROBE}/{index:04d}"
