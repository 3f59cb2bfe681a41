"""What a request's timeline amounts to. Pure: one function, read by probes to steer and by claims to judge."""

from __future__ import annotations

import re
from enum import StrEnum

from longproof.domain.events import EndedBy, RequestTimeline


class Outcome(StrEnum):
    """The ways a request can end. A status of 200 is not admission: these look at content, not at status."""

    COMPLETED = "completed"
    """All output that was asked for arrived, or the model ended by itself."""
    SHORT = "short"
    """It ended by length with fewer tokens than asked for: the output was clamped."""
    EMPTY = "empty"
    """200 and an orderly end, but not one token."""
    REFUSED_LENGTH = "refused_length"
    """Refused because of its length."""
    REFUSED_BUSY = "refused_busy"
    """Refused because of load (429, 503)."""
    REFUSED_OTHER = "refused_other"
    """Refused for another reason; see its words."""
    SERVER_ERROR = "server_error"
    """Status 500 or another of that family: it tried and broke."""
    ERROR_IN_STREAM = "error_in_stream"
    """200, then an error object inside the stream."""
    CUT = "cut"
    """The stream broke, or ended without a finish."""
    ABORTED = "aborted"
    """The server ended it itself (finish_reason abort or error)."""
    HUNG = "hung"
    """No first token before our timeout."""
    TIMED_OUT = "timed_out"
    """Tokens came, but not all before our timeout."""
    CANCELLED = "cancelled"
    """We cancelled it."""
    UNREACHABLE = "unreachable"
    """No HTTP answer: the server is gone or never was there."""
    NOT_A_STREAM = "not_a_stream"
    """200 with a body that is not what was asked for."""


_LENGTH_WORDS = re.compile(
    r"context|too long|maximum.{0,20}(length|tokens)|exceed|longer than|max_model_len|max_tokens must be at least 1",
    re.IGNORECASE,
)
_OTHER_WORDS = re.compile(
    r"context[ _](deadline|cancel)\w*([ _]exceed\w*)?"
    r"|(rate.?limit|quota|deadline|time.?out|credits?|retries)\w*[ _](was |is |been )*exceed"
    r"|exceed\w*[ _](your |the |my |current |its )*(rate|quota|deadline|time|credit|budget|retr)",
    re.IGNORECASE,
)
"""Gateways speak of deadlines and quotas in the same words: Go says ``context deadline exceeded`` for a time-out."""
_HIDDEN_TOKENS = 3
_LENGTH_TYPES = {"exceed_context_size_error", "context_length_exceeded"}


def is_about_length(message: str, type_: str | None = None, code: str | None = None) -> bool:
    """Whether a refusal speaks of the request's length. Knows the engines' words, vLLM's context-free one included."""
    if type_ in _LENGTH_TYPES or code in _LENGTH_TYPES:
        return True
    return bool(_LENGTH_WORDS.search(_OTHER_WORDS.sub(" ", message)))


def classify(timeline: RequestTimeline) -> Outcome:
    """The outcome of one request, from what was seen on the wire alone."""
    by_end = {
        EndedBy.CANCELLED: Outcome.CANCELLED,
        EndedBy.UNREACHABLE: Outcome.UNREACHABLE,
        EndedBy.BAD_BODY: Outcome.NOT_A_STREAM,
    }
    if timeline.ended_by in by_end:
        return by_end[timeline.ended_by]
    if timeline.ended_by is EndedBy.TIMEOUT:
        return Outcome.HUNG if timeline.first_token_ns is None else Outcome.TIMED_OUT
    if timeline.ended_by is EndedBy.HTTP_ERROR:
        return _refusal(timeline)
    if timeline.error is not None:
        return Outcome.ERROR_IN_STREAM
    if timeline.ended_by is EndedBy.CUT or (timeline.finish_reason is None and timeline.chunks):
        return Outcome.CUT
    if timeline.finish_reason in ("abort", "error"):
        return Outcome.ABORTED
    if timeline.first_token_ns is None and timeline.finish_reason is None:
        return Outcome.CUT
    if timeline.first_token_ns is None and not _ended_within_a_character(timeline):
        return Outcome.EMPTY
    return _finished(timeline)


def _ended_within_a_character(timeline: RequestTimeline) -> bool:
    """Whether the output may be tokens without text: up to three tokens can be the first bytes of one UTF-8 character,
    which no server sends before it is whole. Seen of vLLM 0.32 with max_tokens 1 and an answer in Hebrew."""
    produced = timeline.usage.completion_tokens if timeline.usage is not None else None
    return timeline.finish_reason == "length" and produced is not None and 1 <= produced <= _HIDDEN_TOKENS


def _refusal(timeline: RequestTimeline) -> Outcome:
    error = timeline.error
    if timeline.status in (429, 503):
        return Outcome.REFUSED_BUSY
    if error is not None and is_about_length(error.message, error.type, error.code):
        return Outcome.REFUSED_LENGTH
    if timeline.status == 413:
        return Outcome.REFUSED_LENGTH
    if timeline.status is not None and timeline.status >= 500:
        return Outcome.SERVER_ERROR
    return Outcome.REFUSED_OTHER


def tokens_produced(timeline: RequestTimeline) -> int | None:
    """Output tokens: what usage says, but never fewer than the chunks that were seen with content, each of which holds
    at least one token. None without usage: chunks alone are only a lower bound."""
    if timeline.usage is None or timeline.usage.completion_tokens is None:
        return None
    return max(timeline.usage.completion_tokens, len(timeline.chunks))


def _finished(timeline: RequestTimeline) -> Outcome:
    produced = tokens_produced(timeline)
    if timeline.finish_reason == "length" and produced is not None and produced < timeline.max_tokens:
        return Outcome.SHORT
    return Outcome.COMPLETED


def completed_as_asked(timeline: RequestTimeline) -> bool:
    """Completed with all the output that was asked for. A natural stop counts (the model chose it); a clamped answer
    does not."""
    if classify(timeline) is not Outcome.COMPLETED:
        return False
    produced = tokens_produced(timeline)
    return produced is None or timeline.finish_reason == "stop" or produced >= timeline.max_tokens
