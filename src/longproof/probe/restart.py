"""Restart: does the server do the same after it was started anew?

    before      key cells: two lengths cold, the largest request, a warm pair, one token too many
    restart     our own process, or the user's command; then the first request, again and again until it is answered
    facts       what the server tells of itself now, against what it told at the beginning
    after       the same key cells
    idle        and once more after it stood idle, where that was asked for

Both arms are asked by this probe, one right before and one right after, so that what the run did in between is no
effect of the restart. The first request after the start is kept apart: engines compile and allocate on it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from longproof.asking.context import Cell, ProbeContext, prompt_sha256
from longproof.asking.prompts import LengthUnproven
from longproof.asking.recovery import EngineGone, check_alive
from longproof.asking.restarter import Restarter, RestartFailed
from longproof.clock import NS_PER_S
from longproof.domain.events import RequestTimeline
from longproof.domain.outcome import Outcome, classify, completed_as_asked
from longproof.domain.request import GenerationRequest
from longproof.errors import EngineMisbehaved, LongproofError
from longproof.evidence.fingerprint import differences, fingerprint
from longproof.evidence.records import RequestBody

PROBE = "restart"
BEFORE, AFTER, IDLE = "before", "after", "idle"
_PAUSE_S = 0.25
_NOT_YET = {
    Outcome.UNREACHABLE,
    Outcome.REFUSED_BUSY,
    Outcome.REFUSED_OTHER,
    Outcome.SERVER_ERROR,
    Outcome.NOT_A_STREAM,
    Outcome.CUT,
    Outcome.HUNG,
    Outcome.EMPTY,
}
"""What a server answers that is still loading: nothing, 503 (llama.cpp), a proxy's 502 with a page."""
_STARTED = "process_start_time_seconds"


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPlan:
    """`lengths`: prompts whose speed is compared. `largest_tokens`: the longest prompt that should complete;
    `warm_tokens`: prompt of the warm pair, 0 = none. `limit_tokens`: prompt + output one sequence may have, where
    known: one token more is asked. `deadline_s`: how long the server may take to answer after a restart. `idle_ns`:
    stand idle that long and repeat, 0 = do not.
    """

    lengths: tuple[int, ...]
    largest_tokens: int
    warm_tokens: int = 0
    limit_tokens: int | None = None
    repeats: int = 3
    deadline_s: float = 1_200.0
    idle_ns: int = 0

    @property
    def phases(self) -> tuple[str, ...]:
        """The arms, in order."""
        return (BEFORE, AFTER, IDLE) if self.idle_ns else (BEFORE, AFTER)


def cost(plan: RestartPlan, output_tokens: int) -> tuple[int, int]:
    """Requests and tokens (prompt + output); one token too many is refused or clamped, and counted whole."""
    lengths = [*plan.lengths, plan.largest_tokens, *([plan.warm_tokens] * 2 if plan.warm_tokens else [])]
    edge = [] if plan.limit_tokens is None else [plan.limit_tokens + 1 - output_tokens]
    arm = lengths * plan.repeats + edge
    requests = len(plan.phases) * len(arm) + 1
    tokens = len(plan.phases) * sum(length + output_tokens for length in arm) + min(plan.lengths) + output_tokens
    return requests, tokens


async def run(ctx: ProbeContext, plan: RestartPlan) -> None:
    """All of it. Raises BudgetSpent, and EngineGone when the server does not come back."""
    restarter = ctx.restarter
    if restarter is None:
        ctx.note(f"{PROBE}/none", probe=PROBE, what="no_restarter")
        return
    try:
        await _arm(ctx, plan, BEFORE)
        if not await _restarted(ctx, plan, restarter):
            return
        await _compare_facts(ctx)
        await _arm(ctx, plan, AFTER)
        if plan.idle_ns and ctx.journal.get(f"{PROBE}/idled") is None:
            await asyncio.sleep(plan.idle_ns / NS_PER_S)
            ctx.note(f"{PROBE}/idled", probe=PROBE, what="idled", idle_ns=plan.idle_ns)
        if plan.idle_ns:
            await _arm(ctx, plan, IDLE)
    except LengthUnproven as reason:
        ctx.note(f"{PROBE}/unproven", probe=PROBE, what="length_unproven", reason=str(reason))


async def _arm(ctx: ProbeContext, plan: RestartPlan, phase: str) -> None:
    """The key cells, round by round."""
    for repeat in range(plan.repeats):
        for length in plan.lengths:
            await _ask(ctx, phase, "speed", length, repeat)
        await _ask(ctx, phase, "largest", plan.largest_tokens, repeat)
        if plan.warm_tokens:
            nonce = _pair_nonce(ctx, phase, plan.warm_tokens, repeat)
            for what in ("cold", "again"):
                await _ask(ctx, phase, what, plan.warm_tokens, repeat, nonce=nonce)
    if plan.limit_tokens is not None:
        await _ask(ctx, phase, "edge", plan.limit_tokens + 1 - ctx.protocol.output_tokens, 0)


async def _ask(
    ctx: ProbeContext, phase: str, what: str, length: int, repeat: int, *, nonce: str | None = None
) -> RequestTimeline:
    key = _key(phase, what, length, repeat)
    cell: Cell = {"phase": phase, "what": what, "length": length, "repeat": repeat}
    if nonce is not None:
        cell["nonce"] = nonce

    async def build(own_nonce: str) -> GenerationRequest:
        return await _request(ctx, length, nonce or own_nonce, cold=nonce is None)

    expected = length + ctx.protocol.output_tokens
    body = await ctx.ask(key, probe=PROBE, cell=cell, build=build, expected_tokens=expected, sampled=True)
    await check_alive(ctx, key, probe=PROBE, after=body.timeline)
    return body.timeline


async def _request(ctx: ProbeContext, length: int, nonce: str, *, cold: bool = True) -> GenerationRequest:
    built = await ctx.prompts.exact(length, nonce=nonce)
    return GenerationRequest(
        prompt=built.prompt,
        max_tokens=ctx.protocol.output_tokens,
        prompt_tokens=built.count.total,
        count_source=built.count.source,
        cold=cold and ctx.engine.capabilities.cold,
        seed=ctx.protocol.seed,
        timeout_s=ctx.protocol.request_timeout_s,
    )


def _pair_nonce(ctx: ProbeContext, phase: str, length: int, repeat: int) -> str:
    """The nonce of a warm pair: an earlier session's where its cold request was asked then."""
    key = _key(phase, "cold", length, repeat)
    cold = ctx.journal.get(key)
    return str(cold.cell["nonce"]) if isinstance(cold, RequestBody) else ctx.prompts.nonce(key)


def _key(phase: str, what: str, length: int, repeat: int) -> str:
    return f"{PROBE}/{phase}/{what}/{length}/{repeat}"


async def _restarted(ctx: ProbeContext, plan: RestartPlan, restarter: Restarter) -> bool:
    """Restarts, and waits for the first answer. False where the restart failed and the old server still answers."""
    if ctx.journal.get(f"{PROBE}/first") is not None:
        return True
    if ctx.journal.get(f"{PROBE}/failed") is not None:
        return False
    length = min(plan.lengths)
    request = await _request(ctx, length, ctx.prompts.nonce(f"{PROBE}/first"))  # built while the server can count
    ctx.budget.check(length + ctx.protocol.output_tokens)
    ctx.progress.step(PROBE, f"restart by {restarter.how}")
    started = await _started(ctx)
    begun_ns = ctx.clock.now_ns()
    try:
        done = await restarter.restart()
    except RestartFailed as problem:
        await _failed(ctx, restarter, problem)
        return False
    first, tries = await _first_answer(ctx, plan, request)
    ctx.note(
        f"{PROBE}/restarted/{len(ctx.journal.records)}",
        probe=PROBE,
        what="restarted",
        how=restarter.how,
        took_ns=done.took_ns,
        ready_ns=ctx.clock.now_ns() - begun_ns,
        tries=tries,
        same_process=started is not None and started == await _started(ctx),
        exit_code=-1 if done.exit_code is None else done.exit_code,
        output=done.output_tail,
    )
    if not completed_as_asked(first):
        ctx.note(f"{PROBE}/failed", probe=PROBE, what="not_back", outcome=classify(first).value)
        raise EngineGone(f"after a restart by {restarter.how} no request was answered within {plan.deadline_s:g} s")
    _keep_first(ctx, length, request, first)
    return True


async def _failed(ctx: ProbeContext, restarter: Restarter, problem: RestartFailed) -> None:
    alive = await _alive(ctx)
    ctx.note(
        f"{PROBE}/failed",
        probe=PROBE,
        what="restart_failed",
        how=restarter.how,
        why=problem.what,
        exit_code=-1 if problem.exit_code is None else problem.exit_code,
        output=problem.output_tail,
        alive=alive,
    )
    if not alive:
        raise EngineGone(f"the restart by {restarter.how} failed ({problem.what}), and the server is gone")


async def _first_answer(
    ctx: ProbeContext, plan: RestartPlan, request: GenerationRequest
) -> tuple[RequestTimeline, int]:
    """The first request that is answered, and how many were sent: what a server that is still loading says to those
    before is no fact about it."""
    until_ns, tries = ctx.clock.now_ns() + round(plan.deadline_s * NS_PER_S), 0
    while True:
        timeline = await ctx.engine.send(request)
        tries += 1
        if classify(timeline) not in _NOT_YET or ctx.clock.now_ns() >= until_ns:
            return timeline, tries
        await asyncio.sleep(_PAUSE_S)


def _keep_first(ctx: ProbeContext, length: int, request: GenerationRequest, timeline: RequestTimeline) -> None:
    body = RequestBody(
        probe=PROBE,
        cell={"phase": AFTER, "what": "first", "length": length, "repeat": 0},
        timeline=timeline,
        prompt_sha256=prompt_sha256(request.prompt),
        exact_output=request.exact_output and ctx.engine.capabilities.exact_output,
    )
    ctx.journal.append(f"{PROBE}/first", body)
    ctx.progress.finished(f"{PROBE}/first", body)


async def _compare_facts(ctx: ProbeContext) -> None:
    """What the server tells of itself now, once."""
    if ctx.journal.get(f"{PROBE}/facts") is not None:
        return
    try:
        now = fingerprint(await ctx.engine.introspect())
    except LongproofError as problem:  # also a TargetError: the model has another name now
        ctx.note(f"{PROBE}/facts", probe=PROBE, what="facts_unknown", reason=str(problem))
        return
    first = fingerprint(ctx.deployment)
    for name, was, is_now in differences(first, now):
        ctx.note(f"{PROBE}/fact/{name}", probe=PROBE, what="fact_changed", name=name, before=was, after=is_now)
    ctx.note(f"{PROBE}/facts", probe=PROBE, what="facts_compared", facts=len(now.facts), digest=now.digest)


async def _alive(ctx: ProbeContext) -> bool:
    try:
        async with asyncio.timeout(max(5.0, ctx.protocol.request_timeout_s)):
            return await ctx.engine.alive()
    except TimeoutError:
        return False


async def _started(ctx: ProbeContext) -> float | None:
    """When the process that answers says that it was started; None where it does not."""
    if not ctx.engine.capabilities.metrics:
        return None
    try:
        sample = await ctx.engine.sample(wanted=frozenset({_STARTED}))
    except EngineMisbehaved:
        return None
    return sample.values.get(_STARTED)
