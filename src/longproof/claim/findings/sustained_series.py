"""What each window of the sustained load says in one number: medians of times, the share that failed, what stayed."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from longproof.claim.view import EvidenceView, Window
from longproof.domain.events import RequestTimeline
from longproof.domain.outcome import Outcome, classify, completed_as_asked
from longproof.evidence.records import NoteBody, RequestBody

PROBE = "sustained"
_WARMUP_PART = 8
"""One window in eight, at least one, is left out of every conclusion: engines compile and fill caches meanwhile."""
_LEAST_REQUESTS = 3
_NS_PER_S = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One window's number. `at_ns`: since the first window began."""

    index: int
    at_ns: int
    value: float
    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One number over the windows that count. `length` is the prompt length where it has one; `role` short or long."""

    metric: str
    role: str | None
    length: int | None
    points: tuple[Point, ...]

    @property
    def values(self) -> tuple[float, ...]:
        return tuple(point.value for point in self.points)

    def thirds(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """The first and the last third of the windows."""
        part = max(1, len(self.points) // 3)
        return self.values[:part], self.values[-part:]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sustained:
    """All windows, and the first `left_out` of them that warm up and enter no series."""

    windows: tuple[Window, ...]
    left_out: int
    times: tuple[Series, ...]
    failures: Series
    kv_floor: Series
    memory: Series
    memory_of: str | None

    @property
    def counted(self) -> tuple[Window, ...]:
        return self.windows[self.left_out :]


def read_series(view: EvidenceView) -> Sustained | None:
    """The run as series; None where no window ran to its end."""
    windows = view.windows(PROBE)
    if not windows:
        return None
    planned = int(windows[0].body.load.get("windows", len(windows)))
    left_out = max(1, planned // _WARMUP_PART)
    counted = windows[left_out:]
    idle = {int(note.detail["window"]): (key, note) for key, note in view.notes(PROBE) if note.what == "idle"}
    begun_ns = windows[0].body.started_ns
    of_memory = [str(note.detail["memory_of"]) for _, note in idle.values() if "memory_of" in note.detail]
    return Sustained(
        windows=windows,
        left_out=left_out,
        times=tuple(_times(counted, begun_ns)),
        failures=_failures(counted, begun_ns),
        kv_floor=_idle("kv_floor_rise", "kv_usage", counted, begun_ns, idle),
        memory=_idle("memory_growth", "memory_bytes", counted, begun_ns, idle),
        memory_of=of_memory[-1] if of_memory else None,
    )


def failed(body: RequestBody) -> bool:
    """Whether a request did not give what was asked; those that we left ourselves did not fail."""
    return not completed_as_asked(body.timeline) and classify(body.timeline) is not Outcome.CANCELLED


def _times(windows: Sequence[Window], begun_ns: int) -> list[Series]:
    lengths = {str(body.cell["role"]): int(body.cell["length"]) for window in windows for _, body in window.requests}
    of_metric: dict[str, Callable[[RequestTimeline], float | None]] = {
        "sustained_ttft_ratio": lambda timeline: timeline.ttft_ns,
        "sustained_tpot_ratio": lambda timeline: timeline.tpot_ns,
    }
    return [
        Series(
            metric=metric,
            role=role,
            length=length,
            points=tuple(
                point for window in windows if (point := _median(window, begun_ns, role, measure)) is not None
            ),
        )
        for role, length in sorted(lengths.items(), reverse=True)
        for metric, measure in of_metric.items()
    ]


def _median(
    window: Window, begun_ns: int, role: str, measure: Callable[[RequestTimeline], float | None]
) -> Point | None:
    """The median over completed requests; None with too few of the short ones. Long ones are few by design."""
    found = [
        (key, measured / _NS_PER_S)
        for key, body in window.requests
        if body.cell["role"] == role and completed_as_asked(body.timeline)
        if (measured := measure(body.timeline))
    ]
    if len(found) < (_LEAST_REQUESTS if role == "short" else 1):
        return None
    value = statistics.median(seconds for _, seconds in found)
    return _point(window, begun_ns, value, tuple(key for key, _ in found))


def _failures(windows: Sequence[Window], begun_ns: int) -> Series:
    points: list[Point] = []
    for window in windows:
        judged = [(key, failed(body)) for key, body in window.requests]
        if judged:
            bad = tuple(key for key, is_bad in judged if is_bad)
            points.append(_point(window, begun_ns, len(bad) / len(judged), bad))
    return Series(metric="sustained_success_rate", role=None, length=None, points=tuple(points))


def _idle(
    metric: str, field: str, windows: Sequence[Window], begun_ns: int, idle: dict[int, tuple[str, NoteBody]]
) -> Series:
    points: list[Point] = []
    for window in windows:
        key, note = idle.get(int(window.body.cell["window"]), ("", None))
        if note is not None and field in note.detail:
            points.append(_point(window, begun_ns, float(note.detail[field]), (key,)))
    return Series(metric=metric, role=None, length=None, points=tuple(points))


def _point(window: Window, begun_ns: int, value: float, keys: tuple[str, ...]) -> Point:
    index = int(window.body.cell["window"])
    return Point(index=index, at_ns=window.body.started_ns - begun_ns, value=value, keys=keys)
