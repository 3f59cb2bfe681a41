"""Two servers asked in turns, each with evidence of its own: ``DIR/a`` and ``DIR/b``.

A ─▶ introspect ─┐                         ┌─▶ DIR/a sealed
                 ├─ one question, A B B A ─┤
B ─▶ introspect ─┘                         └─▶ DIR/b sealed
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import longproof
from longproof.asking.context import ProbeContext, Progress
from longproof.asking.prompts import LengthUnproven, PromptBuilder
from longproof.asking.recovery import EngineGone
from longproof.clock import Clock
from longproof.domain.deployment import Deployment
from longproof.domain.request import Route
from longproof.engines.base import Engine
from longproof.errors import EngineMisbehaved, TargetError, UsageError
from longproof.evidence.fingerprint import fingerprint
from longproof.evidence.reading import holds_run
from longproof.evidence.records import FORMAT, Header, Protocol, Step
from longproof.evidence.store import Journal
from longproof.probe import sides
from longproof.probe.sides import SidesPlan
from longproof.prove.budget import RunBudget
from longproof.prove.options import ProveOptions
from longproof.prove.parameters import plan_of
from longproof.prove.protocol import default_lengths, window_of
from longproof.prove.target import Target

_MOST_LENGTHS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class SidesResult:
    """Where the two evidences lie, and why the run stopped early, if it did."""

    a: Path
    b: Path
    stopped_by: str | None


async def ask_sides(
    a: Target, b: Target, options: ProveOptions, directory: Path, *, clock: Clock, progress: Progress
) -> SidesResult:
    """Asks both targets in turns. Raises UserError for what the user must change; what the servers do is evidence."""
    places = directory / "a", directory / "b"
    for place in places:
        if holds_run(place):
            raise UsageError(f"{place} holds a run already", advice="compare it as it is, or name another --out")
        place.mkdir(parents=True, exist_ok=True)
    engines: list[Engine] = []
    try:
        for target, place in zip((a, b), places, strict=True):
            engines.append(await target.open(place / "engine.log"))
        deployments = [await engine.introspect() for engine in engines]
        protocol = _protocol(deployments, engines, options)
        with ExitStack() as journals:
            both = [
                journals.enter_context(Journal.create(place, _header(target, deployment, protocol)))
                for target, place, deployment in zip((a, b), places, deployments, strict=True)
            ]
            stopped_by = await _run(engines, both, clock, progress)
            for engine, journal in zip(engines, both, strict=True):
                await engine.aclose()
                journal.seal(complete=stopped_by is None)
    finally:
        for engine in engines:
            await engine.aclose()
    return SidesResult(a=places[0], b=places[1], stopped_by=stopped_by)


async def _run(engines: list[Engine], journals: list[Journal], clock: Clock, progress: Progress) -> str | None:
    """All questions; returns why it stopped early, or None. Both sides share the first one's salt, and so its nonces:
    the same question is the same bytes."""
    salt = journals[0].start_session(clock).salt
    journals[1].start_session(clock)
    ctxs = [
        ProbeContext(
            engine=engine,
            deployment=journal.header.deployment,
            protocol=journal.header.protocol,
            journal=journal,
            prompts=PromptBuilder(
                engine, route=journal.header.protocol.route, seed=journal.header.protocol.seed, salt=salt
            ),
            budget=RunBudget(journal.header.protocol),
            progress=progress,
            clock=clock,
        )
        for engine, journal in zip(engines, journals, strict=True)
    ]
    plan = plan_of(SidesPlan, journals[0].header.protocol.steps[0].parameters)
    try:
        await sides.run(ctxs[0], ctxs[1], plan)
    except (EngineGone, EngineMisbehaved, LengthUnproven) as reason:
        for ctx in ctxs:
            ctx.note("run/engine_gone", probe="run", what="engine_gone", reason=str(reason))
        return str(reason)
    return None


def _protocol(deployments: list[Deployment], engines: list[Engine], options: ProveOptions) -> Protocol:
    served = min(window_of(deployment, options).served_tokens for deployment in deployments)
    lengths = options.lengths or default_lengths(served, options.output_tokens)[-_MOST_LENGTHS:]
    if not lengths or max(lengths) + options.output_tokens > served:
        raise UsageError(
            f"both servers take {served:,} tokens at most, and {max(lengths, default=0):,} + {options.output_tokens:,}"
            " were asked for",
            advice="choose shorter --lengths",
        )
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
        budget_ns=None,
        budget_tokens=None,
        steps=(Step(probe=sides.PROBE, parameters={"lengths": list(lengths), "rounds": options.repeats}),),
    )


def _header(target: Target, deployment: Deployment, protocol: Protocol) -> Header:
    return Header(
        format=FORMAT,
        longproof_version=longproof.__version__,
        target=target.label,
        fingerprint=fingerprint(deployment),
        deployment=deployment,
        protocol=protocol,
    )
