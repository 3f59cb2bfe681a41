"""Reclaim: does memory come back when a client goes away?

One cycle, watched by the engine's gauges every few tens of milliseconds:

    idle ── send ──────────── leave ────────────── idle again?
             │ queued      while it waits behind others
             │ at_once     a moment after sending
             │ prefill     after part of the time its prefill takes
             │ decode      after some chunks

Rounds of all stages are repeated: a leak of a few blocks a cancel shows as a floor that rises. After the last round of
each stage the largest request is asked at once, and once more at the very end: gauges can be wrong, admission cannot.
An abort counter proves nothing: vLLM 0.32 counts a disconnect nowhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from longproof.asking.context import Cell, ProbeContext
from longproof.asking.lot import lot_of
from longproof.asking.prompts import LengthUnproven
from longproof.asking.recovery import check_alive
from longproof.asking.rest import Rest, sample_or_none, wait_for_rest
from longproof.asking.stock import PromptStock
from longproof.asking.window import Cancel, Load, LoadRequest, run_window
from longproof.domain.deployment import Deployment
from longproof.domain.events import RequestTimeline
from longproof.domain.measure import value_or_none
from longproof.domain.outcome import completed_as_asked
from longproof.domain.request import GenerationRequest
from longproof.evidence.records import RequestBody, WindowBody

PROBE = "reclaim"
By = Literal["disconnect", "abort"]
_S = 1_000_000_000
_AT_ONCE_NS = 5_000_000
_PREFILL_SHARE = 0.6
_DECODE_CHUNKS = 6
_BASELINE_SAMPLES = 5
_IDLE_REPEATS = 3
_QUEUE_AFTER_NS = 100_000_000
_QUEUED_FOR_NS = 300_000_000
_MOST_BLOCKERS = 8
_NUDGE_TOKENS = 4
_AGAIN = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ReclaimPlan:
    """`length_tokens`: prompt of the requests that are cancelled; `decode_tokens`: output they ask for, so many that an
    engine that goes on computing is seen to. `largest_tokens`: prompt of the request that must fit afterwards, where
    the boundary's records know no larger one. `cycles`: rounds. `blockers`: how many such requests fill the engine, 0 =
    nothing is cancelled in a queue. `abort`: cancel by the engine's endpoint too. `slow_s`: longer than this is slow.
    """

    length_tokens: int
    largest_tokens: int
    decode_tokens: int = 128
    cycles: int = 3
    blockers: int = 0
    abort: bool = False
    slow_s: float = 5.0
    sample_every_s: float = 0.03

    def stages(self) -> tuple[tuple[str, By], ...]:
        """(stage, how we leave) of one round, in order."""
        left = ("queued", "at_once", "prefill", "decode") if self.blockers else ("at_once", "prefill", "decode")
        aborted = ("prefill", "decode") if self.abort else ()
        return (*((stage, "disconnect") for stage in left), *((stage, "abort") for stage in aborted))


def blockers_of(deployment: Deployment, request_tokens: int) -> int:
    """How many requests of so many tokens (prompt + output) leave no room for one more; 0 where that is not known, or
    takes more than eight."""
    slots, capacity = value_or_none(deployment.slots), value_or_none(deployment.kv_capacity_tokens)
    enough = [] if slots is None else [slots]
    if capacity is not None and request_tokens > 0:
        enough.append(capacity // request_tokens)
    return min(enough) if enough and 0 < min(enough) <= _MOST_BLOCKERS else 0


def cost(plan: ReclaimPlan, output_tokens: int) -> tuple[int, int]:
    """Requests and tokens (prompt + output) at most: cancelled requests are counted whole."""
    whole = plan.length_tokens + plan.decode_tokens
    per_round = len(plan.stages()) + plan.blockers
    largest = 2 + len([stage for stage, _ in plan.stages() if stage in ("prefill", "decode")]) + 1
    requests = _IDLE_REPEATS + plan.cycles * per_round + largest
    return requests, (_IDLE_REPEATS + plan.cycles * per_round) * whole + largest * (plan.largest_tokens + output_tokens)


async def run(ctx: ProbeContext, plan: ReclaimPlan) -> None:
    """All rounds, then the largest request. Raises BudgetSpent or EngineGone; what it saw is in the records."""
    if ctx.journal.get(f"{PROBE}/done") is not None:
        return
    try:
        probe = await _Reclaim.prepare(ctx, plan)
    except LengthUnproven as reason:
        ctx.note(f"{PROBE}/unproven", probe=PROBE, what="length_unproven", reason=str(reason))
        return
    if probe is None:
        return
    await probe.rounds()
    ctx.note(f"{PROBE}/done", probe=PROBE, what="done", slow_s=plan.slow_s, cycles=plan.cycles)


class _Reclaim:
    """The probe after its references: what an idle engine needs for the requests that will be cancelled."""

    def __init__(
        self, ctx: ProbeContext, plan: ReclaimPlan, short: PromptStock, largest: PromptStock, idle: RequestTimeline
    ) -> None:
        self._ctx = ctx
        self._plan = plan
        self._short = short
        self._largest = largest
        self._left_ones = lot_of(ctx, short, max_tokens=plan.decode_tokens)
        self._next = _IDLE_REPEATS
        self._ttft_ns = idle.ttft_ns or 0
        self._whole_ns = idle.e2e_ns

    @classmethod
    async def prepare(cls, ctx: ProbeContext, plan: ReclaimPlan) -> _Reclaim | None:
        """Prompts and idle references. None where the engine does not even answer these when idle."""
        plan = replace(plan, largest_tokens=_largest_tokens(ctx, plan))
        short = await ctx.prompts.stock(plan.length_tokens, key=f"{PROBE}/short")
        largest = await ctx.prompts.stock(plan.largest_tokens, key=f"{PROBE}/largest")
        idle: RequestTimeline | None = None
        _note_memory(ctx, f"{PROBE}/idle/before")
        for i in range(_IDLE_REPEATS):
            key, cell = f"{PROBE}/idle/{i}", {"arm": "idle", "length": plan.length_tokens, "repeat": i}
            idle = await _ask(ctx, key, dict(cell), short, i, plan.decode_tokens)
            if not completed_as_asked(idle):
                return None
        _note_memory(ctx, f"{PROBE}/idle/after")
        for i in range(_IDLE_REPEATS - 1):
            key, cell = f"{PROBE}/idle_largest/{i}", {"arm": "idle", "length": plan.largest_tokens, "repeat": i}
            await _ask(ctx, key, dict(cell), largest, i, ctx.protocol.output_tokens)
        return None if idle is None else cls(ctx, plan, short, largest, idle)

    async def rounds(self) -> None:
        for cycle in range(self._plan.cycles):
            for stage, by in self._plan.stages():
                await self._cycle(stage, by, cycle)
        for number, (stage, by) in enumerate(self._plan.stages()):
            if stage in ("prefill", "decode"):
                await self._cycle(stage, by, self._plan.cycles, then_largest=True)
                await self._readmit(f"{stage}/{by}", number)
        await self._readmit("end", len(self._plan.stages()))

    async def _cycle(self, stage: str, by: By, cycle: int, *, then_largest: bool = False) -> None:
        """One request that is left, and the engine watched until it rests. `then_largest`: not watched, because the
        next question follows at once."""
        ctx, key = self._ctx, f"{PROBE}/{stage}/{by}/{cycle}"
        cell: Cell = {"stage": stage, "by": by, "cycle": cycle, "length": self._plan.length_tokens}
        if then_largest:
            cell["then"] = "largest"
        quiet_ns = min(max(_S // 4, self._ttft_ns // 2), 3 * _S)
        before = await sample_or_none(ctx) if not isinstance(ctx.journal.get(key), WindowBody) else None
        rest = Rest(base=before, quiet_ns=quiet_ns, clock=ctx.clock)
        settle_ns = round(1.5 * self._whole_ns) + round(self._plan.slow_s * _S) + quiet_ns
        load = Load(
            for_ns=0,
            scheduled=tuple(self._requests(stage, by)),
            settled=None if then_largest or before is None else rest,
            settle_ns=settle_ns,
            describe={"natural_ns": self._whole_ns, "ttft_ns": self._ttft_ns, "slow_s": self._plan.slow_s},
        )
        done = await run_window(
            ctx,
            key,
            probe=PROBE,
            cell=cell,
            load=load,
            expected_tokens=len(load.scheduled) * self._plan.length_tokens,
            expected_ns=self._ttft_ns + quiet_ns + _S,
            sample_every_s=self._plan.sample_every_s,
        )
        for name, body in done.requests:
            await check_alive(ctx, name, probe=PROBE, after=body.timeline)
        _note_memory(ctx, key)
        if not then_largest and before is not None and not rest.reached:
            await self._nudge(key, cell)

    def _requests(self, stage: str, by: By) -> Iterator[LoadRequest]:
        start_ns = round(_BASELINE_SAMPLES * self._plan.sample_every_s * _S)
        if stage != "queued":
            yield self._left("cancelled", start_ns, _cancel(stage, by, self._ttft_ns))
            return
        until_ns = _QUEUE_AFTER_NS + _QUEUED_FOR_NS
        for number in range(self._plan.blockers):
            yield self._left(f"blocker/{number}", start_ns, Cancel(after_ns=until_ns + _QUEUE_AFTER_NS))
        yield self._left("cancelled", start_ns + _QUEUE_AFTER_NS, Cancel(after_ns=_QUEUED_FOR_NS, by=by))

    def _left(self, name: str, at_ns: int, cancel: Cancel) -> LoadRequest:
        number, self._next = self._next, self._next + 1
        return LoadRequest(
            name=name,
            cell={"role": name.partition("/")[0]},
            request=self._left_ones.request(number),
            nonce=self._short.nonce_of(number),
            at_ns=at_ns,
            cancel=cancel,
        )

    async def _nudge(self, key: str, cell: Cell) -> None:
        """Gauges that did not come back may be old: some engines write them only while they work. A short request makes
        them work, and is sampled afterwards."""
        self._next += 1
        number = self._next

        async def build(nonce: str) -> GenerationRequest:  # noqa: ARG001 - the stock's prompts have their own
            return _request(self._ctx, self._short, number, _NUDGE_TOKENS)

        cell = {**cell, "arm": "nudge"}
        tokens = self._plan.length_tokens + _NUDGE_TOKENS
        body = await self._ctx.ask(
            f"{key}/nudge", probe=PROBE, cell=cell, build=build, expected_tokens=tokens, sampled=True
        )
        await check_alive(self._ctx, f"{key}/nudge", probe=PROBE, after=body.timeline)

    async def _readmit(self, name: str, number: int) -> None:
        """The largest request, now. One that is not completed is asked again when the engine rests."""
        ctx, plan = self._ctx, self._plan
        for attempt in range(1 + _AGAIN):
            key = f"{PROBE}/largest/{name}/{attempt}"
            cell: Cell = {"arm": "largest", "after": name, "length": self._largest.length_tokens, "attempt": attempt}
            i = _IDLE_REPEATS + number * (1 + _AGAIN) + attempt
            if completed_as_asked(await _ask(ctx, key, cell, self._largest, i, ctx.protocol.output_tokens)):
                return
            await wait_for_rest(ctx, most_s=plan.slow_s + 1.5 * self._whole_ns / _S)


def _note_memory(ctx: ProbeContext, key: str) -> None:
    """Resident memory of the engine's processes, where they are ours."""
    owned = ctx.engine.memory_bytes()
    if owned is not None:
        ctx.note(f"{key}/memory", probe=PROBE, what="memory", memory_bytes=owned)


def _cancel(stage: str, by: By, ttft_ns: int) -> Cancel:
    if stage == "decode":
        return Cancel(after_chunks=_DECODE_CHUNKS, by=by)
    return Cancel(after_ns=_AT_ONCE_NS if stage == "at_once" else round(_PREFILL_SHARE * ttft_ns), by=by)


def _request(ctx: ProbeContext, stock: PromptStock, number: int, max_tokens: int) -> GenerationRequest:
    return stock.request(
        number,
        max_tokens=max_tokens,
        timeout_s=ctx.protocol.request_timeout_s,
        cold=ctx.engine.capabilities.cold,
        seed=ctx.protocol.seed,
    )


async def _ask(
    ctx: ProbeContext, key: str, cell: Cell, stock: PromptStock, number: int, max_tokens: int
) -> RequestTimeline:
    async def build(nonce: str) -> GenerationRequest:  # noqa: ARG001 - the stock's prompts have their own
        return _request(ctx, stock, number, max_tokens)

    tokens = stock.length_tokens + max_tokens
    body = await ctx.ask(key, probe=PROBE, cell=cell, build=build, expected_tokens=tokens, sampled=True)
    await check_alive(ctx, key, probe=PROBE, after=body.timeline)
    return body.timeline


def _largest_tokens(ctx: ProbeContext, plan: ReclaimPlan) -> int:
    """Prompt tokens of the largest total that the boundary's records show completed in every repeat; else the
    plan's."""
    totals: dict[int, list[bool]] = {}
    for record in ctx.journal.records:
        body = record.body
        if isinstance(body, RequestBody) and body.probe == "boundary":
            totals.setdefault(int(body.cell["total"]), []).append(completed_as_asked(body.timeline))
    proven = [total for total, good in totals.items() if all(good)]
    return max(proven) - ctx.protocol.output_tokens if proven else plan.largest_tokens
