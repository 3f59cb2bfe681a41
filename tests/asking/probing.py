"""A probe at work in a test: its context over a running server, and what was recorded and said."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from longproof.asking.context import BudgetSpent, ProbeContext
from longproof.asking.prompts import PromptBuilder
from longproof.claim.findings import Reader
from longproof.claim.statements import Finding, NotShown, Statement
from longproof.clock import SystemClock
from longproof.engines.base import Engine
from longproof.engines.registry import connect
from longproof.evidence.records import Protocol, RequestBody, WindowBody
from longproof.evidence.store import Journal
from longproof.testing.builders import build_header, build_protocol, build_view
from longproof.testing.lying_engine import LyingEngine

PROTOCOL = build_protocol(output_tokens=8)


class Allowance:
    """A budget of so many requests; also the progress that nobody watches."""

    def __init__(self, requests: int = 10_000) -> None:
        self.requests = requests

    def check(self, tokens: int, ns: int = 0) -> None:
        if not self.requests:
            raise BudgetSpent("no more requests")
        self.requests -= 1

    def step(self, probe: str, what: str) -> None: ...

    def finished(self, key: str, body: RequestBody) -> None: ...

    def window_ended(self, key: str, body: WindowBody) -> None: ...


@asynccontextmanager
async def probing(
    server: str | Engine, directory: Path, *, allowance: Allowance | None = None, protocol: Protocol = PROTOCOL
) -> AsyncIterator[ProbeContext]:
    """A context over a running server (its URL, or an engine, which is closed at the end) and a journal in `directory`,
    begun or resumed."""
    engine = await connect(server) if isinstance(server, str) else server
    deployment = await engine.introspect()
    header = build_header(deployment=deployment, protocol=protocol)
    begun = (directory / "header.json").exists()
    journal = Journal.resume(directory) if begun else Journal.create(directory, header)
    session = journal.start_session(SystemClock())
    budget = allowance or Allowance()
    yield ProbeContext(
        engine=engine,
        deployment=deployment,
        protocol=protocol,
        journal=journal,
        prompts=PromptBuilder(engine, route=protocol.route, seed=protocol.seed, salt=session.salt),
        budget=budget,
        progress=budget,
    )
    journal.close()
    await engine.aclose()


def requests(ctx: ProbeContext) -> dict[str, RequestBody]:
    return {record.key: record.body for record in ctx.journal.records if isinstance(record.body, RequestBody)}


def statement(found: list[Statement | Finding | NotShown], metric: str, length: int | None) -> Statement:
    return next(
        item for item in found if isinstance(item, Statement) and item.metric == metric and item.at_tokens == length
    )


def findings(found: list[Statement | Finding | NotShown]) -> list[str]:
    return [item.id for item in found if isinstance(item, Finding)]


def client_was_short(found: list[Statement | Finding | NotShown]) -> bool:
    """Whether a reader says that this machine left too little to the client itself. Times accuse nobody then, as they
    must not, and whether a slow engine is named shows nothing."""
    return any("short of a processor" in item.text for item in found)


def said(ctx: ProbeContext, read: Reader) -> list[Statement | Finding | NotShown]:
    """What a reader says of all that the context has recorded."""
    view = build_view(*((record.key, record.body) for record in ctx.journal.records), header=ctx.journal.header)
    return list(read(view))


def asked(engine: LyingEngine) -> int:
    """Chats that were served; connecting asks for one completion."""
    return sum(served.path == "/v1/chat/completions" for served in engine.log.requests)
