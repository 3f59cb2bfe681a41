"""Stretches of time under load: who was under way, what came, and for how long nothing came at all. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from longproof.domain.engine_metrics import PREEMPTIONS
from longproof.domain.events import EngineSample, RequestTimeline
from longproof.evidence.records import WindowBody


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """From `start_ns` up to `end_ns`."""

    start_ns: int
    end_ns: int

    @property
    def ns(self) -> int:
        return max(0, self.end_ns - self.start_ns)

    def holds(self, at_ns: int) -> bool:
        """Whether a moment falls into it; its end does not."""
        return self.start_ns <= at_ns < self.end_ns

    def shared_ns(self, other: Span) -> int:
        """For how long both last."""
        return max(0, min(self.end_ns, other.end_ns) - max(self.start_ns, other.start_ns))


def longest_silence(timelines: Sequence[RequestTimeline], span: Span) -> Span:
    """The longest stretch of `span` in which a request was under way all the time and none got a chunk."""
    came = sorted(chunk.at_ns for item in timelines for chunk in item.chunks if span.holds(chunk.at_ns))
    busy = _merged((item.submitted_ns, item.finished_ns) for item in timelines)
    edges = [span.start_ns, *came, span.end_ns]
    longest = Span(start_ns=span.start_ns, end_ns=span.start_ns)
    at = 0
    for start, end in pairwise(edges):
        while at < len(busy) and busy[at].end_ns <= start:
            at += 1
        here = at
        while here < len(busy) and busy[here].start_ns < end:
            quiet = Span(start_ns=max(start, busy[here].start_ns), end_ns=min(end, busy[here].end_ns))
            longest = max(longest, quiet, key=lambda found: found.ns)
            here += 1
    return longest


def _merged(pairs: Iterable[tuple[int, int]]) -> list[Span]:
    """Overlapping stretches as one."""
    merged: list[Span] = []
    for start, end in sorted(pairs):
        if merged and start <= merged[-1].end_ns:
            merged[-1] = Span(start_ns=merged[-1].start_ns, end_ns=max(merged[-1].end_ns, end))
        else:
            merged.append(Span(start_ns=start, end_ns=end))
    return merged


def largest_pause_ns(timeline: RequestTimeline, span: Span) -> int | None:
    """The longest pause between two chunks of one answer that touches `span`; None where no pause does."""
    pauses = [
        after.at_ns - before.at_ns
        for before, after in pairwise(timeline.chunks)
        if before.at_ns < span.end_ns and after.at_ns > span.start_ns
    ]
    return max(pauses, default=None)


def samples_within(samples: Sequence[EngineSample], span: Span) -> list[EngineSample]:
    """Those taken inside."""
    return [sample for sample in samples if span.holds(sample.at_ns)]


def counter_growth(samples: Sequence[EngineSample], name: str) -> float | None:
    """How much a counter grew over a window, label sets summed; steps back (a restart) are left out. None: it is in no
    sample."""
    seen = [total for sample in samples if (total := _total(sample, name)) is not None]
    return sum(max(0.0, after - before) for before, after in pairwise(seen)) if seen else None


def _total(sample: EngineSample, name: str) -> float | None:
    labelled = name + "{"
    found = [value for key, value in sample.values.items() if key == name or key.startswith(labelled)]
    return sum(found) if found else None


MOST_LATE_SHARE = 0.25
"""A client whose event loop is away for more of a window than this was short of a processor: it saw things late, and
where the server runs beside it, that was slow for the same reason. On a quiet machine it is a few per cent. Below it,
the lateness is taken off."""


def late_share(body: WindowBody) -> float:
    """For which share of a window the client's own event loop came back late."""
    return sum(lag.late_ns for lag in body.lags) / max(1, body.ended_ns - body.started_ns)


def client_was_late(*bodies: WindowBody) -> bool:
    """Whether that was too much in any of these windows to conclude from slowness there."""
    return any(late_share(body) > MOST_LATE_SHARE for body in bodies)


def late_within_ns(body: WindowBody, span: Span) -> int:
    """The client's lateness that falls into a stretch."""
    lags = (Span(start_ns=lag.at_ns, end_ns=lag.at_ns + lag.late_ns) for lag in body.lags)
    return sum(span.shared_ns(lag) for lag in lags)


def preemptions(samples: Sequence[EngineSample]) -> int | None:
    """How often a running request lost its memory while the samples were taken. None: the engine does not count."""
    for name in PREEMPTIONS:
        grown = counter_growth(samples, name)
        if grown is not None:
            return round(grown)
    return None
