"""Reads what `probe/busy` asked: what becomes of a long request among short ones, and of them.

`busy_long` tells of the long request, `busy_short` of the short ones; here is what concerns all: the load in words,
preemptions, refusals without a time to come again, errors inside a 200, and whether the server still serves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from longproof.claim.busy_phases import PROBE, Asked, Busy, busy_of
from longproof.claim.findings.busy_long import long_findings, long_statements, queue_stuck
from longproof.claim.findings.busy_short import drift_of, drift_statement, short_findings, short_statements
from longproof.claim.findings.refusals import error_after_200, retry_after_missing
from longproof.claim.findings.words import told
from longproof.claim.load_spans import client_was_late, late_share, preemptions
from longproof.claim.statements import Finding, NotShown, Severity, Standing, Statement
from longproof.claim.view import EvidenceView
from longproof.claim.wording import many
from longproof.domain.measure import Measured, Provenance, Unknown
from longproof.domain.outcome import Outcome, classify, tokens_produced
from longproof.domain.units import format_ns, format_tokens
from longproof.evidence.records import WindowBody


def read(view: EvidenceView) -> Iterator[Statement | Finding | NotShown]:
    """Statements about both kinds of requests, findings, and what could not be shown."""
    busy = busy_of(view)
    if busy is None:
        return
    conditions = _conditions(busy)
    of_long: list[Finding] = []
    if busy.injections:
        drift = drift_of(busy)
        yield from long_statements(busy, conditions)
        yield from short_statements(busy, drift, conditions)
        yield drift_statement(busy, drift, conditions)
        yield _preemptions(busy, conditions)
        of_long = list(long_findings(busy))
        yield from of_long
        yield from short_findings(busy)
        if drift.tells:
            yield NotShown(
                topic="busy_drift",
                text=(
                    "How much slower short requests are beside a long one: the background itself was not the same"
                    f" before and after ({_drifted(busy)})."
                ),
                how="prove again while nothing else changes on the server, or with longer windows",
            )
    yield from _everybody(busy, {item.id for item in of_long})
    yield from _mixed(view)
    yield from _not_shown(view, busy)


def load_words(body: WindowBody) -> str:
    """``8 short requests at a time; short chat: 39/20, 75/18 … tokens``"""
    load = body.load
    lengths = str(load.get("lengths", "lengths unknown"))
    if "concurrency" in load:
        return f"{load['concurrency']} short requests at a time; {lengths}"
    if "rate_per_s" in load:
        return f"{load['rate_per_s']:g} short requests a second, Poisson; {lengths}"
    return f"short requests as a trace has them; {lengths}"


def _conditions(busy: Busy) -> dict[str, str]:
    if not busy.windows:
        return {}
    body = busy.windows[0].body
    return {
        "load": load_words(body),
        "long_prompt": format_tokens(busy.long_tokens),
        "cache": "cold",
        "seed": str(body.load.get("seed", 0)),
    }


def _preemptions(busy: Busy, conditions: dict[str, str]) -> Statement:
    counts = [preemptions(window.samples) for window in busy.windows]
    known = [count for count in counts if count is not None]
    during = [count for item in busy.injections if (count := preemptions(item.window.samples)) is not None]
    return Statement(
        id=f"{PROBE}.busy_preemptions",
        metric="busy_preemptions",
        text=(
            f"The engine counted {many(sum(known), 'preemption')}, {sum(during)} of them beside a long request."
            if known
            else "Whether requests were preempted is not known: the engine does not count it."
        ),
        standing=Standing.SHOWN if known else Standing.NOT_SHOWN,
        unit="preemptions",
        value=Measured(value=float(sum(known)), provenance=Provenance.REPORTED, source="the engine's own counter")
        if known
        else Unknown(reason="the engine does not count preemptions"),
        n=len(known),
        conditions=conditions,
        evidence=tuple(window.key for window in busy.windows) if known else (),
    )


def _everybody(busy: Busy, told_of: set[str]) -> Iterator[Finding]:
    """What may happen to any request of the probe."""
    asked = [
        *busy.twins,
        *(short for item in busy.alone for short in item.shorts),
        *(asked for item in busy.injections for asked in (*item.shorts, item.long)),
    ]
    yield from retry_after_missing(asked, "busy.retry_after_missing")
    yield from error_after_200(asked, "busy.error_after_200")
    yield from queue_stuck(busy.windows, busy.idle_ns, "busy.queue_stuck")
    yield from _shorts_hung(busy, told_of)
    yield from _preempted(busy)
    yield from _gone(busy, asked)


def _shorts_hung(busy: Busy, told_of: set[str]) -> Iterator[Finding]:
    """Short requests that never got a token: taken, where a chunk without content had come; else nobody knows."""
    shorts = [short for item in (*busy.alone, *busy.injections) for short in item.shorts]
    hung = [short for short in shorts if classify(short.timeline) is Outcome.HUNG]
    taken = [short for short in hung if short.timeline.first_event_ns is not None]
    for finding_id, items, how in (
        ("busy.admitted_then_hung", taken, "were taken (a chunk without content came)"),
        ("busy.short_hung", [] if taken else hung, "were not answered"),
    ):
        if items and finding_id not in told_of:
            yield Finding(
                id=finding_id,
                severity=Severity.FAULT,
                text=(
                    f"{len(items)} of {len(shorts)} short requests {how} and got no token within"
                    f" {format_ns(items[0].timeline.e2e_ns)}."
                ),
                evidence=tuple(item.key for item in items[:20]),
            )


def _preempted(busy: Busy) -> Iterator[Finding]:
    counts = {window.key: preemptions(window.samples) or 0 for window in busy.windows}
    total = sum(counts.values())
    if total:
        yield Finding(
            id="busy.preempted",
            severity=Severity.CAUTION,
            text=(
                f"The engine preempted running requests {many(total, 'time')} under this load: it admits more than its"
                " KV pool holds to the end, and computes again what it took away."
            ),
            evidence=tuple(key for key, count in counts.items() if count),
            details={"preemptions": str(total)},
        )


def _gone(busy: Busy, asked: Sequence[Asked]) -> Iterator[Finding]:
    """The server died, or no longer serves a short request when all is over."""
    gone = [item for item in asked if classify(item.timeline) is Outcome.UNREACHABLE]
    if gone:
        yield Finding(
            id="busy.server_gone",
            severity=Severity.FAULT,
            text=f"{len(gone)} requests found nobody listening: the server went away under this load.",
            evidence=tuple(item.key for item in gone[:20]),
        )
    last = busy.follow_up
    if last is not None and not last.done:
        yield Finding(
            id="busy.follow_up_failed",
            severity=Severity.FAULT,
            text=(
                "A short request after it all, with the server to itself, did not complete:"
                f" {told(last.timeline, tokens_produced(last.timeline))}"
            ),
            evidence=(last.key,),
        )


def _mixed(view: EvidenceView) -> Iterator[Finding]:
    """Prompts that got another's answer when they were asked together, and their own one by one."""
    alone: dict[int, str] = {}
    together: dict[int, tuple[str, str]] = {}
    for key, body in view.requests(PROBE):
        if body.cell.get("role") != "own" or classify(body.timeline) is not Outcome.COMPLETED:
            continue
        question, text = int(body.cell["question"]), body.timeline.reasoning + body.timeline.text
        if body.planned_ns is None:
            alone[question] = text
        else:
            together[question] = (key, text)
    wrong = [
        key
        for question, (key, text) in together.items()
        if question in alone
        and text.strip()
        and text != alone[question]
        and any(text == other for number, other in alone.items() if number != question)
    ]
    if wrong:
        yield Finding(
            id="busy.answers_mixed",
            severity=Severity.FAULT,
            text=(
                f"{len(wrong)} of {len(together)} prompts sent together got the very answer that another of them gets"
                " alone, and not their own."
            ),
            evidence=tuple(wrong),
        )


def _drifted(busy: Busy) -> str:
    ratio = drift_of(busy).ratio
    return (
        ratio.reason if isinstance(ratio, Unknown) else f"first tokens {ratio.value:.3g} times as late after as before"
    )


def _not_shown(view: EvidenceView, busy: Busy) -> Iterator[NotShown]:
    notes = {note.what: note for _, note in view.notes(PROBE)}
    if client_was_late(*(window.body for window in busy.windows)):
        share = max(late_share(window.body) for window in busy.windows)
        yield NotShown(
            topic="busy_client",
            text=(
                "That times under load are the server's alone: the client was short of a processor, up to"
                f" {share:.0%} of a window."
            ),
            how="run the client on a machine of its own, or give it more processors",
        )
    if "fails_alone" in notes:
        yield NotShown(
            topic="busy_fails_alone",
            text=(
                f"What becomes of a prompt of {format_tokens(busy.long_tokens)} tokens among others: it did not even"
                " complete alone."
            ),
            how="mend that first, or choose a shorter long prompt",
        )
    if "enough_hangs" in notes:
        detail = notes["enough_hangs"].detail
        yield NotShown(
            topic="busy_enough_hangs",
            text=(
                f"More of the same: after {detail.get('hung')} long requests that were given up, no further ones were"
                " sent."
            ),
            how="raise --timeout to wait longer",
        )
    if "length_unproven" in notes:
        reason = notes["length_unproven"].detail.get("reason")
        yield NotShown(
            topic="busy_unproven",
            text=f"What happens under load: a length could not be promised ({reason}).",
            how="choose other lengths, or --route completions where the server takes token ids",
        )
    elif busy.injections and (busy.before is None or busy.after is None):
        yield NotShown(
            topic="busy_baseline",
            text="Whether the server itself changed meanwhile: the background was not watched alone before and after.",
            how="run the same command again: it resumes",
        )
