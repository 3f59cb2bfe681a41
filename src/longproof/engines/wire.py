"""One streamed OpenAI answer: bytes in, facts out. Sans-I/O: the caller reads the socket and says what time it is.

    body bytes + now ──▶ SseParser ──▶ frames ──▶ OpenAIStream ──▶ facts (first byte, event, token; usage, error …)
                                                       └──▶ a Delta per piece of content, for whoever watches

The first *token* is the first piece with content, on any channel. A first chunk that carries only a role (vLLM, SGLang
and llama.cpp send one, with content null or "") and keep-alive comments come earlier and are not it: they are the first
event and the first byte.

Shapes read here, with where they were seen: OpenAI chat and completions chunks; `reasoning_content` (older vLLM,
SGLang, llama.cpp) and `reasoning` (vLLM today); usage in a last chunk without choices (OpenAI, vLLM, llama.cpp chat),
in the chunk that finishes (llama.cpp completions) or in every chunk (vLLM `continuous_usage_stats`); `timings` and
`prompt_progress` (llama.cpp).
"""

from __future__ import annotations

from typing import NamedTuple

from longproof.domain.events import Channel, ContentChunk, EndedBy, ServerError, TopLogprobs, Usage
from longproof.engines.chunk_fields import (
    content_of,
    first_logprobs_of,
    merged,
    reasoning_of,
    tool_text_of,
    usage_of,
)
from longproof.engines.json_fields import JsonObject, as_float, as_list, as_object, as_text, decode
from longproof.engines.server_error import error_from_body, error_in
from longproof.engines.sse import MAX_EVENT_BYTES, Comment, Event, Frame, SseParser, Stray, TooLong

_HEAD_BYTES = 64 * 1024
_PLAIN = {"content", "role"}
_MALFORMED_KEPT = 16
_MALFORMED_CHARS = 512


class Delta(NamedTuple):
    """One piece of content as it arrived: the fact that is kept, and its text."""

    chunk: ContentChunk
    text: str


class OpenAIStream:
    """The facts of one answer, growing as its bytes are fed. Never raises for what the bytes are.

    Attributes are what was seen so far; None and empty mean "not seen". `text` holds answer content and the text of
    tool calls, `reasoning` the rest. `chunks` are the pieces of content in order of arrival. `done`: [DONE] came.
    `overflow`: an event was beyond the limit and the rest is ignored.
    """

    def __init__(self, *, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._parser = SseParser(max_event_bytes=max_event_bytes)
        self._now_ns = 0
        self._head = bytearray()
        self._events = 0
        self._strays: list[str] = []
        self._malformed: list[str] = []
        self._malformed_count = 0
        self._texts: list[str] = []
        self._reasonings: list[str] = []
        self.first_byte_ns: int | None = None
        self.first_event_ns: int | None = None
        self.first_token_ns: int | None = None
        self.first_answer_token_ns: int | None = None
        self.chunks: list[ContentChunk] = []
        self.comments = 0
        self.finish_reason: str | None = None
        self.usage: Usage | None = None
        self.first_logprobs: TopLogprobs | None = None
        self.error: ServerError | None = None
        self.engine_timings: dict[str, float] = {}
        self.engine_request_id: str | None = None
        self.done = False
        self.overflow = False

    @property
    def text(self) -> str:
        """All answer content so far, tool calls included."""
        return "".join(self._texts)

    @property
    def reasoning(self) -> str:
        """All reasoning content so far."""
        return "".join(self._reasonings)

    @property
    def malformed(self) -> tuple[str, ...]:
        """What was no event of this protocol, in its own words: the first 16 pieces, cut at 512 characters, then how
        many more."""
        kept = tuple(self._malformed)
        more = self._malformed_count - len(kept)
        return (*kept, f"… and {more} more") if more else kept

    def feed(self, chunk: bytes, now_ns: int) -> list[Delta]:
        """Takes the next bytes of the body, read at `now_ns`, and returns the content they completed."""
        if not chunk:
            return []
        self._now_ns = max(self._now_ns, now_ns)
        if self.first_byte_ns is None:
            self.first_byte_ns = self._now_ns
        if not self._events and len(self._head) < _HEAD_BYTES:  # asked for only when no event comes at all
            self._head += chunk[: _HEAD_BYTES - len(self._head)]
        return self._take(self._parser.feed(chunk))

    def finish(self, now_ns: int) -> tuple[EndedBy, list[Delta]]:
        """The body ended in order at `now_ns`: how, and the content of a last event that nobody terminated."""
        self._now_ns = max(self._now_ns, now_ns)
        deltas = self._take(self._parser.finish())
        if self.done:
            return EndedBy.DONE, deltas
        if self._events or self.comments or not self._head.strip():
            return EndedBy.EOF, deltas
        return self._finish_without_events(), deltas

    def _finish_without_events(self) -> EndedBy:
        """A body without a single event: an error object is believed, anything else is not the stream we asked for."""
        body = bytes(self._head)
        self._malformed.clear()
        self._malformed_count = 0
        self.error = self.error or _error_of(body)
        if self.error is not None:
            return EndedBy.EOF
        if not self.overflow:
            self._note_malformed(body)
        return EndedBy.BAD_BODY

    def _take(self, frames: list[Frame]) -> list[Delta]:
        deltas: list[Delta] = []
        for frame in frames:
            match frame:
                case Event():
                    self._event(frame, deltas)
                case Comment():
                    self.comments += 1
                case Stray():
                    self._stray(frame.line)
                case TooLong():
                    self.overflow = True
                    self._note_malformed(f"an event of more than {frame.limit_bytes} bytes".encode())
        return deltas

    def _event(self, event: Event, deltas: list[Delta]) -> None:
        self._events += 1
        if self.first_event_ns is None:
            self.first_event_ns = self._now_ns
        data = event.data.strip()
        if self.done:
            self._note_malformed(b"after [DONE]: " + data)
        elif data == b"[DONE]":
            self.done = True
        elif data:
            self._document(event.name, data, deltas)

    def _document(self, name: str, data: bytes, deltas: list[Delta]) -> None:
        document = _object_or_none(data)
        if name == "error":
            self.error = self.error or error_from_body(data, in_stream=True)
            return
        if document is None:
            self._note_malformed(data)
            return
        error = error_in(document, in_stream=True, body=data)
        if error is None:
            self._completion_chunk(document, deltas)
        else:
            self.error = self.error or error

    def _completion_chunk(self, document: JsonObject, deltas: list[Delta]) -> None:
        if self.engine_request_id is None:
            self.engine_request_id = as_text(document.get("id"))
        usage = as_object(document.get("usage"))
        if usage is not None:
            self.usage = merged(self.usage, usage_of(usage))
        if "timings" in document or "prompt_progress" in document:
            self._keep_numbers("", document.get("timings"))
            self._keep_numbers("prompt_progress_", document.get("prompt_progress"))
        for item in as_list(document.get("choices")) or []:
            choice = as_object(item)
            if choice is not None:
                self._choice(choice, deltas)

    def _choice(self, choice: JsonObject, deltas: list[Delta]) -> None:
        if self.first_logprobs is None and choice.get("logprobs") is not None:
            self.first_logprobs = first_logprobs_of(choice.get("logprobs"))
        self.finish_reason = as_text(choice.get("finish_reason")) or self.finish_reason
        delta = as_object(choice.get("delta")) or as_object(choice.get("message")) or {}
        if delta.keys() <= _PLAIN and "text" not in choice:
            self._content(content_of(delta), Channel.ANSWER, deltas)
            return
        self._content(reasoning_of(delta), Channel.REASONING, deltas)
        self._content(content_of(delta) + (as_text(choice.get("text")) or ""), Channel.ANSWER, deltas)
        self._content(tool_text_of(delta), Channel.ANSWER, deltas)

    def _content(self, text: str, channel: Channel, deltas: list[Delta]) -> None:
        if not text:
            return
        if self.first_token_ns is None:
            self.first_token_ns = self._now_ns
        if channel is Channel.ANSWER and self.first_answer_token_ns is None:
            self.first_answer_token_ns = self._now_ns
        (self._texts if channel is Channel.ANSWER else self._reasonings).append(text)
        chunk = ContentChunk(at_ns=self._now_ns, chars=len(text), channel=channel)
        self.chunks.append(chunk)
        deltas.append(Delta(chunk=chunk, text=text))

    def _stray(self, line: bytes) -> None:
        """Bare JSON between events may be an error that a proxy or a dying server wrote into the stream as it was."""
        error = _error_of(line)
        if error is None:
            self._note_malformed(line)
        else:
            self.error = self.error or error

    def _keep_numbers(self, prefix: str, value: object) -> None:
        for name, item in (as_object(value) or {}).items():
            number = as_float(item)
            if number is not None:
                self.engine_timings[prefix + (as_text(name) or name)] = number

    def _note_malformed(self, data: bytes) -> None:
        self._malformed_count += 1
        if len(self._malformed) < _MALFORMED_KEPT:
            self._malformed.append(data[: 4 * _MALFORMED_CHARS].decode("utf-8", "replace")[:_MALFORMED_CHARS])


def _object_or_none(data: bytes) -> JsonObject | None:
    try:
        return as_object(decode(data))
    except ValueError:
        return None


def _error_of(data: bytes) -> ServerError | None:
    document = _object_or_none(data)
    return None if document is None else error_in(document, in_stream=True, body=data)
