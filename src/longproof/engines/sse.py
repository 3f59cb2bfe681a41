"""Server-sent events: bytes in, in any cuts, frames out. No I/O, no time.

    bytes ──▶ lines (LF, CRLF, CR) ──▶ fields ──▶ frame at each blank line
                                  └─▶ comment, stray line: frames of their own, at once

Follows the WHATWG HTML standard, section 9.2.6, and departs from it where servers do: an event that the body's orderly
end leaves without its blank line is delivered (some servers send ``data: [DONE]`` last and no more), an ``error:``
field is an error event (llama.cpp before late 2025), and lines that are no field at all are handed on as `Stray`
instead of being dropped.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

MAX_EVENT_BYTES = 16 * 1024 * 1024
"""No engine sends an event of this size to a request with few logprobs; a body that does is not an event stream."""

_LINE_END = re.compile(rb"\r\n|\n|\r")
_BOM = b"\xef\xbb\xbf"
_KNOWN_FIELDS = frozenset({b"data", b"event", b"id", b"retry", b"error"})


class Event(NamedTuple):
    """One event: its name ("" when the stream gives none) and its data, lines joined by LF."""

    name: str
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Comment:
    """A line that begins with a colon: what servers and proxies keep a connection alive with."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stray:
    """A line that is neither comment nor field, e.g. bare JSON."""

    line: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class TooLong:
    """A line or event beyond the limit. It is the last frame: everything after it is ignored."""

    limit_bytes: int


Frame: TypeAlias = Event | Comment | Stray | TooLong


class SseParser:
    """Feed it the body as it comes; it never raises, and where the body is cut changes nothing."""

    def __init__(self, *, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._limit = max_event_bytes
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._after_cr = False
        self._first_line = True
        self._name = ""
        self._data: list[bytes] = []
        self._data_bytes = 0
        self._broken = False

    def feed(self, chunk: bytes) -> list[Frame]:
        """Frames that this piece of the body completes."""
        frames: list[Frame] = []
        if self._broken or not chunk:
            return frames
        if (events := self._whole_events(chunk)) is not None:
            return events
        if self._after_cr and chunk.startswith(b"\n"):
            chunk = chunk[1:]  # the LF of a CRLF that was cut in two: its line has ended already
        self._after_cr = chunk.endswith(b"\r")
        *ended, rest = _LINE_END.split(chunk)
        for piece in ended:
            self._keep(piece, frames)
            if self._broken:
                return frames
            self._line(self._take_line(), frames)
        self._keep(rest, frames)
        return frames

    def _whole_events(self, chunk: bytes) -> list[Frame] | None:
        """What nearly every read of a fast stream is: whole events of one data line each. None where it is not."""
        if not chunk.startswith(b"data: ") or not chunk.endswith(b"\n\n") or b"\r" in chunk or self._in_event:
            return None
        if len(chunk) > self._limit:
            return None
        events: list[Frame] = []
        for piece in chunk[:-2].split(b"\n\n"):
            if not piece.startswith(b"data: ") or b"\n" in piece:
                return None
            events.append(Event("", piece[6:]))
        self._first_line = False
        self._after_cr = False
        return events

    @property
    def _in_event(self) -> bool:
        return bool(self._pending_bytes or self._data or self._name)

    def finish(self) -> list[Frame]:
        """The body ended in order: deliver an event that lacks its blank line. After a cut connection do not call
        this."""
        frames: list[Frame] = []
        if self._broken:
            return frames
        if self._pending_bytes:
            self._line(self._take_line(), frames)
        self._dispatch(frames)
        return frames

    def _keep(self, piece: bytes, frames: list[Frame]) -> None:
        self._pending.append(piece)
        self._pending_bytes += len(piece)
        if self._pending_bytes + self._data_bytes > self._limit:
            self._broken = True
            self._pending.clear()
            self._data.clear()
            frames.append(TooLong(limit_bytes=self._limit))

    def _take_line(self) -> bytes:
        line = b"".join(self._pending)
        self._pending.clear()
        self._pending_bytes = 0
        if self._first_line:
            self._first_line = False
            line = line.removeprefix(_BOM)
        return line

    def _line(self, line: bytes, frames: list[Frame]) -> None:
        if not line:
            self._dispatch(frames)
            return
        name, colon, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if colon and not name:
            frames.append(Comment(text=value.decode("utf-8", "replace")))
        elif name not in _KNOWN_FIELDS:
            frames.append(Stray(line=line))
        elif name == b"data":
            self._add_data(value)
        elif name == b"event":
            self._name = value.decode("utf-8", "replace")
        elif name == b"error":
            self._name = "error"
            self._add_data(value)

    def _add_data(self, value: bytes) -> None:
        self._data.append(value)
        self._data_bytes += len(value) + 1

    def _dispatch(self, frames: list[Frame]) -> None:
        if self._data:
            frames.append(Event(name=self._name, data=b"\n".join(self._data)))
        self._name = ""
        self._data.clear()
        self._data_bytes = 0
