"""How outcomes are told in sentences: what the server did, in its own words where it had any."""

from __future__ import annotations

from longproof.domain.events import RequestTimeline
from longproof.domain.outcome import Outcome, classify
from longproof.domain.units import format_ns

_LONGEST_QUOTE = 240


def told(timeline: RequestTimeline, produced: int | None) -> str:
    """One clause with a full stop: ``refused at once (HTTP 400, 3 ms): "…".``"""
    outcome = classify(timeline)
    took = format_ns(timeline.e2e_ns)
    if outcome is Outcome.COMPLETED:
        return f"completed with {produced} tokens." if produced is not None else "completed."
    if outcome is Outcome.SHORT:
        return (
            f"HTTP 200 with only {produced} of {timeline.max_tokens} tokens and no other hint (finish_reason length)."
        )
    if outcome in (Outcome.REFUSED_LENGTH, Outcome.REFUSED_BUSY, Outcome.REFUSED_OTHER, Outcome.SERVER_ERROR):
        verb = "failed" if outcome is Outcome.SERVER_ERROR else "refused"
        return f"{verb} after {took} with HTTP {timeline.status}{quote(timeline)}."
    return f"{_PLAIN[outcome].format(took=took)}{quote(timeline)}."


def quote(timeline: RequestTimeline) -> str:
    """``: "the server's own words"``, or nothing."""
    words = timeline.error.message if timeline.error is not None else timeline.transport_error or ""
    words = " ".join(words.split())
    if len(words) > _LONGEST_QUOTE:
        words = words[: _LONGEST_QUOTE - 1] + "…"
    return f': "{words}"' if words else ""


_PLAIN = {
    Outcome.EMPTY: "HTTP 200 and an orderly end after {took}, without one token",
    Outcome.ERROR_IN_STREAM: "HTTP 200, then an error inside the stream after {took}",
    Outcome.CUT: "the stream broke after {took}",
    Outcome.ABORTED: "the server aborted it after {took}",
    Outcome.HUNG: "no token and no error within {took}",
    Outcome.TIMED_OUT: "tokens came, but the answer was not finished within {took}",
    Outcome.CANCELLED: "cancelled by us after {took}",
    Outcome.UNREACHABLE: "no HTTP answer at all",
    Outcome.NOT_A_STREAM: "HTTP 200 with a body that is not an event stream",
}
