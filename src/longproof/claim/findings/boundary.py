"""Reads what `probe/boundary` asked: three numbers that stay three, and what happens just above the measured one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from longproof.claim.findings.reading import was_cut
from longproof.claim.findings.words import told
from longproof.claim.statements import Finding, NotShown, Severity, Standing, Statement
from longproof.claim.view import EvidenceView
from longproof.domain.events import RequestTimeline
from longproof.domain.measure import Measured, Provenance, Unknown
from longproof.domain.outcome import Outcome, classify, completed_as_asked, tokens_produced
from longproof.domain.outcome_words import in_words
from longproof.domain.units import format_tokens
from longproof.stats.proportion import clopper_pearson

PROBE = "boundary"
CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class _Total:
    """All repeats of one prompt + output total."""

    total: int
    keys: tuple[str, ...]
    timelines: tuple[RequestTimeline, ...]

    @property
    def good(self) -> int:
        return sum(completed_as_asked(item) for item in self.timelines)

    @property
    def n(self) -> int:
        return len(self.timelines)


def read(view: EvidenceView) -> Iterator[Statement | Finding | NotShown]:
    """The boundary statements, the outcome just above, and what a server must not do there."""
    yield from _told_by_server(view)
    totals = _totals(view)
    if not totals:
        return
    answered = [item for item in totals if item.good == item.n]
    doubts = _doubts(view, answered)
    proven = [item for item in answered if item.total not in doubts]
    largest = proven[-1] if proven else None
    missed = [
        item
        for item in totals
        if item.good == 0 and not _only_busy(item) and (largest is None or item.total > largest.total)
    ]
    if largest is not None or not doubts:
        yield _context(view, largest, totals)
    yield from _doubted(answered, doubts)
    yield from _busy(totals)
    if largest is not None:
        yield _largest_prompt(view, largest)
    if missed:
        yield _refused(view, missed[0], largest)
    elif not doubts and not any(_only_busy(item) for item in totals):
        yield NotShown(
            topic="above_boundary",
            text=f"Nothing above {format_tokens(totals[-1].total)} tokens was asked: the real boundary may lie higher.",
            how="raise --context, or leave it out to prove up to the server's own limit",
        )
    yield from _faults(view, totals, largest)


def _doubts(view: EvidenceView, answered: list[_Total]) -> dict[int, str]:
    """Total → why its answers do not show that so many tokens were served, although none was refused."""
    cut = was_cut(view)
    limit = view.limit_tokens()
    found: dict[int, str] = {}
    for item in answered:
        if any(cut(timeline) for timeline in item.timelines):
            found[item.total] = "the prompt was not read whole"
        elif limit is not None and item.total > limit and not all(_counted_full(it) for it in item.timelines):
            found[item.total] = "it is above the server's own limit, and no usage says that all output came"
    return found


def _counted_full(timeline: RequestTimeline) -> bool:
    produced = tokens_produced(timeline)
    return produced is not None and produced >= timeline.max_tokens


def _doubted(answered: list[_Total], doubts: dict[int, str]) -> Iterator[NotShown]:
    if doubts:
        total = max(doubts)
        yield NotShown(
            topic="boundary_doubted",
            text=(
                f"{format_tokens(total)} tokens (prompt + output): answered without an error"
                f" {sum(item.good for item in answered if item.total == total)} times, but {doubts[total]}."
            ),
            how="mend what the findings name, then prove again",
        )


def _busy(totals: list[_Total]) -> Iterator[NotShown]:
    busy = [item.total for item in totals if _only_busy(item)]
    if busy:
        yield NotShown(
            topic="boundary_busy",
            text=(
                f"Whether {format_tokens(min(busy))} tokens"
                f"{f' and {len(busy) - 1} other lengths' if len(busy) > 1 else ''} complete: the server refused them"
                " for load or a rate limit, which says nothing about length."
            ),
            how="prove again while the server is idle and no rate limit holds",
        )


def _totals(view: EvidenceView) -> list[_Total]:
    found: dict[int, list[tuple[str, RequestTimeline]]] = {}
    for key, body in view.requests(PROBE):
        found.setdefault(int(body.cell["total"]), []).append((key, body.timeline))
    return [
        _Total(total=total, keys=tuple(key for key, _ in items), timelines=tuple(item for _, item in items))
        for total, items in sorted(found.items())
    ]


def _told_by_server(view: EvidenceView) -> Iterator[Statement]:
    deployment = view.header.deployment
    for metric, reading, what in (
        ("configured_limit", deployment.configured_limit_tokens, "is configured for sequences of up to"),
        ("kv_capacity", deployment.kv_capacity_tokens, "has a KV pool for"),
    ):
        if isinstance(reading, Unknown):
            yield Statement(
                id=f"boundary.{metric}",
                metric=metric,
                text=f"What the server {what} is unknown: {reading.reason}.",
                standing=Standing.NOT_SHOWN,
                unit="tokens",
                value=reading,
                n=0,
            )
            continue
        yield Statement(
            id=f"boundary.{metric}",
            metric=metric,
            text=(
                f"The server {what} {format_tokens(reading.value)} tokens ({reading.provenance.value}:"
                f" {reading.source})."
            ),
            standing=Standing.SHOWN,
            unit="tokens",
            value=Measured(value=float(reading.value), provenance=reading.provenance, source=reading.source),
            n=1,
        )


def _conditions(view: EvidenceView, item: _Total) -> dict[str, str]:
    return {
        "output_tokens": str(view.header.protocol.output_tokens),
        "load": "idle: one request at a time",
        "cache": "cold",
        "succeeded": f"{item.good} of {item.n}",
    }


def _context(view: EvidenceView, largest: _Total | None, totals: list[_Total]) -> Statement:
    if largest is None and all(_only_busy(item) for item in totals):
        return Statement(
            id="boundary.context",
            metric="context",
            text="No length was shown to complete: every request was refused for load or a rate limit.",
            standing=Standing.NOT_SHOWN,
            unit="tokens",
            value=Unknown(reason="every request was refused for load or a rate limit"),
            n=0,
            evidence=tuple(key for item in totals for key in item.keys),
        )
    if largest is None:
        totals = [item for item in totals if not _only_busy(item)]
        return Statement(
            id="boundary.context",
            metric="context",
            text=(
                f"No length completed; the smallest asked was {format_tokens(totals[0].total)} tokens (prompt +"
                " output)."
            ),
            standing=Standing.REFUTED,
            unit="tokens",
            value=Measured(
                value=float(totals[0].total),
                provenance=Provenance.MEASURED,
                source="smallest total that did not complete",
            ),
            n=totals[0].n,
            conditions=_conditions(view, totals[0]),
            evidence=totals[0].keys,
        )
    times = "once (n = 1)" if largest.n == 1 else f"{largest.good} of {largest.n} times"
    return Statement(
        id="boundary.context",
        metric="context",
        text=(
            f"{format_tokens(largest.total)} tokens (prompt + output) were admitted and completed {times}, one"
            " request at a time."
        ),
        standing=Standing.SHOWN,
        unit="tokens",
        value=Measured(
            value=float(largest.total),
            provenance=Provenance.MEASURED,
            source="largest total whose repeats all completed",
        ),
        n=largest.n,
        conditions=_conditions(view, largest),
        evidence=largest.keys,
    )


def _largest_prompt(view: EvidenceView, largest: _Total) -> Statement:
    output = view.header.protocol.output_tokens
    rate = clopper_pearson(largest.good, largest.n, CONFIDENCE)
    return Statement(
        id="boundary.prompt_max",
        metric="prompt_max",
        text=(
            f"The largest prompt that completed with {output} output tokens had"
            f" {format_tokens(largest.total - output)} tokens;"
            f" with {largest.good} of {largest.n} successes the success rate is at least {rate.low:.0%}"
            f" ({CONFIDENCE:.0%} interval)."
        ),
        standing=Standing.SHOWN,
        unit="tokens",
        value=Measured(
            value=float(largest.total - output),
            provenance=Provenance.MEASURED,
            source="largest completed total minus output",
        ),
        n=largest.n,
        conditions=_conditions(view, largest),
        evidence=largest.keys,
    )


def _refused(view: EvidenceView, missed: _Total, largest: _Total | None) -> Statement:
    first = missed.timelines[0]
    produced = first.usage.completion_tokens if first.usage is not None else None
    gap = "" if largest is None else f" ({format_tokens(missed.total - largest.total)} above the largest completed)"
    return Statement(
        id="boundary.refused",
        metric="context",
        text=f"At {format_tokens(missed.total)} tokens{gap}: {told(first, produced)}",
        standing=Standing.REFUTED,
        unit="tokens",
        value=Measured(
            value=float(missed.total),
            provenance=Provenance.MEASURED,
            source="smallest total above that never completed as asked",
        ),
        n=missed.n,
        conditions={**_conditions(view, missed), "outcome": in_words(classify(first))},
        evidence=missed.keys,
    )


_FAULTS = {
    Outcome.HUNG: ("boundary.hangs_above", "gave neither token nor error for {timeout:.0f} s instead of a refusal"),
    Outcome.TIMED_OUT: ("boundary.not_finished", "began to answer and did not finish within {timeout:.0f} s"),
    Outcome.ERROR_IN_STREAM: ("boundary.error_in_200", "answered HTTP 200 and then an error inside the stream"),
    Outcome.CUT: ("boundary.stream_cut", "broke the stream off"),
    Outcome.UNREACHABLE: ("boundary.server_gone", "made the server unreachable"),
    Outcome.SERVER_ERROR: ("boundary.server_error", "made the server fail (HTTP 5xx)"),
    Outcome.EMPTY: ("boundary.empty_answer", "was answered by HTTP 200 without one token"),
    Outcome.ABORTED: ("boundary.aborted", "was aborted by the server"),
}


def _faults(view: EvidenceView, totals: list[_Total], largest: _Total | None) -> Iterator[Finding]:
    seen: dict[str, tuple[_Total, str, list[str]]] = {}
    for item in totals:
        for key, timeline in zip(item.keys, item.timelines, strict=True):
            fault = _FAULTS.get(classify(timeline))
            if fault is not None:
                seen.setdefault(fault[0], (item, fault[1], []))[2].append(key)
        if 0 < item.good < item.n:
            yield Finding(
                id="boundary.inconsistent",
                severity=Severity.FAULT,
                text=(
                    f"{format_tokens(item.total)} tokens completed {item.good} of {item.n} times under the same"
                    " idle conditions."
                ),
                evidence=item.keys,
            )
    for finding_id, (item, words, keys) in sorted(seen.items()):
        what = words.format(timeout=view.header.protocol.request_timeout_s)
        yield Finding(
            id=finding_id,
            severity=Severity.FAULT,
            text=f"A request of {format_tokens(item.total)} tokens (prompt + output) {what}.",
            evidence=tuple(keys),
            details={"total": str(item.total)},
        )
    yield from _below_limit(view, totals, largest)


def _only_busy(item: _Total) -> bool:
    """Refused for load or for a rate limit: that says nothing about length."""
    return all(classify(timeline) is Outcome.REFUSED_BUSY for timeline in item.timelines)


def _below_limit(view: EvidenceView, totals: list[_Total], largest: _Total | None) -> Iterator[Finding]:
    """The limit says one thing and the server does another."""
    limit = view.limit_tokens()
    within = [
        item for item in totals if limit is not None and item.total <= limit and item.good == 0 and not _only_busy(item)
    ]
    if not within or limit is None:
        return
    served = f"at most {format_tokens(largest.total)} completed" if largest is not None else "none completed"
    yield Finding(
        id="boundary.below_limit",
        severity=Severity.FAULT,
        text=f"The server says its limit is {format_tokens(limit)} tokens; of the totals asked within it, {served}.",
        evidence=within[0].keys,
        details={"limit": str(limit), "smallest_missed": str(within[0].total)},
    )
