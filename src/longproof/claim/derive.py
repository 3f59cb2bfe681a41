"""From evidence to claim: every reader reads, and what they say is put in order. No server, no clock, no chance.

directory ─▶ load_view ─▶ EvidenceView ─▶ claim_of ─▶ Claim ─▶ write_claim ─▶ claim.json
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import longproof
from longproof.claim.conditions import conditions_of
from longproof.claim.findings import READERS, Said
from longproof.claim.headline import headline_of
from longproof.claim.metrics import METRICS
from longproof.claim.not_shown import not_shown_of
from longproof.claim.statements import Claim, Finding, NotShown, Severity, Standing, Statement
from longproof.claim.view import EvidenceView
from longproof.domain.measure import Measured, Provenance, Unknown
from longproof.evidence.codec import encode
from longproof.evidence.disk import not_writable, write_whole
from longproof.evidence.reading import read

CLAIM_FORMAT = 1
CLAIM_NAME = "claim.json"


def derive(directory: Path) -> Claim:
    """The claim that an evidence directory supports. Raises EvidenceError for one that is missing or damaged."""
    return claim_of(load_view(directory))


def write_claim(directory: Path) -> bytes:
    """Derives the claim, writes it as claim.json beside its evidence, and returns its bytes.

    The same evidence gives the same bytes, read by the same version of longproof. EvidenceError where the directory
    cannot be written.
    """
    document = claim_bytes(derive(directory))
    try:
        write_whole(directory / CLAIM_NAME, document)
    except OSError as problem:
        raise not_writable(directory, problem) from problem
    return document


def claim_bytes(claim: Claim) -> bytes:
    """A claim as claim.json has it."""
    return encode(claim, indent=True) + b"\n"


def load_view(directory: Path) -> EvidenceView:
    """What an evidence directory holds, verified. Raises EvidenceError naming the file and line that cannot be
    trusted."""
    stored = read(directory)
    return EvidenceView(
        header=stored.header,
        records=stored.records,
        sealed=stored.seal is not None,
        complete=stored.complete,
        digest=stored.digest,
    )


def claim_of(view: EvidenceView) -> Claim:
    """The claim that a view supports. Pure. Raises ValueError when a reader contradicts the rules of claims: our
    bug."""
    said: list[Said] = [item for read_probe in READERS.values() for item in read_probe(view)]
    findings = tuple(item for item in said if isinstance(item, Finding))
    statements = (*(item for item in said if isinstance(item, Statement)), _faults(view, findings))
    _check(statements, findings, view)
    from_readers = [item for item in said if isinstance(item, NotShown)]
    header = view.header
    return Claim(
        format=CLAIM_FORMAT,
        longproof_version=longproof.__version__,
        headline=headline_of(view, statements, findings),
        target=header.target,
        fingerprint_digest=header.fingerprint.digest,
        facts=dict(header.fingerprint.facts),
        unknown={
            name: reading.reason for name, reading in header.deployment.readings() if isinstance(reading, Unknown)
        },
        conditions=conditions_of(view),
        complete=view.complete,
        statements=statements,
        findings=findings,
        not_shown=_once(from_readers, not_shown_of(view, statements)),
        evidence_sha256=view.digest,
    )


def _faults(view: EvidenceView, findings: tuple[Finding, ...]) -> Statement:
    """How many faults were found in how many requests. None found shows something only where truncation and counts were
    looked for."""
    n = sum(1 for _ in view.all_requests())
    faults = [finding for finding in findings if finding.severity is Severity.FAULT]
    looked = any(True for _ in view.requests("accounting"))
    word = "No fault was" if not faults else "One fault was" if len(faults) == 1 else f"{len(faults)} faults were"
    text = f"{word} found in {n:,} requests"
    return Statement(
        id="claim.faults",
        metric="faults",
        text=f"{text}." if looked or faults else f"{text}, but nobody looked for truncated prompts and wrong counts.",
        standing=Standing.SHOWN if looked or faults else Standing.NOT_SHOWN,
        unit="findings",
        value=Measured(
            value=float(len(faults)), provenance=Provenance.DERIVED, source="count of findings with severity fault"
        )
        if n
        else Unknown(reason="no request was sent"),
        n=n,
        evidence=tuple(dict.fromkeys(key for finding in faults for key in finding.evidence)),
    )


def _check(statements: tuple[Statement, ...], findings: tuple[Finding, ...], view: EvidenceView) -> None:
    """What every reader owes: known metrics in their own unit, ids that name one statement, evidence that is there."""
    keys = {record.key for record in view.records}
    ids: set[str] = set()
    for item in statements:
        metric = METRICS.get(item.metric)
        if metric is None or metric.unit != item.unit:
            raise ValueError(f"statement {item.id} has metric {item.metric} in {item.unit}: not in claim.metrics")
        if item.id in ids:
            raise ValueError(f"two statements are called {item.id}")
        ids.add(item.id)
    for item in (*findings, *statements):
        missing = [key for key in item.evidence if key not in keys]
        if missing:
            raise ValueError(f"{item.id} names evidence that is not there: {missing[0]}")


def _once(*groups: Iterable[NotShown]) -> tuple[NotShown, ...]:
    """All lines in order; of two with the same topic the first, which knows more."""
    by_topic: dict[str, NotShown] = {}
    for group in groups:
        for item in group:
            by_topic.setdefault(item.topic, item)
    return tuple(by_topic.values())
