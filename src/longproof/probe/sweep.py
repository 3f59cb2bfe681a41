"""Sweep: how do times change with length, with how many run at once, and with what is cached?

    round 0   cell A  cell B  cell C  …       cell = length × concurrency × {cold, hit}
    round 1   …  cell C  cell B  cell A       the other way round: a server that drifts does not make a drift
    round 2   cell A  cell B  cell C  …       look like an effect of the cell

A cell of a round is a closed loop: `concurrency` requests always under way until as many were sent as every cell gets.
`cold`: fresh prompts. `hit`: one prefix, sent once before, then the same prefix again and again with new tails.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from longproof.asking.context import Cell, ProbeContext
from longproof.asking.lot import lot_of
from longproof.asking.prompts import LengthUnproven
from longproof.asking.recovery import check_alive
from longproof.asking.stock import PromptStock
from longproof.asking.window import Load, LoadRequest, run_window
from longproof.clock import NS_PER_S
from longproof.domain.measure import value_or_none
from longproof.domain.outcome import Outcome, classify
from longproof.domain.request import GenerationRequest
from longproof.evidence.records import SessionBody, WindowBody
from longproof.evidence.windows import Window
from longproof.probe.speed import note_shared_prefix

PROBE = "sweep"
CACHES = ("cold", "hit")
_TAIL_PART = 16
_LEAST_TAIL_TOKENS = 64
Prompts: TypeAlias = Callable[[int], LoadRequest]
_FINE = {Outcome.COMPLETED, Outcome.SHORT, Outcome.REFUSED_BUSY, Outcome.REFUSED_LENGTH, Outcome.REFUSED_OTHER}


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPlan:
    """Every length (tokens of the whole prompt) with every concurrency, cold and with a known prefix, `rounds` times.

    Each cell sends `per_round` requests in each round, at least as many as its concurrency. `slo_ttft_s`,
    `slo_tpot_s`: what a good answer is; without either no goodput is told.
    """

    lengths: tuple[int, ...]
    concurrencies: tuple[int, ...]
    rounds: int
    per_round: int
    slo_ttft_s: float | None = None
    slo_tpot_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepCell:
    """One combination."""

    length: int
    concurrency: int
    cache: str

    def key(self, round_: int) -> str:
        return f"{PROBE}/{self.length}/c{self.concurrency}/{self.cache}/{round_}"

    def needs_tokens(self, output_tokens: int) -> int:
        """KV tokens of all that runs at once; a known prefix is held once."""
        tail = min(self.length, max(_LEAST_TAIL_TOKENS, self.length // _TAIL_PART))
        own = self.length if self.cache == "cold" else tail
        return self.length - own + self.concurrency * (own + output_tokens)


def cells(plan: SweepPlan) -> tuple[SweepCell, ...]:
    """All cells, in the order of the first round."""
    return tuple(
        SweepCell(length=length, concurrency=concurrency, cache=cache)
        for length in sorted(set(plan.lengths))
        for concurrency in sorted(set(plan.concurrencies))
        for cache in CACHES
    )


def cost(plan: SweepPlan, output_tokens: int) -> tuple[int, int]:
    """(requests, tokens) of all cells, the prompts that make prefixes known included."""
    requests, tokens = 0, 0
    for cell in cells(plan):
        sent = max(plan.per_round, cell.concurrency) + (cell.cache == "hit")
        requests += plan.rounds * sent
        tokens += plan.rounds * sent * (cell.length + output_tokens)
    return requests, tokens


async def run(ctx: ProbeContext, plan: SweepPlan) -> None:
    """Runs all cells that fit. Raises BudgetSpent between two windows, and EngineGone."""
    await note_shared_prefix(ctx, PROBE)
    fitting = [cell for cell in cells(plan) if _fits(ctx, cell)]
    stocks: dict[int, PromptStock | None] = {}
    for round_ in range(plan.rounds):
        for cell in fitting if round_ % 2 == 0 else reversed(fitting):
            if isinstance(ctx.journal.get(cell.key(round_)), WindowBody):
                continue
            if cell.length not in stocks:
                stocks[cell.length] = await _stock(ctx, cell.length)
            stock = stocks[cell.length]
            if stock is not None:
                await _ask_cell(ctx, plan, cell, round_, stock)


def _fits(ctx: ProbeContext, cell: SweepCell) -> bool:
    """Whether the engine's own KV pool holds what the cell runs at once: beyond it only the queue would be measured."""
    capacity = value_or_none(ctx.deployment.kv_capacity_tokens)
    need = cell.needs_tokens(ctx.protocol.output_tokens)
    if capacity is None or need <= capacity:
        return True
    ctx.note(
        f"{PROBE}/does_not_fit/{cell.length}/c{cell.concurrency}/{cell.cache}",
        probe=PROBE,
        what="does_not_fit",
        length=cell.length,
        concurrency=cell.concurrency,
        cache=cell.cache,
        needs_tokens=need,
        capacity_tokens=capacity,
    )
    return False


async def _stock(ctx: ProbeContext, length: int) -> PromptStock | None:
    try:
        return await ctx.prompts.stock(length, key=f"{PROBE}/{length}")
    except LengthUnproven as reason:
        ctx.note(f"{PROBE}/{length}/unproven", probe=PROBE, what="length_unproven", reason=str(reason), length=length)
        return None


async def _ask_cell(ctx: ProbeContext, plan: SweepPlan, cell: SweepCell, round_: int, stock: PromptStock) -> None:
    sent = max(plan.per_round, cell.concurrency)
    key = cell.key(round_)
    try:
        prompts = _fresh(ctx, plan, cell, round_, stock) if cell.cache == "cold" else await _known(ctx, cell, key, sent)
    except LengthUnproven as reason:
        ctx.note(f"{key}/unproven", probe=PROBE, what="length_unproven", reason=str(reason), length=cell.length)
        return
    done = await run_window(
        ctx,
        key,
        probe=PROBE,
        cell={"length": cell.length, "concurrency": cell.concurrency, "cache": cell.cache, "round": round_},
        load=_load(ctx, plan, cell, sent, prompts),
        expected_tokens=sent * (cell.length + ctx.protocol.output_tokens),
        expected_ns=0,
    )
    await _check(ctx, key, done)


def _load(ctx: ProbeContext, plan: SweepPlan, cell: SweepCell, sent: int, prompts: Prompts) -> Load:
    slo: Cell = {}
    if plan.slo_ttft_s is not None:
        slo["slo_ttft_s"] = plan.slo_ttft_s
    if plan.slo_tpot_s is not None:
        slo["slo_tpot_s"] = plan.slo_tpot_s
    return Load(
        concurrency=cell.concurrency,
        stock=prompts,
        for_ns=round(sent * ctx.protocol.request_timeout_s * NS_PER_S),
        most_requests=sent,
        describe={"concurrency": cell.concurrency, "requests": sent, **slo},
    )


def _fresh(ctx: ProbeContext, plan: SweepPlan, cell: SweepCell, round_: int, stock: PromptStock) -> Prompts:
    """Prompts that nobody has sent before."""
    first, lot = _number(plan, cell, round_), lot_of(ctx, stock)

    def ith(i: int) -> LoadRequest:
        return LoadRequest(name=str(i), cell={}, request=lot.request(first + i), nonce=stock.nonce_of(first + i))

    return ith


async def _known(ctx: ProbeContext, cell: SweepCell, key: str, sent: int) -> Prompts:
    """Sends the prefix once, then gives the same prefix with new tails. All prompts are built before: the engine's
    counting must not stand beside what is measured. A window that a crash tore has its prefix sent again: the cache may
    be a new one."""
    sessions = sum(isinstance(record.body, SessionBody) for record in ctx.journal.records)
    nonce = ctx.prompts.nonce(f"{key}/prefix/{sessions}")

    async def build(tail: str | None) -> GenerationRequest:
        built = await ctx.prompts.exact(cell.length, nonce=nonce, tail_nonce=tail)
        return GenerationRequest(
            prompt=built.prompt,
            max_tokens=ctx.protocol.output_tokens,
            prompt_tokens=built.count.total,
            count_source=built.count.source,
            seed=ctx.protocol.seed,
            timeout_s=ctx.protocol.request_timeout_s,
        )

    async def first(_: str) -> GenerationRequest:
        return await build(None)

    requests = [await build(str(i)) for i in range(sent)]
    primer = await ctx.ask(
        f"{key}/primer/{sessions}",
        probe=PROBE,
        cell={"length": cell.length, "cache": "primer"},
        build=first,
        expected_tokens=cell.length + ctx.protocol.output_tokens,
    )
    await check_alive(ctx, f"{key}/primer/{sessions}", probe=PROBE, after=primer.timeline)
    return lambda i: LoadRequest(name=str(i), cell={}, request=requests[i], nonce=nonce)


async def _check(ctx: ProbeContext, key: str, done: Window) -> None:
    broken = [body.timeline for _, body in done.requests if classify(body.timeline) not in _FINE]
    if broken:
        await check_alive(ctx, key, probe=PROBE, after=broken[-1])


def _number(plan: SweepPlan, cell: SweepCell, round_: int) -> int:
    """Where this window's prompts begin in the stock of its length: no prompt is sent twice."""
    most = max(plan.per_round, *plan.concurrencies)
    place = sorted(set(plan.concurrencies)).index(cell.concurrency)
    return (round_ * len(set(plan.concurrencies)) + place) * most
