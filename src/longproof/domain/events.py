"""Timestamped facts: what one request went through, and what an engine's metrics said.

Times are monotonic nanoseconds of the client's clock. A None time means "this did not happen"; the record says what
did.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from longproof.domain.request import CountSource, Route


class Channel(StrEnum):
    """What a content chunk carries."""

    ANSWER = "answer"
    REASONING = "reasoning"


@dataclass(frozen=True, slots=True, kw_only=True)
class ContentChunk:
    """One chunk with content: when it arrived, how many characters, on which channel."""

    at_ns: int
    chars: int
    channel: Channel


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Token usage as the server reports it; None = the field was not in the answer."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerError:
    """An error in the server's own words. `in_stream`: it came inside a 200 stream. `fields`: numbers the error carries
    by name."""

    message: str
    type: str | None = None
    code: str | None = None
    in_stream: bool = False
    fields: dict[str, int] = field(default_factory=dict[str, int])
    body: str = ""


class EndedBy(StrEnum):
    """How the exchange ended, as seen on the wire; judging it is `domain.outcome`'s job."""

    DONE = "done"
    """[DONE] arrived."""
    EOF = "eof"
    """The body ended in order, without [DONE]."""
    CUT = "cut"
    """The connection broke in the middle of the body."""
    HTTP_ERROR = "http_error"
    """A status of 400 or above."""
    TIMEOUT = "timeout"
    """We gave up after the request's own timeout."""
    CANCELLED = "cancelled"
    """We closed it on purpose."""
    UNREACHABLE = "unreachable"
    """No HTTP answer at all."""
    BAD_BODY = "bad_body"
    """200, but not an event stream."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopLogprobs:
    """The most likely first tokens and their log probabilities, as the server reports them."""

    tokens: tuple[str, ...]
    logprobs: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestTimeline:
    """All that was observed of one request. Raw: nothing here is an average or a judgement.

    first_byte  ≤ first_event (role-only chunks count)  ≤ first_token (first chunk with content, any channel)  ≤
    finished
    """

    request_id: str
    route: Route
    submitted_ns: int
    finished_ns: int
    ended_by: EndedBy
    prompt_tokens_sent: int | None
    count_source: CountSource | None
    max_tokens: int
    body_bytes: int
    headers_ns: int | None = None
    first_byte_ns: int | None = None
    first_event_ns: int | None = None
    first_token_ns: int | None = None
    first_answer_token_ns: int | None = None
    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict[str, str])
    chunks: tuple[ContentChunk, ...] = ()
    text: str = ""
    reasoning: str = ""
    finish_reason: str | None = None
    usage: Usage | None = None
    first_logprobs: TopLogprobs | None = None
    error: ServerError | None = None
    transport_error: str | None = None
    malformed: tuple[str, ...] = ()
    engine_timings: dict[str, float] = field(default_factory=dict[str, float])
    engine_request_id: str | None = None

    @property
    def ttft_ns(self) -> int | None:
        """Time to first token: submission to the first chunk with content. None when no content came."""
        return None if self.first_token_ns is None else self.first_token_ns - self.submitted_ns

    @property
    def e2e_ns(self) -> int:
        """Submission to the end of the exchange, however it ended."""
        return self.finished_ns - self.submitted_ns

    @property
    def tpot_ns(self) -> float | None:
        """Time per output token after the first: (last chunk - first token) / (completion_tokens - 1).

        None with fewer than two output tokens or without usage: chunks are not tokens (an engine may send several per
        chunk).
        """
        if self.first_token_ns is None or self.usage is None or not self.chunks:
            return None
        tokens = self.usage.completion_tokens
        if tokens is None or tokens < 2:
            return None
        return (self.chunks[-1].at_ns - self.first_token_ns) / (tokens - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSample:
    """An engine's metrics at one moment: flat ``name{label="x"}`` → value, exactly as scraped, plus the few that every
    engine has.

    `running`, `waiting`: requests. `kv_usage`: fraction of the KV pool in use, 0..1. None = the engine does not report
    it. A gauge may be one engine step old.
    """

    at_ns: int
    running: int | None = None
    waiting: int | None = None
    kv_usage: float | None = None
    values: dict[str, float] = field(default_factory=dict[str, float])
