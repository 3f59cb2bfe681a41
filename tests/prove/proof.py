"""Proving a lying engine in a test: the whole main job, short."""

from __future__ import annotations

from pathlib import Path

from longproof.claim.findings import READERS
from longproof.claim.statements import Finding, NotShown, Statement
from longproof.claim.view import EvidenceView
from longproof.clock import SystemClock
from longproof.evidence.reading import read
from longproof.evidence.records import Header, RequestBody, WindowBody
from longproof.prove.options import IDLE_PROBES, ProveOptions
from longproof.prove.run import Estimate, ProveResult, prove
from longproof.prove.target import UrlTarget

OPTIONS = ProveOptions(lengths=(600, 1200), repeats=2, timeout_s=30.0, only=IDLE_PROBES)


class Silent:
    """A watcher that draws nothing."""

    def step(self, probe: str, what: str) -> None: ...

    def finished(self, key: str, body: RequestBody) -> None: ...

    def window_ended(self, key: str, body: WindowBody) -> None: ...

    def planned(self, header: Header, directory: Path, *, resumed: bool) -> None: ...

    def estimated(self, estimate: Estimate) -> None: ...


async def prove_url(url: str, directory: Path, options: ProveOptions = OPTIONS) -> ProveResult:
    """The whole run against a URL."""
    return await prove(UrlTarget(url=url), options, directory, clock=SystemClock(), watcher=Silent())


def view_of(directory: Path) -> EvidenceView:
    """What findings read."""
    stored = read(directory)
    return EvidenceView(
        header=stored.header,
        records=stored.records,
        sealed=stored.seal is not None,
        complete=stored.complete,
        digest=stored.digest,
    )


def said(directory: Path) -> list[Statement | Finding | NotShown]:
    """Everything every reader says about a directory."""
    view = view_of(directory)
    return [item for reader in READERS.values() for item in reader(view)]


def finding_ids(directory: Path) -> set[str]:
    """The ids of all findings."""
    return {item.id for item in said(directory) if isinstance(item, Finding)}
