"""Whether the largest request is admitted right after others were cancelled: what no gauge can lie about."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from longproof.claim.findings.words import told
from longproof.claim.reclaim_cycles import PROBE
from longproof.claim.sampled import describe_spread
from longproof.claim.statements import Finding, Severity, Standing, Statement
from longproof.claim.view import EvidenceView
from longproof.domain.events import RequestTimeline
from longproof.domain.measure import Interval, Measured, Provenance, Unknown
from longproof.domain.outcome import completed_as_asked, tokens_produced
from longproof.domain.units import format_tokens
from longproof.stats.proportion import clopper_pearson
from longproof.stats.ratio import unpaired_ratio


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """The largest request after one thing: `tries` in order, the first of them at once."""

    after: str
    tries: tuple[tuple[str, RequestTimeline], ...]

    @property
    def at_once(self) -> bool:
        return completed_as_asked(self.tries[0][1])

    @property
    def ever(self) -> bool:
        return any(completed_as_asked(timeline) for _, timeline in self.tries)


def readmission(view: EvidenceView) -> Iterator[Statement | Finding]:
    """How often it was admitted and completed at once, how its TTFT compares with idle, and the finding where not."""
    idle = [body.timeline for key, body in view.requests(PROBE) if key.startswith(f"{PROBE}/idle_largest/")]
    asked = _asked(view)
    if not asked or not any(completed_as_asked(timeline) for timeline in idle):
        return  # what does not fit into an idle engine says nothing about reclaiming; the boundary probe tells of it
    length = asked[0].tries[0][1].prompt_tokens_sent
    yield _share(asked, length)
    yield from _slower(asked, idle, length)
    yield from _refused(asked, length)


def _asked(view: EvidenceView) -> list[_Asked]:
    found: dict[str, list[tuple[str, RequestTimeline]]] = {}
    for key, body in view.requests(PROBE):
        if body.cell.get("arm") == "largest":
            found.setdefault(str(body.cell["after"]), []).append((key, body.timeline))
    return [_Asked(after=after, tries=tuple(tries)) for after, tries in found.items()]


def _share(asked: Sequence[_Asked], length: int | None) -> Statement:
    good = sum(item.at_once for item in asked)
    spread = clopper_pearson(good, len(asked))
    return Statement(
        id=f"{PROBE}.readmitted",
        metric="readmitted",
        text=(
            f"The largest request ({format_tokens(length or 0)} tokens) was admitted at once and completed after"
            f" {good} of {len(asked)} cancellations (success rate at least {spread.low:.0%}, 95 % interval)."
        ),
        standing=Standing.SHOWN if good == len(asked) else Standing.REFUTED,
        unit="fraction",
        value=Measured(value=good / len(asked), provenance=Provenance.MEASURED, source="completed at once / asked"),
        n=len(asked),
        at_tokens=length,
        interval=spread,
        samples=tuple(float(item.at_once) for item in asked),
        conditions={"load": "idle, right after a cancelled request", "cache": "cold"},
        evidence=tuple(item.tries[0][0] for item in asked),
    )


def _slower(asked: Sequence[_Asked], idle: Sequence[RequestTimeline], length: int | None) -> Iterator[Statement]:
    """What the cancelled request still costs the next one."""
    after = [(key, t.ttft_ns) for item in asked if item.at_once and item.after != "end" for key, t in item.tries[:1]]
    alone = [timeline.ttft_ns for timeline in idle if completed_as_asked(timeline) and timeline.ttft_ns]
    found = unpaired_ratio([float(ttft) for _, ttft in after if ttft], [float(ttft) for ttft in alone])
    if isinstance(found, Unknown):
        return
    yield Statement(
        id=f"{PROBE}.readmission_ratio",
        metric="readmission_ratio",
        text=(
            f"Right after a cancel its time to first token was {found.value:.3g} times the idle one"
            f" {describe_spread('readmission_ratio', found.n, found.interval)}."
        ),
        standing=Standing.SHOWN,
        unit="ratio",
        value=Measured(value=found.value, provenance=Provenance.MEASURED, source="geometric means, after / idle"),
        n=found.n,
        at_tokens=length,
        interval=found.interval if isinstance(found.interval, Interval) else None,
        samples=tuple(ttft / (sum(alone) / len(alone)) for _, ttft in after if ttft),
        conditions={"load": "idle, right after a cancelled request", "cache": "cold"},
        evidence=tuple(key for key, _ in after),
    )


def _refused(asked: Sequence[_Asked], length: int | None) -> Iterator[Finding]:
    missed = [item for item in asked if not item.at_once]
    if not missed:
        return
    lost = [item for item in missed if not item.ever]
    worst = (lost or missed)[0]
    first = worst.tries[0][1]
    later = "nor when asked again" if lost else "though it was completed when asked again later"
    where = "at the end of all cycles" if worst.after == "end" else f"after a cancel ({worst.after})"
    yield Finding(
        id="reclaim.largest_not_readmitted",
        severity=Severity.FAULT if lost else Severity.CAUTION,
        text=(
            f"{where[0].upper()}{where[1:]} a request of {format_tokens(length or 0)} tokens, which the idle engine"
            f" had completed, was not completed at once, {later}: {told(first, tokens_produced(first))}"
        ),
        evidence=tuple(key for item in missed for key, _ in item.tries),
        details={"missed": str(len(missed)), "asked": str(len(asked))},
    )
