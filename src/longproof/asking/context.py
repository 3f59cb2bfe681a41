"""What a probe holds: the engine, the journal, the prompt builder, and `ask`, which never asks the same thing twice.

A probe is a deterministic function over `ask`. After a crash it runs again from its first line: keys that stand in the
journal are answered from there, so an adaptive search (the boundary) takes the same path without touching the server.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol as Port
from typing import TypeAlias

from longproof.asking.prompts import LengthUnproven, PromptBuilder
from longproof.asking.restarter import Restarter
from longproof.asking.workers import Workers
from longproof.clock import Clock, SystemClock
from longproof.domain.deployment import Deployment
from longproof.domain.events import EngineSample
from longproof.domain.request import ChatPrompt, GenerationRequest, IdsPrompt, Prompt, TokenCount
from longproof.engines.base import Engine
from longproof.errors import EngineMisbehaved
from longproof.evidence.records import CountBody, NoteBody, Protocol, RequestBody, WindowBody
from longproof.evidence.store import Journal

Cell: TypeAlias = dict[str, int | float | str | bool]
Build: TypeAlias = Callable[[str], Awaitable[GenerationRequest]]
"""Nonce → request. Called only when the journal has no answer yet, so prompts are not built for what is already
known."""


class Progress(Port):
    """Told what happens, so that somebody can draw it. Never asked anything."""

    def step(self, probe: str, what: str) -> None:
        """A request is about to be sent."""
        ...

    def finished(self, key: str, body: RequestBody) -> None:
        """A request is over and recorded."""
        ...

    def window_ended(self, key: str, body: WindowBody) -> None:
        """A window under load is over and recorded."""
        ...


class BudgetSpent(Exception):  # noqa: N818 - not an error: the run ends in order, and the claim says what was left out
    """The budget does not hold the next request."""


class Budget(Port):
    """Decides before each request whether it may still be sent."""

    def check(self, tokens: int, ns: int = 0) -> None:
        """Raises BudgetSpent when that many more tokens (prompt + output) would exceed the budget. `ns`: how long they
        will take, where that is known better than from their number."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeContext:
    """Everything a probe may use. `restarter`: how the server is restarted, None where nobody can.
    `workers`: processes that send the requests of a load, None = this one."""

    engine: Engine
    deployment: Deployment
    protocol: Protocol
    journal: Journal
    prompts: PromptBuilder
    budget: Budget
    progress: Progress
    clock: Clock = field(default_factory=SystemClock)
    restarter: Restarter | None = None
    workers: Workers | None = None

    async def ask(
        self,
        key: str,
        *,
        probe: str,
        cell: Cell,
        build: Build,
        expected_tokens: int,
        sampled: bool = False,
        nonce: str | None = None,
    ) -> RequestBody:
        """The answer to one question: from the journal if it is there, else from the server.

        `expected_tokens` (prompt + output) is held against the budget. `sampled`: scrape the engine's metrics before
        and after (meaningful while nothing else runs). `nonce`: the prompt's, where it is not the key's own. Raises
        BudgetSpent, and EngineMisbehaved when the server cannot even count the prompt any more; what it does with the
        request never raises.
        """
        known = self.journal.get(key)
        if isinstance(known, RequestBody):
            return known
        self.budget.check(expected_tokens)
        nonce = nonce or self.prompts.nonce(key)
        request = await build(nonce)
        self.progress.step(probe, _describe(cell))
        before = await self._sample() if sampled else None
        timeline = await self.engine.send(request)
        after = await self._sample() if sampled else None
        body = RequestBody(
            probe=probe,
            cell=cell,
            timeline=timeline,
            prompt_sha256=prompt_sha256(request.prompt),
            exact_output=request.exact_output and self.engine.capabilities.exact_output,
            nonce=nonce,
            before=before,
            after=after,
        )
        self.journal.append(key, body)
        self.progress.finished(key, body)
        return body

    async def ask_if_provable(
        self, key: str, *, probe: str, cell: Cell, build: Build, expected_tokens: int, sampled: bool = False
    ) -> RequestBody | None:
        """Like `ask`, but a prompt whose length cannot be promised is noted and left out: None."""
        try:
            return await self.ask(
                key, probe=probe, cell=cell, build=build, expected_tokens=expected_tokens, sampled=sampled
            )
        except LengthUnproven as reason:
            self.note(f"{key}/unproven", probe=probe, what="length_unproven", reason=str(reason), **cell)
            return None

    async def count(self, key: str, *, probe: str, cell: Cell, prompt: Prompt) -> CountBody:
        """The server's count of a prompt, recorded; an error is recorded as one."""
        known = self.journal.get(key)
        if isinstance(known, CountBody):
            return known
        count: TokenCount | None = None
        error: str | None = None
        try:
            count = await self.engine.count(prompt)
        except EngineMisbehaved as problem:
            error = str(problem)
        body = CountBody(probe=probe, cell=cell, count=count, error=error)
        self.journal.append(key, body)
        return body

    def note(self, key: str, *, probe: str, what: str, **detail: int | float | str | bool) -> None:
        """Records a fact once."""
        if self.journal.get(key) is None:
            self.journal.append(key, NoteBody(probe=probe, what=what, detail=detail))

    async def _sample(self) -> EngineSample | None:
        try:
            return await self.engine.sample()
        except EngineMisbehaved:
            return None  # the record then has no sample, and the claim says that the engine's metrics were not there


def prompt_sha256(prompt: Prompt) -> str:
    """A hash over what was sent: ids, text, or roles and contents in order."""
    digest = hashlib.sha256()
    for piece in prompt_bytes(prompt):
        digest.update(piece)
    return digest.hexdigest()


def prompt_bytes(prompt: Prompt) -> Iterator[bytes]:
    """What `prompt_sha256` is over."""
    if isinstance(prompt, IdsPrompt):
        yield b"ids\0"
        yield ids_bytes(prompt.ids)
    elif isinstance(prompt, ChatPrompt):
        for message in prompt.messages:
            yield f"chat\0{message.role}\0{message.content}\0".encode()
    else:
        yield b"text\0" + prompt.text.encode()


def ids_bytes(ids: tuple[int, ...]) -> bytes:
    """Ids as 64-bit numbers, in this machine's byte order."""
    return array("Q", ids).tobytes()


def _describe(cell: Cell) -> str:
    return " ".join(f"{name}={value}" for name, value in cell.items())
