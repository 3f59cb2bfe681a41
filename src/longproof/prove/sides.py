"""Two servers asked in turns, each with evidence of its own: ``DIR/a`` and ``DIR/b``.

A ─▶ introspect ─┐                         ┌─▶ DIR/a sealed
                 ├─ one question, A B B A ─┤
B ─▶ introspect ─┘                         └─▶ DIR/b sealed

The questions are timed prompts, the same bytes for both; or the items of a quality curve, where quality alone is asked.
Run again with the same directory, it goes on where it stopped.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import longproof
from longproof.asking.context import BudgetSpent, ProbeContext
from longproof.asking.prompts import LengthUnproven, PromptBuilder
from longproof.asking.recovery import EngineGone
from longproof.clock import Clock
from longproof.domain.deployment import Deployment
from longproof.domain.request import Route
from longproof.engines.base import Engine
from longproof.errors import EngineMisbehaved, TargetError, UsageError
from longproof.evidence.disk import not_writable
from longproof.evidence.fingerprint import fingerprint
from longproof.evidence.records import FORMAT, IN_TURNS, Header, Protocol, RequestBody, Step
from longproof.evidence.store import Journal
from longproof.probe import sides
from longproof.probe.sides import SidesPlan
from longproof.prove.budget import Counted, RunBudget, require_useful
from longproof.prove.cost import cost_of, duration_ns
from longproof.prove.options import ProveOptions
from longproof.prove.parameters import plan_of
from longproof.prove.protocol import default_lengths, window_of
from longproof.prove.quality_step import quality_step
from longproof.prove.resume import is_complete, open_journal, require_same_question
from longproof.prove.run import Estimate, Watcher, calibrate
from longproof.prove.target import Target
from longproof.quality.judging import PROBE as QUALITY
from longproof.quality.plan import QualityPlan
from longproof.quality.run import run_in_turns

_MOST_LENGTHS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class SidesResult:
    """Where the two evidences lie, and why the run stopped early, if it did."""

    a: Path
    b: Path
    stopped_by: str | None


async def ask_sides(
    a: Target, b: Target, options: ProveOptions, directory: Path, *, clock: Clock, watcher: Watcher
) -> SidesResult:
    """Asks both targets in turns, or goes on where a run in `directory` stopped. The budget is that of both together;
    spent, it ends the run in order, between two questions. Raises UserError for what the user must change; what the
    servers do is evidence."""
    places = places_of(directory)
    for place in places:
        try:
            place.mkdir(parents=True, exist_ok=True)
        except OSError as problem:
            raise not_writable(place, problem) from problem
    engines: list[Engine] = []
    try:
        for target, place in zip((a, b), places, strict=True):
            engines.append(await target.open(place / "engine.log"))
        deployments = [await engine.introspect() for engine in engines]
        protocol = _protocol(deployments, engines, options)
        with ExitStack() as journals:
            both = [
                journals.enter_context(open_journal(place, _header(target, deployment, protocol)))
                for target, place, deployment in zip((a, b), places, deployments, strict=True)
            ]
            watcher.planned(both[0].header, directory, resumed=any(journal.records for journal in both))
            stopped_by = await _run(engines, both, clock, watcher)
            for engine, journal in zip(engines, both, strict=True):
                await engine.aclose()
                journal.seal(complete=stopped_by is None)
    finally:
        for engine in engines:
            await engine.aclose()
    return SidesResult(a=places[0], b=places[1], stopped_by=stopped_by)


def asks_quality(options: ProveOptions) -> bool:
    """Whether questions of quality are asked, and not timed prompts."""
    return options.only == (QUALITY,)


def places_of(directory: Path) -> tuple[Path, Path]:
    """Where the two evidences of one comparison lie."""
    return directory / "a", directory / "b"


def is_finished(directory: Path) -> bool:
    """Whether a comparison lies there that ran to its end, on both sides."""
    return all(is_complete(place) for place in places_of(directory))


def require_same_comparison(directory: Path, a: Target, b: Target, options: ProveOptions) -> None:
    """EvidenceError when a finished comparison in `directory` is another than the one asked for now."""
    wanted = options if asks_quality(options) else replace(options, only=(sides.PROBE,))
    for place, target in zip(places_of(directory), (a, b), strict=True):
        require_same_question(place, target.label, wanted)


async def _run(engines: list[Engine], journals: list[Journal], clock: Clock, watcher: Watcher) -> str | None:
    """All questions; returns why it stopped early, or None. Both sides share the first one's salt, and so its nonces:
    the same question is the same bytes."""
    protocol = journals[0].header.protocol
    budget = RunBudget(protocol, (record for journal in journals for record in journal.records))
    salt = journals[0].start_session(clock).salt
    journals[1].start_session(clock)
    ctxs = [
        ProbeContext(
            engine=engine,
            deployment=journal.header.deployment,
            protocol=journal.header.protocol,
            journal=journal,
            prompts=PromptBuilder(engine, route=protocol.route, seed=protocol.seed, salt=salt),
            budget=budget,
            progress=Counted(watcher, budget),
            clock=clock,
        )
        for engine, journal in zip(engines, journals, strict=True)
    ]
    (step,) = protocol.steps
    try:
        if step.probe == QUALITY:
            await _ask_quality(ctxs, step, budget, watcher)
        else:
            await _ask_times(ctxs, step, budget, watcher)
    except BudgetSpent as reason:
        for ctx in ctxs:
            ctx.note(f"run/budget/{step.probe}", probe=step.probe, what="budget_spent", reason=str(reason))
    except (EngineGone, EngineMisbehaved, LengthUnproven) as reason:
        for ctx in ctxs:
            at = len(ctx.journal.records)
            ctx.note(f"run/engine_gone/{at}", probe="run", what="engine_gone", reason=str(reason))
        return str(reason)
    return None


async def _ask_times(ctxs: list[ProbeContext], step: Step, budget: RunBudget, watcher: Watcher) -> None:
    protocol, plan = ctxs[0].protocol, plan_of(SidesPlan, step.parameters)
    smallest = 4 * (min(plan.lengths) + protocol.output_tokens)  # both asked, both asked again
    require_useful(protocol, smallest, 0)
    await sides.warm_up(ctxs[0], ctxs[1], plan)
    cost = cost_of(protocol)
    if sum(isinstance(record.body, RequestBody) for record in ctxs[0].journal.records) <= 1:
        require_useful(protocol, smallest + budget.spent_tokens, budget.spent_ns + budget.predict_ns(smallest, 4))
    watcher.estimated(Estimate(cost=cost, ns=duration_ns(cost, budget.predict_ns)))
    await sides.run(ctxs[0], ctxs[1], plan)


async def _ask_quality(ctxs: list[ProbeContext], step: Step, budget: RunBudget, watcher: Watcher) -> None:
    for ctx in ctxs:
        ctx.note("run/in_turns", probe="run", what=IN_TURNS)
        await calibrate(ctx, budget)
    one = cost_of(ctxs[0].protocol)
    watcher.estimated(Estimate(cost=one + one, ns=duration_ns(one + one, budget.predict_ns)))
    await run_in_turns(ctxs, plan_of(QualityPlan, step.parameters))


def _protocol(deployments: list[Deployment], engines: list[Engine], options: ProveOptions) -> Protocol:
    served = min(window_of(deployment, options).served_tokens for deployment in deployments)
    step = _quality(served, options) if asks_quality(options) else _times(served, options)
    routes = [Route.CHAT] if all(engine.capabilities.chat for engine in engines) else []
    routes += [Route.COMPLETIONS] if all(engine.capabilities.completions for engine in engines) else []
    if not routes:
        raise TargetError("the two servers have no route in common", advice="compare servers that both serve chat")
    return Protocol(
        seed=options.seed,
        route=options.route or routes[0],
        context_tokens=options.context_tokens,
        repeats=options.repeats,
        output_tokens=options.output_tokens,
        request_timeout_s=options.timeout_s or 600.0,
        budget_ns=options.budget_ns,
        budget_tokens=options.budget_tokens,
        steps=(step,),
        choices=options.quality.words(),
    )


def _times(served: int, options: ProveOptions) -> Step:
    lengths = options.lengths or default_lengths(served, options.output_tokens)[-_MOST_LENGTHS:]
    if not lengths or max(lengths) + options.output_tokens > served:
        raise UsageError(
            f"both servers take {served:,} tokens at most, and {max(lengths, default=0):,} + {options.output_tokens:,}"
            " were asked for",
            advice="choose shorter --lengths",
        )
    return Step(probe=sides.PROBE, parameters={"lengths": list(lengths), "rounds": options.repeats})


def _quality(served: int, options: ProveOptions) -> Step:
    if options.quality.certify:
        raise UsageError(
            "--certify stops each side on its own answers, and then they are no pairs",
            advice="leave it out here; prove both with --certify and compare the two directories",
        )
    step = quality_step(served, options)
    if isinstance(step, str):
        raise UsageError(f"neither side can be asked about quality: {step}", advice="leave out --only quality")
    return step


def _header(target: Target, deployment: Deployment, protocol: Protocol) -> Header:
    return Header(
        format=FORMAT,
        longproof_version=longproof.__version__,
        target=target.label,
        fingerprint=fingerprint(deployment),
        deployment=deployment,
        protocol=protocol,
    )
