"""What stands in the evidence of the busy probe, put in order: who was asked when, and beside what.

long     |──── prefill ────|─ decode ─|          from sending to its first token, and on to its end
short      ×  ×    ×   ×  ×  ×   ×  ×   ×        belongs to the phase in which it was *sent*
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from longproof.claim.load_spans import Span
from longproof.claim.view import EvidenceView, Window
from longproof.domain.events import RequestTimeline
from longproof.domain.outcome import completed_as_asked

PROBE = "busy"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One request: its record's key and what was seen of it."""

    key: str
    timeline: RequestTimeline

    @property
    def done(self) -> bool:
        """Completed with all the output that was asked for."""
        return completed_as_asked(self.timeline)

    @property
    def decode(self) -> Span | None:
        """From its first token to its end."""
        first = self.timeline.first_token_ns
        return None if first is None else Span(start_ns=first, end_ns=self.timeline.finished_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Alone:
    """A window of the background alone. `settled`: its short requests sent after the load had got going."""

    window: Window
    shorts: tuple[Asked, ...]
    settled: tuple[Asked, ...]
    span: Span


@dataclass(frozen=True, slots=True, kw_only=True)
class Injection:
    """A window with a long request in it."""

    window: Window
    long: Asked
    shorts: tuple[Asked, ...]

    @property
    def prefill(self) -> Span:
        """From sending the long request to its first token, or to its end where none came."""
        timeline = self.long.timeline
        first = timeline.first_token_ns
        return Span(start_ns=timeline.submitted_ns, end_ns=timeline.finished_ns if first is None else first)

    @property
    def decode(self) -> Span | None:
        """From the long request's first token to its end."""
        return self.long.decode

    def span(self, phase: str) -> Span | None:
        """Of ``prefill`` or ``decode``."""
        return self.prefill if phase == "prefill" else self.decode

    def sent_in(self, phase: str) -> list[Asked]:
        """The short requests sent in that phase."""
        span = self.span(phase)
        return [short for short in self.shorts if span is not None and span.holds(short.timeline.submitted_ns)]

    def decoding_in(self, phase: str) -> list[Asked]:
        """The short requests of whose own decode at least half fell into that phase."""
        span = self.span(phase)
        if span is None:
            return []
        return [s for s in self.shorts if s.decode is not None and 2 * span.shared_ns(s.decode) >= s.decode.ns > 0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Busy:
    """All of it. `twins`: the long request asked alone, here or by the speed probe. `follow_up`: the short request that
    ended the probe."""

    long_tokens: int
    twins: tuple[Asked, ...]
    before: Alone | None
    after: Alone | None
    injections: tuple[Injection, ...]
    follow_up: Asked | None

    @property
    def alone(self) -> tuple[Alone, ...]:
        """The windows without a long request."""
        return tuple(item for item in (self.before, self.after) if item is not None)

    @property
    def windows(self) -> tuple[Window, ...]:
        """All windows, in order."""
        every = [item.window for item in (*self.alone, *self.injections)]
        return tuple(sorted(every, key=lambda window: window.body.started_ns))

    @property
    def idle_ns(self) -> int | None:
        """The longest that the long request took alone, to its first token."""
        found = [twin.timeline.ttft_ns for twin in self.twins if twin.done and twin.timeline.ttft_ns is not None]
        return max(found, default=None)


def busy_of(view: EvidenceView) -> Busy | None:
    """The probe's records in order; None where it did not run."""
    windows = view.windows(PROBE)
    asked = [
        (body.cell, Asked(key=key, timeline=body.timeline))
        for key, body in view.requests(PROBE)
        if body.planned_ns is None
    ]
    if not windows and not asked:
        return None
    longs = [(cell, item) for cell, item in asked if cell.get("role") == "long"]
    injections = [found for window in windows if (found := _injection(window)) is not None]
    lengths = [int(cell["length"]) for cell, _ in longs] + [int(item.window.body.cell["length"]) for item in injections]
    long_tokens = max(lengths, default=0)
    return Busy(
        long_tokens=long_tokens,
        twins=tuple(item for _, item in longs) or _cold(view, long_tokens),
        before=_alone(windows, "before"),
        after=_alone(windows, "after"),
        injections=tuple(injections),
        follow_up=next((item for cell, item in asked if cell.get("phase") == "follow_up"), None),
    )


def _cold(view: EvidenceView, length: int) -> tuple[Asked, ...]:
    """The speed probe's cold requests of that length."""
    return tuple(
        Asked(key=key, timeline=body.timeline)
        for key, body in view.requests("speed")
        if body.cell.get("arm") == "cold" and body.cell.get("length") == length
    )


def _alone(windows: Sequence[Window], phase: str) -> Alone | None:
    window = next((item for item in windows if item.body.cell.get("phase") == phase), None)
    if window is None:
        return None
    start_ns = window.body.started_ns + int(window.body.load.get("lead_ns", 0))
    shorts = _of_role(window, "short")
    return Alone(
        window=window,
        shorts=shorts,
        settled=tuple(short for short in shorts if short.timeline.submitted_ns >= start_ns),
        span=Span(start_ns=start_ns, end_ns=window.body.ended_ns),
    )


def _injection(window: Window) -> Injection | None:
    longs = _of_role(window, "long")
    if window.body.cell.get("phase") != "during" or not longs:
        return None
    return Injection(window=window, long=longs[0], shorts=_of_role(window, "short"))


def _of_role(window: Window, role: str) -> tuple[Asked, ...]:
    return tuple(
        Asked(key=key, timeline=body.timeline) for key, body in window.requests if body.cell.get("role") == role
    )
