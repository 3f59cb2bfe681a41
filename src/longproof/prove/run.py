"""The main job, in one straight line: from a target to sealed evidence.

    target ─▶ engine ─▶ introspect ─▶ protocol ─▶ header on disk ─▶ probes in order ─▶ engine closed ─▶ seal

Everything decided is on disk before the first request; everything observed is on disk before the next one. Run again
with the same directory, it goes on where it stopped.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol as Port

import longproof
from longproof.asking.arrivals import Replay, replay
from longproof.asking.context import BudgetSpent, ProbeContext, Progress
from longproof.asking.prompts import PromptBuilder
from longproof.asking.recovery import EngineGone, check_alive
from longproof.asking.restarter import Restarter, restarter_for
from longproof.asking.workers import Workers, load_workers
from longproof.clock import Clock
from longproof.domain.request import ChatMessage, ChatPrompt, GenerationRequest, Route, TextPrompt
from longproof.engines.base import Engine
from longproof.engines.refused_fields import described
from longproof.errors import EngineMisbehaved
from longproof.evidence.disk import not_writable
from longproof.evidence.fingerprint import fingerprint
from longproof.evidence.records import FORMAT, Header, NoteBody, Protocol, Step
from longproof.evidence.store import Journal
from longproof.plan.traces import read_trace
from longproof.prove.budget import Counted, RunBudget, require_useful
from longproof.prove.cost import Cost, Fit, duration_ns, fit, smallest_unit_tokens, step_cost
from longproof.prove.options import ProveOptions
from longproof.prove.protocol import plan_protocol
from longproof.prove.resume import open_journal
from longproof.prove.steps import run_step
from longproof.prove.target import Target, UrlTarget

_CALIBRATION_TOKENS = 384
_CALIBRATIONS = 3
_MOST_TRACE_NS = 600_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What a run will cost, told before it starts. Time is extrapolated from one short request: longer prompts are
    slower per token, so it is a lower bound for long windows. `dropped`: steps that the budget does not hold, and
    why."""

    cost: Cost
    ns: float
    dropped: dict[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True, kw_only=True)
class ProveResult:
    """Where the evidence lies, and whether the protocol ran to its end."""

    directory: Path
    complete: bool
    stopped_by: str | None


class Watcher(Progress, Port):
    """Progress, plus what a person is told before the run."""

    def planned(self, header: Header, directory: Path, *, resumed: bool) -> None:
        """The header is on disk; nothing was sent yet."""
        ...

    def estimated(self, estimate: Estimate) -> None:
        """Calibration is over; the probes begin."""
        ...


async def prove(
    target: Target, options: ProveOptions, directory: Path, *, clock: Clock, watcher: Watcher
) -> ProveResult:
    """Proves a target into `directory`. Raises UserError for what the user must change; what the server does is
    evidence."""
    try:
        directory.mkdir(parents=True, exist_ok=True)  # noqa: ASYNC240 - once, before anything runs beside it
    except OSError as problem:
        raise not_writable(directory, problem) from problem
    trace = _trace(options)
    engine = await target.open(directory / "engine.log")
    try:
        restarter = restarter_for(engine, options.load.restart_command)
        deployment = await engine.introspect()
        protocol = plan_protocol(deployment, engine.capabilities, options, trace)
        header = Header(
            format=FORMAT,
            longproof_version=longproof.__version__,
            target=target.label,
            fingerprint=fingerprint(deployment),
            deployment=deployment,
            protocol=protocol,
        )
        with open_journal(directory, header) as journal:
            watcher.planned(header, directory, resumed=bool(journal.records))
            async with _workers(engine, target, options, clock) as workers:
                stopped_by = await _run(engine, journal, clock, watcher, restarter, workers)
            await engine.aclose()
            journal.seal(complete=stopped_by is None)
    finally:
        await engine.aclose()
    return ProveResult(directory=directory, complete=stopped_by is None, stopped_by=stopped_by)


def _trace(options: ProveOptions) -> Replay | None:
    """The trace that the background load follows, for as long as a window may last."""
    path = options.load.trace
    if path is None:
        return None
    return replay(read_trace(Path(path)), source=f"trace {Path(path).name}", for_ns=_MOST_TRACE_NS)


@asynccontextmanager
async def _workers(
    engine: Engine, target: Target, options: ProveOptions, clock: Clock
) -> AsyncGenerator[Workers | None, None]:
    """The processes that send under load, where the user wants several."""
    if options.load.workers < 2:
        yield None
        return
    api_key = target.api_key if isinstance(target, UrlTarget) else None
    async with load_workers(engine.url, options.load.workers, api_key=api_key, clock=clock) as workers:
        yield workers


async def _run(
    engine: Engine,
    journal: Journal,
    clock: Clock,
    watcher: Watcher,
    restarter: Restarter | None,
    workers: Workers | None,
) -> str | None:
    """All steps; returns why it stopped early, or None."""
    protocol = journal.header.protocol
    budget = RunBudget(protocol, journal.records)
    session = journal.start_session(clock)
    ctx = ProbeContext(
        engine=engine,
        deployment=journal.header.deployment,
        protocol=protocol,
        journal=journal,
        prompts=PromptBuilder(engine, route=protocol.route, seed=protocol.seed, salt=session.salt),
        budget=budget,
        progress=Counted(watcher, budget),
        clock=clock,
        restarter=restarter,
        workers=workers,
    )
    try:
        await calibrate(ctx, budget)
        dropped = _dropped(ctx, budget, watcher)
        for step in protocol.steps:
            if step.probe not in dropped or _regained(ctx, budget, step, dropped):
                await _within_budget(ctx, step)
    except (EngineGone, EngineMisbehaved) as reason:  # the latter: it could not even be asked to count any more
        ctx.note(f"run/engine_gone/{len(journal.records)}", probe="run", what="engine_gone", reason=str(reason))
        return str(reason)
    return None


async def _within_budget(ctx: ProbeContext, step: Step) -> None:
    """A step that the budget cuts short is noted; later, cheaper steps still get their turn."""
    try:
        await run_step(ctx, step)
    except BudgetSpent as reason:
        ctx.note(f"run/budget/{step.probe}", probe=step.probe, what="budget_spent", reason=str(reason))


def _dropped(ctx: ProbeContext, budget: RunBudget, watcher: Watcher) -> dict[str, str]:
    """The steps that the budget does not hold, and why, decided once: a resumed run keeps to what the first session
    said."""
    protocol, journal = ctx.protocol, ctx.journal
    if journal.get("run/fit") is None:
        found = _fit(budget, protocol)
        for probe, reason in found.dropped.items():
            ctx.note(f"run/dropped/{probe}", probe=probe, what="dropped", reason=reason)
        ctx.note("run/fit", probe="run", what="fit", kept=",".join(step.probe for step in found.kept))
    dropped = {
        record.body.probe: str(record.body.detail["reason"])
        for record in journal.records
        if isinstance(record.body, NoteBody) and record.body.what == "dropped"
    }
    steps = tuple(step for step in protocol.steps if step.probe not in dropped)
    cost = sum((step_cost(step, protocol.output_tokens) for step in steps), Cost(requests=0, tokens=0))
    watcher.estimated(Estimate(cost=cost, ns=duration_ns(cost, budget.predict_ns), dropped=dropped))
    return dropped


def _regained(ctx: ProbeContext, budget: RunBudget, step: Step, dropped: dict[str, str]) -> bool:
    """Whether what the steps before it left over holds this one after all, with those still to come that were kept, and
    those not kept that would be dropped later than it."""
    key = f"run/regained/{step.probe}"
    if ctx.journal.get(key) is not None:
        return True
    to_come = ctx.protocol.steps[ctx.protocol.steps.index(step) :]
    found = _fit(budget, replace(ctx.protocol, steps=to_come))
    if step.probe in found.dropped:
        return False
    ctx.note(key, probe=step.probe, what="regained", after=dropped[step.probe])
    return True


def _fit(budget: RunBudget, protocol: Protocol) -> Fit:
    return fit(
        protocol,
        tokens_left=None if protocol.budget_tokens is None else protocol.budget_tokens - budget.spent_tokens,
        ns_left=None if protocol.budget_ns is None else float(protocol.budget_ns - budget.spent_ns),
        predict=budget.predict_ns,
    )


async def calibrate(ctx: ProbeContext, budget: RunBudget) -> None:
    """Three short requests, so that the estimate speaks of this server. They warm the engine up and enter no
    statistic."""
    smallest = smallest_unit_tokens(ctx.protocol)
    require_useful(ctx.protocol, smallest, 0)
    tokens = min(_CALIBRATION_TOKENS, smallest)

    async def build(nonce: str) -> GenerationRequest:
        built = await ctx.prompts.exact(tokens, nonce=nonce)
        return GenerationRequest(
            prompt=built.prompt,
            max_tokens=ctx.protocol.output_tokens,
            prompt_tokens=built.count.total,
            count_source=built.count.source,
            cold=True,
            seed=ctx.protocol.seed,
            timeout_s=ctx.protocol.request_timeout_s,
        )

    for repeat in range(_CALIBRATIONS):
        key, cell = f"calibration/{repeat}", {"length": tokens, "repeat": repeat}
        answer = await ctx.ask_if_provable(key, probe="calibration", cell=dict(cell), build=build, expected_tokens=0)
        if answer is not None:
            await check_alive(ctx, key, probe="calibration", after=answer.timeline)
        else:
            await _ask_plainly(ctx)
    refused = ctx.engine.capabilities.fields_refused
    if refused:
        ctx.note("run/fields_refused", probe="run", what="fields_refused", fields=described(refused))
    require_useful(ctx.protocol, smallest, budget.predict_ns(smallest))


async def _ask_plainly(ctx: ProbeContext) -> None:
    """One short request of no promised length, once: where no prompt can be counted, what the server does with any
    request at all (no usage, a refusal, no stream) is evidence of its own."""
    words = "Name three colours."

    async def build(nonce: str) -> GenerationRequest:  # noqa: ARG001 - nothing is timed, so nothing need be fresh
        chat = ctx.protocol.route is Route.CHAT
        return GenerationRequest(
            prompt=ChatPrompt(messages=(ChatMessage(role="user", content=words),)) if chat else TextPrompt(text=words),
            max_tokens=ctx.protocol.output_tokens,
            seed=ctx.protocol.seed,
            timeout_s=ctx.protocol.request_timeout_s,
        )

    await ctx.ask("calibration/plain", probe="calibration", cell={"arm": "plain"}, build=build, expected_tokens=0)
