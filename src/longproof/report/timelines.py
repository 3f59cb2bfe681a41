"""A window under load as a figure: its requests on one clock, and what the engine's gauges said meanwhile."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from longproof.claim.load_spans import preemptions
from longproof.claim.view import Window
from longproof.domain.engine_metrics import PREEMPTIONS
from longproof.domain.events import EngineSample, RequestTimeline
from longproof.domain.outcome import Outcome, classify, completed_as_asked
from longproof.report.figures import Figure, Legend
from longproof.report.numbers import plural
from longproof.report.plot_frame import Words
from longproof.report.theme import Role
from longproof.report.timeline_plot import Gauge, RequestBar, Strip, timeline

_MOST_BARS = 44
_MOST_POINTS = 400
_REJECTED = {Outcome.REFUSED_BUSY, Outcome.REFUSED_LENGTH, Outcome.REFUSED_OTHER}
_LATE = {Outcome.HUNG, Outcome.TIMED_OUT}
_REASON = "vllm:num_requests_waiting_by_reason{"
"""vLLM 0.32 v1/metrics/loggers.py: why those that wait do so (``capacity``, ``deferred``)."""


def window_figure(window: Window, *, name: str, title: str) -> Figure | None:
    """A window's requests and gauges; None where it has no request. Of many requests all long ones are drawn and those
    nearest to them in time, at most `_MOST_BARS` together."""
    start = window.body.started_ns
    bars = sorted((_bar(body.timeline, str(body.cell.get("role")), start) for _, body in window.requests), key=_sent)
    if not bars:
        return None
    shown = _readable(bars)
    strips = list(_strips(window.samples, start))
    words = Words(name=name, title=title, axis="requests, the oldest on top", unit="")
    return Figure(
        title=title,
        svg=timeline(shown, strips, words),
        caption=" ".join(_caption(bars, shown, window)),
        legend=(*_bar_legend(shown), *_gauge_legend(strips)),
        tall=True,
    )


def _caption(bars: Sequence[RequestBar], shown: Sequence[RequestBar], window: Window) -> Iterator[str]:
    if len(shown) == len(bars):
        yield f"{plural(len(bars), 'request')}."
    else:
        around = "the long ones and those around them" if any(bar.long for bar in bars) else "those in the middle"
        yield f"Drawn are {len(shown)} of {len(bars):,} requests: {around}."
    if not window.samples:
        yield "Nothing is known of the engine meanwhile: it gave no metrics."
        return
    yield f"Below: the engine's own gauges, {plural(len(window.samples), 'sample')}."
    waited = any(sample.waiting for sample in window.samples)
    reasons = waiting_reasons(window.samples)
    if reasons:
        yield f"Why requests waited, by the engine: {', '.join(reasons)}."
    elif waited:
        yield "Why requests waited the engine does not say."
    found = preemptions(window.samples)
    yield ("Whether it preempted any the engine does not say." if found is None else f"{plural(found, 'preemption')}.")


def waiting_reasons(samples: Sequence[EngineSample]) -> tuple[str, ...]:
    """The engine's own words for why requests waited, in the order first seen."""
    found = (
        name.partition('reason="')[2].partition('"')[0]
        for sample in samples
        for name, value in sample.values.items()
        if value > 0 and name.startswith(_REASON) and 'reason="' in name
    )
    return tuple(dict.fromkeys(found))


def _bar_legend(shown: Sequence[RequestBar]) -> Iterator[Legend]:
    kinds = {bar.long for bar in shown}
    if False in kinds:
        what = "short: to its first token" if True in kinds else "to its first token"
        yield Legend(glyph="▬", role=Role.COLD.value, text=what)
    if True in kinds:
        yield Legend(glyph="▬", role=Role.WARM.value, text="long: to its first token")
    if any(bar.first_s is not None for bar in shown):
        yield Legend(glyph="▬", role=Role.TAIL.value, text="from then on: decode")
    ends = {bar.ended for bar in shown}
    for word, glyph, role in (
        ("rejected", "×", Role.REFUSED),
        ("cancelled", "|", Role.INK),
        ("failed", "✕", Role.BAD),
        ("not ended in time", "✕", Role.BAD),
    ):
        if word in ends:
            yield Legend(glyph=glyph, role=role.value, text=word)


def _gauge_legend(strips: Sequence[Strip]) -> Iterator[Legend]:
    for strip in strips:
        for gauge in strip.gauges:
            yield Legend(glyph="━", role=gauge.role.value, text=gauge.name)
        if strip.marks_s:
            yield Legend(glyph="▼", role=Role.BAD.value, text="preemption seen")


def _sent(bar: RequestBar) -> float:
    return bar.sent_s


def _bar(timeline_: RequestTimeline, role: str, start_ns: int) -> RequestBar:
    first = timeline_.first_token_ns
    return RequestBar(
        sent_s=(timeline_.submitted_ns - start_ns) / 1e9,
        first_s=None if first is None else (first - start_ns) / 1e9,
        end_s=(timeline_.finished_ns - start_ns) / 1e9,
        long=role in ("long", "cancelled"),
        ended=_ended(timeline_),
    )


def _ended(timeline_: RequestTimeline) -> str:
    outcome = classify(timeline_)
    if outcome in _REJECTED:
        return "rejected"
    if outcome is Outcome.CANCELLED:
        return "cancelled"
    if outcome in _LATE:
        return "not ended in time"
    return "completed" if completed_as_asked(timeline_) else "failed"


def _readable(bars: Sequence[RequestBar]) -> list[RequestBar]:
    if len(bars) <= _MOST_BARS:
        return list(bars)
    longs = [bar for bar in bars if bar.long]
    centre = (longs[0].sent_s + longs[0].end_s) / 2 if longs else bars[len(bars) // 2].sent_s
    nearest = sorted((bar for bar in bars if not bar.long), key=lambda bar: abs(bar.sent_s - centre))
    kept = longs[:_MOST_BARS] + nearest[: max(0, _MOST_BARS - len(longs))]
    return sorted(kept, key=_sent)


def _strips(samples: Sequence[EngineSample], start_ns: int) -> Iterator[Strip]:
    """KV usage, and who ran and waited: what is not reported is not drawn."""
    thin = samples[:: -(-len(samples) // _MOST_POINTS) or 1]
    used = _gauge("KV usage", Role.WARM, start_ns, [(s.at_ns, s.kv_usage) for s in thin])
    marks = tuple((at - start_ns) / 1e9 for at in _preempted_at(samples))
    if used is not None:
        yield Strip(title="KV pool in use", unit="fraction", gauges=(used,), marks_s=marks)
    counts = (
        _gauge("running", Role.COLD, start_ns, [(s.at_ns, s.running) for s in thin]),
        _gauge("waiting", Role.BAD, start_ns, [(s.at_ns, s.waiting) for s in thin]),
    )
    known = tuple(gauge for gauge in counts if gauge is not None)
    if known:
        yield Strip(title="requests in the engine", unit="", gauges=known, marks_s=() if used is not None else marks)


def _gauge(name: str, role: Role, start_ns: int, seen: Sequence[tuple[int, float | None]]) -> Gauge | None:
    known = [((at - start_ns) / 1e9, float(value)) for at, value in seen if value is not None]
    if not known:
        return None
    return Gauge(name=name, role=role, at_s=tuple(at for at, _ in known), values=tuple(value for _, value in known))


def _preempted_at(samples: Sequence[EngineSample]) -> list[int]:
    """When a sample shows more preemptions than the one before."""
    for counter in PREEMPTIONS:
        seen = [(s.at_ns, total) for s in samples if (total := _total(s, counter)) is not None]
        if seen:
            return [at for (_, before), (at, after) in pairwise(seen) if after > before]
    return []


def _total(sample: EngineSample, name: str) -> float | None:
    found = [value for key, value in sample.values.items() if key == name or key.startswith(name + "{")]
    return sum(found) if found else None
