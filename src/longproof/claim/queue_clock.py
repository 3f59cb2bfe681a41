"""How long requests stood in an engine's queue, by the engine's own clock. Gauges say who waits at a moment; short
requests come and go unseen between two samples, and this is what tells then.

    llama.cpp   `timings.prompt_ms` begins when a slot takes the request. What passed before its first token besides,
                more than for the quickest request of that length (the way to the server, tokenizing), is the wait

    histogram   a sum of queue times, grown when a request is over (vLLM 0.32) or first scheduled (SGLang 0.5)

                sample ──── a ────── this one ────── b ──── sample        the sum grew by all three
                at most the growth; at least the growth less what a and b can have waited: their times to first token

The histogram's count must have grown by as many requests as can be among ours there: else somebody else's are in it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from longproof.claim.load_spans import Span
from longproof.claim.view import Window
from longproof.domain.engine_metrics import growth
from longproof.domain.events import EngineSample, RequestTimeline
from longproof.domain.outcome import completed_as_asked
from longproof.domain.units import NS_PER_MS

AT_ONCE_NS = 20_000_000
"""Less than this in a queue is a step of the engine, not a wait."""
_EDGE_NS = 50_000_000
"""What is over for us is over for the engine's metrics within this."""
_ENDED, _TAKEN = "vllm:request_queue_time_seconds", "sglang:queue_time_seconds"
_WIDER = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Queued:
    """A request's time in the queue: `least_ns` at least and `most_ns` at most."""

    least_ns: int
    most_ns: int


def quickest_before_slot(timelines: Iterable[RequestTimeline]) -> dict[int, int]:
    """Prompt tokens → the least time (ns) that a request of that length spent outside llama.cpp's own clock."""
    found: dict[int, int] = {}
    for timeline in timelines:
        outside = _before_slot_ns(timeline)
        if outside is not None:
            length = timeline.prompt_tokens_sent or 0
            found[length] = min(outside, found.get(length, outside))
    return found


def queue_times(window: Window, quickest: Mapping[int, int]) -> dict[str, Queued]:
    """By record key: the window's requests of which an engine's clock says something. `quickest`: of
    `quickest_before_slot`, over as many requests as there are."""
    found: dict[str, Queued] = {}
    timelines = [(key, body.timeline) for key, body in window.requests]
    for key, timeline in timelines:
        outside = _before_slot_ns(timeline)
        if outside is not None:
            waited = max(0, outside - quickest.get(timeline.prompt_tokens_sent or 0, 0))
            found[key] = Queued(least_ns=waited, most_ns=outside)
    for name in (_ENDED, _TAKEN):
        histogram = _Histogram(name, window.samples, [timeline for _, timeline in timelines])
        for key, timeline in timelines:
            queued = histogram.queued(timeline)
            if queued is not None:
                found[key] = queued
    return found


def _before_slot_ns(timeline: RequestTimeline) -> int | None:
    prompt_ms = timeline.engine_timings.get("prompt_ms")
    if prompt_ms is None or timeline.ttft_ns is None:
        return None
    return max(0, timeline.ttft_ns - round(prompt_ms * NS_PER_MS))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Grown:
    """What a histogram grew by between two samples, and who can be in it: `sure` many for certain, and the times
    without a token of all that may be, longest first, summed up from the left."""

    ns: int
    count: int
    sure: int
    tokenless_ns: tuple[int, ...]
    sums_ns: tuple[int, ...]

    def queued(self, own_ns: int) -> Queued | None:
        """Of a request that is in it for certain and was `own_ns` without a token. None where the count does not fit
        the requests."""
        if not max(1, self.sure) <= self.count <= len(self.tokenless_ns):
            return None
        among = own_ns >= self.tokenless_ns[self.count - 1]
        others_ns = self.sums_ns[self.count] - own_ns if among else self.sums_ns[self.count - 1]
        return Queued(least_ns=max(0, self.ns - others_ns), most_ns=min(self.ns, own_ns))


class _Histogram:
    """One histogram of queue times over a window."""

    def __init__(self, name: str, samples: Sequence[EngineSample], timelines: Sequence[RequestTimeline]) -> None:
        self._name = name
        self._samples = [sample for sample in samples if growth(sample, sample, f"{name}_count") is not None]
        self._at_ns = [sample.at_ns for sample in self._samples]
        spans = [(span, timeline) for timeline in timelines if (span := _counted_in(name, timeline)) is not None]
        self._spans = sorted(spans, key=lambda item: item[0].start_ns) if self._samples else []
        self._starts_ns = [span.start_ns for span, _ in self._spans]
        self._longest_ns = max((span.ns for span, _ in self._spans), default=0)
        self._grown: dict[tuple[int, int], _Grown | None] = {}

    def queued(self, timeline: RequestTimeline) -> Queued | None:
        """Of one completed request, where a sample was taken before and after the engine counted it."""
        span = _counted_in(self._name, timeline)
        if span is None or not completed_as_asked(timeline):
            return None
        first, last = bisect_right(self._at_ns, span.start_ns) - 1, bisect_left(self._at_ns, span.end_ns)
        for wider in range(_WIDER):  # where a late client saw an end on the other side of a sample, the next ones tell
            low, high = first - wider, last + wider
            if low < 0 or high >= len(self._samples):
                return None
            if (low, high) not in self._grown:
                self._grown[low, high] = self._between(self._samples[low], self._samples[high])
            grown = self._grown[low, high]
            queued = None if grown is None else grown.queued(_tokenless_ns(timeline))
            if queued is not None:
                return queued
        return None

    def _between(self, first: EngineSample, last: EngineSample) -> _Grown | None:
        seconds, count = growth(first, last, f"{self._name}_sum"), growth(first, last, f"{self._name}_count")
        if seconds is None or count is None:
            return None
        low = bisect_left(self._starts_ns, first.at_ns - self._longest_ns)
        near = self._spans[low : bisect_left(self._starts_ns, last.at_ns)]
        possible = [(span, timeline) for span, timeline in near if span.end_ns > first.at_ns]
        tokenless_ns = sorted((_tokenless_ns(timeline) for _, timeline in possible), reverse=True)
        return _Grown(
            ns=round(seconds * 1e9),
            count=round(count),
            sure=sum(
                span.start_ns >= first.at_ns and span.end_ns <= last.at_ns and completed_as_asked(timeline)
                for span, timeline in possible
            ),
            tokenless_ns=tuple(tokenless_ns),
            sums_ns=tuple(accumulate(tokenless_ns, initial=0)),
        )


def _counted_in(name: str, timeline: RequestTimeline) -> Span | None:
    """When the engine counted it, by the client's clock; None where it never got that far."""
    if timeline.status != 200:
        return None
    if name == _TAKEN:
        end = timeline.finished_ns if timeline.first_token_ns is None else timeline.first_token_ns
        return Span(start_ns=timeline.submitted_ns, end_ns=end + _EDGE_NS)
    return Span(start_ns=timeline.finished_ns - _EDGE_NS, end_ns=timeline.finished_ns + _EDGE_NS)


def _tokenless_ns(timeline: RequestTimeline) -> int:
    """How long it had no token: no request waits longer."""
    end = timeline.finished_ns if timeline.first_token_ns is None else timeline.first_token_ns
    return end - timeline.submitted_ns
