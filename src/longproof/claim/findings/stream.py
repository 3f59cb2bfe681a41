"""Reads every request of every probe for what the stream itself got wrong, whatever the probe was asking."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from longproof.claim.findings.words import quote
from longproof.claim.pd_requests import handed_of
from longproof.claim.statements import Finding, Severity
from longproof.claim.view import EvidenceView
from longproof.domain.events import EndedBy, RequestTimeline
from longproof.domain.outcome import Outcome, classify
from longproof.domain.units import format_ns, format_tokens

_EARLY_NS = 100_000_000
"""A first event this long before the first token, and more than half of the TTFT, misleads clients that time the first
byte."""


def _length(timeline: RequestTimeline) -> str:
    sent = timeline.prompt_tokens_sent
    return "unknown" if sent is None else format_tokens(sent)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rule:
    """One thing a stream must not do. `say` gets the first timeline it happened to."""

    id: str
    severity: Severity
    holds: Callable[[RequestTimeline], bool]
    say: Callable[[RequestTimeline], str]


def read(view: EvidenceView) -> Iterator[Finding]:
    """One finding per rule that any request broke. Boundary requests are judged by `findings.boundary` where both would
    speak, those under a load by the reader of that load, and what failed between two servers by `disaggregated`."""
    handed_over = {item.key for item in handed_of(view) if item.failed_at is not None or item.late_at is not None}
    for rule in _RULES:
        hits = [
            (key, body.timeline)
            for key, body in view.all_requests()
            if rule.holds(body.timeline)
            and not (body.probe == "boundary" and rule.id in _BOUNDARY_SPEAKS)
            and not (body.planned_ns is not None and rule.id in _LOAD_SPEAKS)
            and not (body.cancel is not None and rule.id in _WE_ENDED_IT)
            and not (key in handed_over and rule.id in _PAIR_SPEAKS)
        ]
        if hits:
            many = "" if len(hits) == 1 else f" ({len(hits)} requests, the first named)"
            yield Finding(
                id=rule.id,
                severity=rule.severity,
                text=f"{rule.say(hits[0][1])}{many}.",
                evidence=tuple(key for key, _ in hits),
            )


def _is(outcome: Outcome) -> Callable[[RequestTimeline], bool]:
    return lambda timeline: classify(timeline) is outcome


def _early_event(timeline: RequestTimeline) -> bool:
    if timeline.first_event_ns is None or timeline.first_token_ns is None or timeline.ttft_ns is None:
        return False
    ahead = timeline.first_token_ns - timeline.first_event_ns
    return ahead > _EARLY_NS and 2 * ahead > timeline.ttft_ns


def _say_early(timeline: RequestTimeline) -> str:
    first = (timeline.first_event_ns or timeline.submitted_ns) - timeline.submitted_ns
    return (
        f"The first event came after {format_ns(first)} and carried no content; the first token came after"
        f" {format_ns(timeline.ttft_ns or 0)}: a client that times the first event reports the former as TTFT"
    )


def _no_done(timeline: RequestTimeline) -> bool:
    return timeline.ended_by is EndedBy.EOF and classify(timeline) in (Outcome.COMPLETED, Outcome.SHORT)


_BOUNDARY_SPEAKS = {
    "stream.error_in_200",
    "stream.cut",
    "stream.empty",
    "stream.aborted",
    "stream.hung",
    "stream.not_finished",
    "stream.server_error",
    "stream.unreachable",
}
_LOAD_SPEAKS = {
    "stream.error_in_200",
    "stream.hung",
    "stream.not_finished",
    "stream.refused_while_idle",
    "stream.first_event_without_token",
}
"""Under a load a server may refuse, and may be too late: the probe that made the load judges that."""
_WE_ENDED_IT = {"stream.aborted", "stream.empty"}
"""A request that we had aborted ends so by our order: vLLM 0.32 then sends finish_reason abort, with or without a
token before it."""
_PAIR_SPEAKS = {
    "stream.error_in_200",
    "stream.hung",
    "stream.not_finished",
    "stream.server_error",
    "stream.unreachable",
    "stream.not_a_stream",
}
"""Of a request through a prefill/decode pair that failed, or ran out of time, the pair's reader says at which stage."""
_RULES = (
    _Rule(
        id="stream.error_in_200",
        severity=Severity.FAULT,
        holds=_is(Outcome.ERROR_IN_STREAM),
        say=lambda t: f"HTTP 200, then an error inside the stream{quote(t)}",
    ),
    _Rule(
        id="stream.cut",
        severity=Severity.FAULT,
        holds=_is(Outcome.CUT),
        say=lambda t: f"The stream broke off after {len(t.chunks)} chunks without a finish{quote(t)}",
    ),
    _Rule(
        id="stream.empty",
        severity=Severity.FAULT,
        holds=_is(Outcome.EMPTY),
        say=lambda t: f"HTTP 200 and an orderly end (finish_reason {t.finish_reason}) without one token",
    ),
    _Rule(
        id="stream.aborted",
        severity=Severity.FAULT,
        holds=_is(Outcome.ABORTED),
        say=lambda t: (
            f"The server ended an answer itself (finish_reason {t.finish_reason}) after {len(t.chunks)} chunks"
        ),
    ),
    _Rule(
        id="stream.hung",
        severity=Severity.FAULT,
        holds=_is(Outcome.HUNG),
        say=lambda t: f"A request of {_length(t)} tokens got neither token nor error within {format_ns(t.e2e_ns)}",
    ),
    _Rule(
        id="stream.not_finished",
        severity=Severity.FAULT,
        holds=_is(Outcome.TIMED_OUT),
        say=lambda t: f"An answer began and was not finished within {format_ns(t.e2e_ns)}",
    ),
    _Rule(
        id="stream.server_error",
        severity=Severity.FAULT,
        holds=_is(Outcome.SERVER_ERROR),
        say=lambda t: f"The server failed with HTTP {t.status}{quote(t)}",
    ),
    _Rule(
        id="stream.unreachable",
        severity=Severity.FAULT,
        holds=_is(Outcome.UNREACHABLE),
        say=lambda t: f"A request of {_length(t)} tokens got no HTTP answer{quote(t)}",
    ),
    _Rule(
        id="stream.refused_while_idle",
        severity=Severity.CAUTION,
        holds=_is(Outcome.REFUSED_BUSY),
        say=lambda t: f"HTTP {t.status} although the server had nothing else from us to do{quote(t)}",
    ),
    _Rule(
        id="stream.not_a_stream",
        severity=Severity.FAULT,
        holds=_is(Outcome.NOT_A_STREAM),
        say=lambda _: "HTTP 200 with a body that is not an event stream, although a stream was asked for",
    ),
    _Rule(
        id="stream.first_event_without_token",
        severity=Severity.CAUTION,
        holds=_early_event,
        say=_say_early,
    ),
    _Rule(
        id="stream.done_missing",
        severity=Severity.CAUTION,
        holds=_no_done,
        say=lambda _: "The stream ended without [DONE]",
    ),
    _Rule(
        id="stream.malformed",
        severity=Severity.FAULT,
        holds=lambda t: bool(t.malformed),
        say=lambda t: f"An event was not what the protocol says: {t.malformed[0][:120]!r}",
    ),
)
