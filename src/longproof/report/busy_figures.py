"""Figures of a server that works for others at the same time: busy and overload."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from longproof.claim.busy_phases import Asked, Busy, busy_of
from longproof.claim.overload_steps import Overload, Recovery, StepSeen, overload_of
from longproof.claim.statements import Claim, Statement
from longproof.claim.view import EvidenceView
from longproof.domain.events import RequestTimeline
from longproof.domain.measure import Measured
from longproof.report.figures import Figure, Legend
from longproof.report.load_plots import DASH_GLYPHS, Across, Line, over_axis, shares
from longproof.report.numbers import number, sample_size, short_ns, spread_text, value_text
from longproof.report.plot_frame import Words
from longproof.report.row_plots import Reading, Whiskers, whiskers
from longproof.report.theme import Role
from longproof.report.timelines import window_figure

_PHASES = {
    "before": ("before", Role.MUTED),
    "prefill": ("during its prefill", Role.WARM),
    "decode": ("during its decode", Role.TAIL),
    "after": ("after", Role.COLD),
}


def busy(claim: Claim, view: EvidenceView) -> Iterator[Figure]:
    """Short requests before, during and after a long one, and the long one among them."""
    found = busy_of(view)
    if found is None:
        return
    drift = next((item.text for item in claim.statements if item.metric == "busy_drift"), "")
    lines = _distributions(found)
    if len(lines) > 1:
        words = Words(name="busy-ttft", title="Short requests by phase", axis="share of short requests", unit="s")
        yield Figure(
            title="Time to first token of the short ones",
            svg=shares(lines, words),
            caption=f"Every step is one completed request; further to the right is later. {drift}".strip(),
            legend=tuple(
                Legend(glyph=glyph, role=line.role.value, text=f"{line.label} ({sample_size(len(line.at))})")
                for line, glyph in zip(lines, DASH_GLYPHS, strict=False)
            ),
        )
    if found.injections:
        drawn = window_figure(found.injections[0].window, name="busy-time", title="With the long request")
        if drawn is not None:
            yield drawn
    for metric, title in (
        ("busy_short_ttft", "Time to first token, means"),
        ("busy_short_tpot", "Time per output token, means"),
    ):
        yield from _means(claim, metric, title)


def _distributions(found: Busy) -> list[Line]:
    groups: dict[str, Sequence[Asked]] = {
        "before": () if found.before is None else found.before.settled,
        "prefill": [short for one in found.injections for short in one.sent_in("prefill")],
        "decode": [short for one in found.injections for short in one.sent_in("decode")],
        "after": () if found.after is None else found.after.settled,
    }
    lines: list[Line] = []
    for phase, asked in groups.items():
        label, role = _PHASES[phase]
        times = sorted(item.timeline.ttft_ns / 1e9 for item in asked if item.done and item.timeline.ttft_ns)
        if times:
            values = tuple((i + 1) / len(times) for i in range(len(times)))
            lines.append(Line(label=label, role=role, at=tuple(times), values=values))
    return lines


def _means(claim: Claim, metric: str, title: str) -> Iterator[Figure]:
    stated = {item.conditions.get("phase"): item for item in claim.statements if item.metric == metric}
    rows = [_whisker(stated[phase], *_PHASES[phase]) for phase in _PHASES if phase in stated]
    known = [row for row in rows if row is not None]
    if len(known) > 1:
        words = Words(name=metric.replace("_", "-"), title=f"{title}, by phase", axis="mean time", unit="s")
        yield Figure(
            title=title,
            svg=whiskers(known, words),
            caption="The short requests, with the interval of each mean as a pale bar.",
        )


def _whisker(item: Statement, label: str, role: Role) -> Whiskers | None:
    if not isinstance(item.value, Measured) or item.value.value <= 0:
        return None
    spread = item.interval
    note = f"{value_text(item)} {spread_text(item)}, {sample_size(item.n)}" if item.n > 1 else value_text(item)
    reading = Reading(
        value=item.value.value,
        low=None if spread is None else spread.low,
        high=None if spread is None else spread.high,
        role=role,
    )
    return Whiskers(label=label, note=note, readings=(reading,))


def overload(view: EvidenceView) -> Iterator[Figure]:
    """Goodput and times by step, the heaviest step on a clock, and the way back."""
    seen = overload_of(view)
    if seen is None:
        return
    steps = [seen.idle, *seen.steps]
    if len(steps) > 1:
        yield _goodput(seen, steps)
        yield from _times(steps)
        drawn = window_figure(steps[-1].window, name="overload-time", title=f"The heaviest step ({steps[-1].label})")
        if drawn is not None:
            yield drawn
    if seen.recovery is not None:
        yield from _recovery(seen.recovery)


def _across(steps: Sequence[StepSeen]) -> Across:
    rate = any("rate_per_s" in step.window.body.load for step in steps)
    names = tuple(_size(step) for step in steps)
    return Across(label="arrivals a second" if rate else "requests at a time", names=names)


def _size(step: StepSeen) -> str:
    load = step.window.body.load
    size = load.get("rate_per_s", load.get("concurrency"))
    return f"{size:g}" if isinstance(size, (int, float)) else step.name


def _goodput(seen: Overload, steps: Sequence[StepSeen]) -> Figure:
    at = tuple(float(i) for i in range(len(steps)))

    def per_second(counts: Sequence[int]) -> tuple[float, ...]:
        return tuple(count / step.took_s for count, step in zip(counts, steps, strict=True))

    lines = [
        Line(
            label="completed",
            role=Role.COLD,
            at=at,
            values=per_second([len(step.done) for step in steps]),
            marker="s",
        ),
        Line(
            label="in time (goodput)",
            role=Role.TAIL,
            at=at,
            values=per_second([len(step.good(seen.slo)) for step in steps]),
        ),
    ]
    if any(step.refused for step in steps):
        refused = per_second([len(step.refused) for step in steps])
        lines.append(Line(label="rejected", role=Role.REFUSED, at=at, values=refused, marker="x"))
    failed = [len(step.asked) - len(step.done) - len(step.refused) for step in steps]
    if any(failed):
        lines.append(Line(label="failed or late", role=Role.BAD, at=at, values=per_second(failed), marker="X"))
    words = Words(name="overload", title="Requests a second by load", axis="requests a second", unit="")
    glyphs = {"s": "■", "o": "●", "x": "×", "X": "✕"}
    return Figure(
        title="Goodput",
        svg=over_axis(lines, words, _across(steps)),
        caption=f"In time is: {_limits(seen)}.",
        legend=tuple(Legend(glyph=glyphs[line.marker], role=line.role.value, text=line.label) for line in lines),
    )


def _limits(seen: Overload) -> str:
    slo = seen.slo
    parts = [
        "" if slo.ttft_s is None else f"the first token within {number(slo.ttft_s, 's')}",
        "" if slo.tpot_s is None else f"each later one within {number(slo.tpot_s, 's')}",
    ]
    return f"{' and '.join(part for part in parts if part) or 'completed'} ({slo.how})"


def _times(steps: Sequence[StepSeen]) -> Iterator[Figure]:
    """Quartiles of the time to first token by step."""
    points = [
        (float(i), times)
        for i, step in enumerate(steps)
        if (times := sorted(_first_s(item.timeline) for item in step.done if item.timeline.ttft_ns))
    ]
    if len(points) < 2:
        return
    line = Line(
        label="median",
        role=Role.COLD,
        at=tuple(at for at, _ in points),
        values=tuple(times[(len(times) - 1) // 2] for _, times in points),
        low=tuple(times[0] for _, times in points),
        high=tuple(times[-1] for _, times in points),
    )
    words = Words(name="overload-ttft", title="Time to first token by load", axis="time to first token", unit="s")
    yield Figure(
        title="Time to first token",
        svg=over_axis([line], words, _across(steps)),
        caption="Medians of the completed requests; the pale bar runs from the quickest to the slowest.",
    )


def _recovery(recovery: Recovery) -> Iterator[Figure]:
    timelines = [item.timeline for item, _ in recovery.asked if item.timeline.ttft_ns is not None]
    if len(timelines) < 2:
        return
    line = Line(
        label="one at a time",
        role=Role.COLD,
        at=tuple((timeline.submitted_ns - recovery.ended_ns) / 1e9 for timeline in timelines),
        values=tuple(_first_s(timeline) for timeline in timelines),
    )
    words = Words(name="recovery", title="After the load", axis="time to first token", unit="s")
    took = recovery.recovered_ns
    told = "it was not reached" if took is None else f"reached {short_ns(max(0, took))} after the load"
    yield Figure(
        title="After the load",
        svg=over_axis([line], words, Across(label="seconds since the load ended"), level=recovery.band_ttft_ns / 1e9),
        caption=f"One request at a time. Below the dashed line a request is as quick as on the idle server; "
        f"{recovery.in_a_row} in a row there are a recovery: {told}.",
        legend=(Legend(glyph="●", role=Role.COLD.value, text="request"),),
    )


def _first_s(timeline: RequestTimeline) -> float:
    return (timeline.ttft_ns or 0) / 1e9
