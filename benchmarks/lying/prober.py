"""One or several probes against one engine: a journal in a folder, which the claim then follows from."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from longproof.asking.context import ProbeContext
from longproof.asking.prompts import PromptBuilder
from longproof.asking.recovery import EngineGone
from longproof.asking.restarter import restarter_for
from longproof.clock import SystemClock
from longproof.domain.request import Route
from longproof.engines.pd import PdEngine
from longproof.engines.registry import connect
from longproof.evidence.fingerprint import fingerprint
from longproof.evidence.records import FORMAT, Header, Protocol, RequestBody, WindowBody
from longproof.evidence.store import Journal

Ask = Callable[[ProbeContext], Awaitable[None]]


class Unwatched:
    """A budget without an end, and progress that nobody watches."""

    def check(self, tokens: int, ns: int = 0) -> None: ...

    def step(self, probe: str, what: str) -> None: ...

    def finished(self, key: str, body: RequestBody) -> None: ...

    def window_ended(self, key: str, body: WindowBody) -> None: ...


async def ask_all(
    urls: tuple[str, ...], directory: Path, asks: tuple[Ask, ...], *, seed: int, restart_command: str | None = None
) -> None:
    """Runs probes one after the other; what they saw is on disk then. Two URLs: a prefill and a decode side."""
    async with _context(urls, directory, seed, restart_command) as ctx:
        for ask in asks:
            try:
                await ask(ctx)
            except EngineGone:
                break


@asynccontextmanager
async def _context(
    urls: tuple[str, ...], directory: Path, seed: int, restart_command: str | None
) -> AsyncIterator[ProbeContext]:
    first, *others = [await connect(url) for url in urls]
    engine = PdEngine(first, others[0]) if others else first
    deployment = await engine.introspect()
    protocol = Protocol(
        seed=seed,
        route=Route.COMPLETIONS,
        context_tokens=None,
        repeats=2,
        output_tokens=8,
        request_timeout_s=30.0,
        budget_ns=None,
        budget_tokens=None,
        steps=(),
    )
    header = Header(
        format=FORMAT,
        longproof_version="benchmark",
        target=engine.url,
        fingerprint=fingerprint(deployment),
        deployment=deployment,
        protocol=protocol,
    )
    journal = Journal.create(directory, header)
    session = journal.start_session(SystemClock())
    unwatched = Unwatched()
    yield ProbeContext(
        engine=engine,
        deployment=deployment,
        protocol=protocol,
        journal=journal,
        prompts=PromptBuilder(engine, route=protocol.route, seed=seed, salt=session.salt),
        budget=unwatched,
        progress=unwatched,
        restarter=restarter_for(engine, restart_command),
    )
    journal.close()
    await engine.aclose()
