"""Reads what `probe/sustained` asked: does a server that works for a while still work the same?

All conclusions about change rest on one family of tests over the windows (`stats.change_point`), each window being one
value, and together they raise a false alarm with a chance of at most 1 % (Holm). A change must also be one that a user
would mind, and longer than what our own client was late by.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from longproof.claim.findings.sustained_series import PROBE, Series, Sustained, failed, read_series
from longproof.claim.findings.sustained_statements import statements
from longproof.claim.sampled import show
from longproof.claim.statements import Finding, NotShown, Severity, Statement
from longproof.claim.view import EvidenceView, Window
from longproof.domain.measure import Unknown
from longproof.domain.outcome import Outcome, classify
from longproof.domain.outcome_words import in_words
from longproof.domain.units import format_bytes, format_ns, format_tokens
from longproof.stats.change_point import LEAST_VALUES, Rise, rise
from longproof.stats.multiple import holm
from longproof.stats.trend import mann_kendall

ALPHA = 0.01
SLOWER_BY = 1.25
"""Times must grow by a quarter, and by so many seconds: below that nobody minds."""
_LEAST_S = {"sustained_ttft_ratio": 0.005, "sustained_tpot_ratio": 0.001}
_LEAST_FAILURES = 0.05
_LEAST_KV = 0.01
_LEAST_MEMORY = 0.02
_LEAST_MEMORY_BYTES = 32 << 20
_STILL_GROWING = 0.05
_STALL_NS = 5_000_000_000
_STALL_TIMES = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Tested:
    """A series with its rise and the p-value that counts all tests of this family."""

    series: Series
    rise: Rise
    adjusted_p: float

    @property
    def significant(self) -> bool:
        return self.adjusted_p <= ALPHA

    @property
    def ends(self) -> tuple[float, float]:
        """From what to what: around the step, or the first and the last third of a steady rise."""
        if self.rise.kind == "step":
            values, at = self.series.values, self.rise.at
            return statistics.median(values[:at]), statistics.median(values[at:])
        first, last = self.series.thirds()
        return statistics.median(first), statistics.median(last)

    @property
    def where(self) -> str:
        """``from window 9 on, after 4 min 30 s``"""
        if self.rise.kind == "trend":
            return "steadily from window to window"
        point = self.series.points[self.rise.at]
        return f"from window {point.index + 1} on, after {format_ns(point.at_ns)}"


def read(view: EvidenceView) -> Iterator[Statement | Finding | NotShown]:
    """How times, failures, KV floor and memory moved; what got worse, with where and from what to what."""
    run = read_series(view)
    if run is None:
        return
    yield from statements(run)
    tested = tests_of(run, view.header.protocol.seed)
    yield from _degraded(run, tested)
    yield from _errors_grow(run, tested)
    yield from _kv_floor_rises(run, tested)
    yield from _memory_grows(run, tested)
    yield from _stalled(run)
    yield from _server_gone(view)
    yield from _not_tested(run)


def tests_of(run: Sustained, seed: int) -> list[Tested]:
    """Every series that is long enough to test, with its rise; one family, one level."""
    rng = np.random.default_rng(seed)
    found: list[tuple[Series, Rise]] = []
    for series in (*run.times, run.failures, run.kv_floor, run.memory):
        timed = series in run.times
        answer = rise([math.log(value) for value in series.values] if timed else series.values, rng=rng)
        if not isinstance(answer, Unknown):
            found.append((series, answer))
    adjusted = holm([answer.p_value for _, answer in found])
    return [
        Tested(series=series, rise=answer, adjusted_p=p) for (series, answer), p in zip(found, adjusted, strict=True)
    ]


def _of(tested: Sequence[Tested], series: Series) -> Tested | None:
    return next((item for item in tested if item.series is series and item.significant), None)


def _degraded(run: Sustained, tested: Sequence[Tested]) -> Iterator[Finding]:
    worse = [item for series in run.times if (item := _of(tested, series)) is not None and _minds(run, item)]
    if not worse:
        return
    parts = [
        f"{_name(item.series)} went from {show('ttft', item.ends[0])} to {show('ttft', item.ends[1])} {item.where}"
        f" (p = {item.adjusted_p:.2g})"
        for item in worse
    ]
    yield Finding(
        id="sustained.degraded",
        severity=Severity.FAULT,
        text=f"Under the same load the server became slower: {'; '.join(parts)}.",
        evidence=_evidence(worse),
        details={
            f"{item.series.metric}.{item.series.role}": f"{item.ends[1] / item.ends[0]:.3g} times, {item.where}"
            for item in worse
        },
    )


def _minds(run: Sustained, item: Tested) -> bool:
    before, after = item.ends
    least = max(_LEAST_S[item.series.metric], _client_late_s(run.counted))
    return after >= SLOWER_BY * before and after - before >= least


def _client_late_s(windows: Sequence[Window]) -> float:
    """How late our own event loop came back at 19 of 20 looks, in the worst window: no shorter change is the
    server's."""
    worst = 0
    for window in windows:
        late = sorted((lag.late_ns for lag in window.body.lags), reverse=True)
        beyond = window.body.lag_checks // 20
        worst = max(worst, late[beyond] if beyond < len(late) else 0)
    return worst / 1e9


def _errors_grow(run: Sustained, tested: Sequence[Tested]) -> Iterator[Finding]:
    item = _of(tested, run.failures)
    if item is None:
        return
    at = item.rise.at
    before, after = statistics.fmean(item.series.values[:at]), statistics.fmean(item.series.values[at:])
    if after - before < _LEAST_FAILURES:
        return
    late = {point.index for point in item.series.points[at:]}
    kinds = sorted(
        {
            in_words(classify(body.timeline))
            for window in run.counted
            if int(window.body.cell["window"]) in late
            for _, body in window.requests
            if failed(body)
        }
    )
    yield Finding(
        id="sustained.errors_grow",
        severity=Severity.FAULT,
        text=(
            f"Under the same load more requests failed: {100 * before:.3g} % before and {100 * after:.3g} %"
            f" {item.where} ({', '.join(kinds)}; p = {item.adjusted_p:.2g})."
        ),
        evidence=_evidence([item]),
        details={"before": f"{before:.4g}", "after": f"{after:.4g}"},
    )


def _kv_floor_rises(run: Sustained, tested: Sequence[Tested]) -> Iterator[Finding]:
    item = _of(tested, run.kv_floor)
    if item is None or item.series.values[-1] - item.series.values[0] < _LEAST_KV:
        return
    first, last = item.series.values[0], item.series.values[-1]
    yield Finding(
        id="sustained.kv_floor_rises",
        severity=Severity.FAULT,
        text=(
            f"With nothing running, {100 * first:.3g} % of the KV pool were in use after window"
            f" {item.series.points[0].index + 1} and {100 * last:.3g} % after window {item.series.points[-1].index + 1}"
            f" ({item.where}; p = {item.adjusted_p:.2g}): memory of finished requests does not come back."
        ),
        evidence=_evidence([item]),
        details={"first": f"{first:.4g}", "last": f"{last:.4g}"},
    )


def _memory_grows(run: Sustained, tested: Sequence[Tested]) -> Iterator[Finding]:
    item = _of(tested, run.memory)
    if item is None:
        return
    values = item.series.values
    first, last = (statistics.median(part) for part in item.series.thirds())
    half = values[len(values) // 2 :]
    still = mann_kendall(half)
    levels_off = isinstance(still, Unknown) or still > _STILL_GROWING or (half[-1] - half[0]) * 4 < last - first
    if levels_off or last - first < max(_LEAST_MEMORY * first, _LEAST_MEMORY_BYTES):
        return
    yield Finding(
        id="sustained.memory_grows",
        severity=Severity.CAUTION,  # nothing that was promised is broken by it, and a cache that fills looks the same
        text=(
            f"The engine's memory ({run.memory_of}) grew from {format_bytes(first)} to {format_bytes(last)} between"
            f" the first and the last third of the windows and did not level off (p = {item.adjusted_p:.2g}). A leak"
            " looks like this, and so does a cache in host memory that is not full yet (llama.cpp keeps prompts in up"
            " to 8 GiB unless told otherwise): a longer run tells them apart."
        ),
        evidence=_evidence([item]),
        details={"first_bytes": f"{first:.0f}", "last_bytes": f"{last:.0f}"},
    )


def _stalled(run: Sustained) -> Iterator[Finding]:
    """Requests that got no token before the time-out, and stretches in which nobody got one. Long prefills hold others
    up in every window; a stall stands out from those."""
    hung = [key for window in run.windows for key, body in window.requests if classify(body.timeline) is Outcome.HUNG]
    silences = [(_longest_silence_ns(window), window) for window in run.counted]
    usual = statistics.median(silence for silence, _ in silences) if silences else 0
    still = [(ns, window) for ns, window in silences if ns >= max(_STALL_NS, _STALL_TIMES * usual)]
    if not hung and not still:
        return
    parts: list[str] = []
    if hung:
        parts.append(f"{len(hung)} requests got no token before the time-out")
    if still:
        longest, window = max(still, key=lambda pair: pair[0])
        parts.append(
            f"in window {int(window.body.cell['window']) + 1} nobody got a token for {format_ns(longest)}, while the"
            f" longest silence of the other windows was about {format_ns(usual)}"
        )
    yield Finding(
        id="sustained.stalled",
        severity=Severity.FAULT if hung else Severity.CAUTION,
        text=f"The server stood still under a load that it had served: {'; '.join(parts)}.",
        evidence=(*hung[:20], *(window.key for _, window in still)),
        details={"hung": str(len(hung))},
    )


def _longest_silence_ns(window: Window) -> int:
    """The longest time in which requests were under way and none of them got anything."""
    marks: list[int] = []
    for _, body in window.requests:
        timeline = body.timeline
        marks += [timeline.submitted_ns, timeline.finished_ns, *(chunk.at_ns for chunk in timeline.chunks)]
    return max((after - before for before, after in pairwise(sorted(marks))), default=0)


def _server_gone(view: EvidenceView) -> Iterator[Finding]:
    for key, note in view.notes(PROBE):
        if note.what == "died":
            again = "was started again" if note.detail.get("restarted") else "did not come back"
            yield Finding(
                id="sustained.server_gone",
                severity=Severity.FAULT,
                text=f"The server stopped producing tokens under the sustained load and {again}.",
                evidence=(key,),
            )
            return


def _not_tested(run: Sustained) -> Iterator[NotShown]:
    if len(run.counted) < LEAST_VALUES:
        yield NotShown(
            topic="sustained_change",
            text=(
                f"Whether the server changes over time: {len(run.counted)} windows count, and a change takes"
                f" {LEAST_VALUES} to be told from chance."
            ),
            how="let the sustained load last longer",
        )
        return
    if not run.kv_floor.points:
        yield NotShown(
            topic="sustained_kv",
            text="Whether KV memory comes back when nothing runs: the engine does not tell its KV usage.",
            how="expose the engine's metrics",
        )
    if not run.memory.points:
        yield NotShown(
            topic="sustained_memory",
            text="Whether the engine's process grows: its memory is not in its metrics, and it is not ours to look at.",
            how="expose process metrics, or let longproof start the engine",
        )
    if len(run.windows) < int(run.windows[0].body.load.get("windows", 0)):
        yield NotShown(
            topic="sustained_length",
            text=f"What happens after {format_ns(_lasted_ns(run))}: not all windows were run.",
            how="raise --budget",
        )


def _lasted_ns(run: Sustained) -> int:
    return run.windows[-1].body.ended_ns - run.windows[0].body.started_ns


def _name(series: Series) -> str:
    what = "time to first token" if series.metric == "sustained_ttft_ratio" else "time per output token"
    return f"{what} of {series.role} prompts ({format_tokens(series.length or 0)} tokens)"


def _evidence(items: Sequence[Tested]) -> tuple[str, ...]:
    """The first key of every point: a window's requests are many, and its number names them all."""
    keys = [point.keys[0] for item in items for point in item.series.points if point.keys]
    return tuple(dict.fromkeys(keys))
