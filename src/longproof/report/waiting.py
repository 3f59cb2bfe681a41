"""Which requests met a queue: by the engine's own queue clock where it tells of a request, else by its gauge of waiting
requests while they had no token yet.

sent ──────────── first token (or end)
     ▲   ▲   ▲     samples of the gauge: one above 0 = it met a queue; none at all = not known
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass

from longproof.claim.queue_clock import AT_ONCE_NS, Queued, queue_times, quickest_before_slot
from longproof.claim.view import EvidenceView, Window
from longproof.domain.events import RequestTimeline
from longproof.domain.outcome import Outcome, classify
from longproof.evidence.records import WindowBody


@dataclass(frozen=True, slots=True, kw_only=True)
class Waited:
    """Requests that were answered with 200, by what is known of their waiting. The gauge counts all requests: where no
    clock tells, one that met a queue may have stood in it or been served beside it."""

    met_a_queue: int
    no_queue: int
    not_known: int


def waited(view: EvidenceView) -> Waited | None:
    """Over all requests of the run; None where it had no window under load, as an idle server has no queue."""
    probes = dict.fromkeys(record.body.probe for record in view.records if isinstance(record.body, WindowBody))
    if not probes:
        return None
    answered = sum(1 for _, body in view.all_requests() if _answered(body.timeline))
    counts = {True: 0, False: 0}
    quickest = quickest_before_slot(body.timeline for _, body in view.all_requests())
    for window in (window for probe in probes for window in view.windows(probe)):
        for found in _of_window(window, queue_times(window, quickest)):
            counts[found] += 1
    return Waited(met_a_queue=counts[True], no_queue=counts[False], not_known=answered - counts[True] - counts[False])


def _of_window(window: Window, clocks: Mapping[str, Queued]) -> list[bool]:
    """Of each request of which something is known: whether it waited, or somebody while it had no token."""
    known = sorted((sample.at_ns, sample.waiting) for sample in window.samples if sample.waiting is not None)
    moments = [at for at, _ in known]
    found: list[bool] = []
    for key, body in window.requests:
        timeline, clock = body.timeline, clocks.get(key)
        if not _answered(timeline):
            continue
        if clock is not None and (clock.least_ns > AT_ONCE_NS or clock.most_ns <= AT_ONCE_NS):
            found.append(clock.least_ns > AT_ONCE_NS)
            continue
        end = timeline.finished_ns if timeline.first_token_ns is None else timeline.first_token_ns
        inside = known[bisect_left(moments, timeline.submitted_ns) : bisect_left(moments, end)]
        if inside:
            found.append(any(waiting > 0 for _, waiting in inside))
    return found


def _answered(timeline: RequestTimeline) -> bool:
    """Whether it came as far as a 200, or further."""
    return timeline.status == 200 or classify(timeline) is Outcome.COMPLETED
