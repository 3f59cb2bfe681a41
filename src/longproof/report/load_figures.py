"""Which plots evidence of load gets: one function per probe, each drawing only what was measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from longproof.claim.busy_phases import Busy, busy_of
from longproof.claim.findings.sustained_series import read_series
from longproof.claim.overload_steps import Overload, overload_of
from longproof.claim.statements import Claim, Statement
from longproof.claim.view import EvidenceView, Window
from longproof.domain.events import EngineSample, RequestTimeline
from longproof.domain.measure import Measured
from longproof.domain.outcome import Outcome, classify, completed_as_asked
from longproof.report.figures import Figure, Legend
from longproof.report.load_plots import Gauge, HeatCell, Line, RequestBar, heat, over_axis, shares, timeline
from longproof.report.numbers import plural, short_ns
from longproof.report.plot_frame import Words
from longproof.report.theme import Role

_MOST_BARS = 44
_MOST_POINTS = 400
_REJECTED = {Outcome.REFUSED_BUSY, Outcome.REFUSED_LENGTH, Outcome.REFUSED_OTHER}
_BAR_LEGEND = (
    Legend(glyph="▬", role=Role.COLD.value, text="short: to its first token"),
    Legend(glyph="▬", role=Role.WARM.value, text="long: to its first token"),
    Legend(glyph="▭", role=Role.TAIL.value, text="decode"),
    Legend(glyph="×", role=Role.REFUSED.value, text="rejected"),
    Legend(glyph="✕", role=Role.BAD.value, text="failed"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPart:
    """What one probe under load showed: its figures, the claim's statements and where they end."""

    id: str
    title: str
    lead: str
    figures: tuple[Figure, ...]
    statements: tuple[Statement, ...]


_PARTS = (
    ("busy", "Busy", "A long request among short ones, and the short ones it meets."),
    ("reclaim", "Reclaim", "What a cancelled request held, and how soon it came back."),
    ("restart", "Restart", "The same questions before and after the server was started anew."),
    ("disaggregated", "Prefill and decode apart", "What goes from the prefill server to the decode server."),
    ("conversation", "Conversations", "Turn 1 pays; what do the later turns pay?"),
    (
        "sweep",
        "Length by concurrency",
        "Times over prompt length and requests at a time, cold and prefix known.",
    ),
    ("sustained", "Sustained", "A mixed load over time, in windows of equal length."),
    ("overload", "Overload", "More and more at once, to beyond what fits, and what came after."),
)


def parts(claim: Claim, view: EvidenceView) -> tuple[LoadPart, ...]:
    """Every probe under load that the claim speaks of."""
    drawn = {
        "busy": list(_busy(view)),
        "reclaim": list(_reclaim(view)),
        "conversation": list(_conversation(claim)),
        "sweep": list(_sweep(claim)),
        "sustained": list(_sustained(view)),
        "overload": list(_overload(view)),
    }
    found: list[LoadPart] = []
    for id_, title, lead in _PARTS:
        statements = tuple(item for item in claim.statements if item.id.split(".")[0] == id_)
        figures = tuple(drawn.get(id_, ()))
        if statements or figures:
            found.append(LoadPart(id=id_, title=title, lead=lead, figures=figures, statements=statements))
    return tuple(found)


# -- timelines --------------------------------------------------------------------------------------------------------


def _timeline(window: Window, name: str, title: str) -> Figure | None:
    """A window's requests; of many, all long ones and those nearest to them in time."""
    start = window.body.started_ns
    bars = sorted((_bar(body.timeline, str(body.cell.get("role")), start) for _, body in window.requests), key=_sent)
    if not bars:
        return None
    shown = _readable(bars)
    words = Words(name=name, title=title, axis=f"{title}: requests, oldest on top", unit="")
    rule = (
        ""
        if len(shown) == len(bars)
        else f" Drawn are {len(shown)} of {len(bars)}: the long ones and those around them."
    )
    gauges = _gauges(window.samples, start)
    legend = tuple(line for line in _BAR_LEGEND if _needed(line, shown))
    legend += tuple(Legend(glyph="─", role=gauge.role.value, text=gauge.name) for gauge in gauges)
    return Figure(
        title=title,
        svg=timeline(shown, gauges, words),
        caption=f"{plural(len(bars), 'request')}.{rule} Below: the engine's own gauges on the same clock.",
        legend=legend,
    )


def _needed(line: Legend, bars: Sequence[RequestBar]) -> bool:
    words = {"long: to its first token": any(bar.long for bar in bars)}
    words |= {word: any(bar.ended == word for bar in bars) for word in ("rejected", "failed")}
    return words.get(line.text, True)


def _sent(bar: RequestBar) -> float:
    return bar.sent_s


def _bar(timeline_: RequestTimeline, role: str, start_ns: int) -> RequestBar:
    first = timeline_.first_token_ns
    return RequestBar(
        sent_s=(timeline_.submitted_ns - start_ns) / 1e9,
        first_s=None if first is None else (first - start_ns) / 1e9,
        end_s=(timeline_.finished_ns - start_ns) / 1e9,
        long=role == "long",
        ended=_ended(timeline_),
    )


def _ended(timeline_: RequestTimeline) -> str:
    outcome = classify(timeline_)
    if outcome in _REJECTED:
        return "rejected"
    if outcome is Outcome.CANCELLED:
        return "cancelled"
    return "completed" if completed_as_asked(timeline_) else "failed"


def _readable(bars: Sequence[RequestBar]) -> list[RequestBar]:
    if len(bars) <= _MOST_BARS:
        return list(bars)
    longs = [bar for bar in bars if bar.long]
    centre = (longs[0].sent_s + longs[0].end_s) / 2 if longs else bars[len(bars) // 2].sent_s
    nearest = sorted((bar for bar in bars if not bar.long), key=lambda bar: abs(bar.sent_s - centre))
    kept = longs[:_MOST_BARS] + nearest[: max(0, _MOST_BARS - len(longs))]
    return sorted(kept, key=_sent)


def _gauges(samples: Sequence[EngineSample], start_ns: int) -> list[Gauge]:
    thin = samples[:: max(1, len(samples) // _MOST_POINTS)]
    at = tuple((sample.at_ns - start_ns) / 1e9 for sample in thin)
    found: list[Gauge] = []
    if any(sample.kv_usage is not None for sample in thin):
        values = tuple(sample.kv_usage or 0.0 for sample in thin)
        found.append(Gauge(name="KV usage", role=Role.WARM, at_s=at, values=values))
    for name, role in (("running", Role.COLD), ("waiting", Role.BAD)):
        seen = [sample.running if name == "running" else sample.waiting for sample in thin]
        if any(value is not None for value in seen):
            values = tuple(float(value or 0) for value in seen)
            label = f"{name} (at most {max(values):.0f})"
            found.append(Gauge(name=label, role=role, at_s=at, values=values))
    return [gauge for gauge in found if gauge.values]


# -- one function per probe -------------------------------------------------------------------------------------------


def _busy(view: EvidenceView) -> Iterator[Figure]:
    busy = busy_of(view)
    if busy is None:
        return
    lines = _phases(busy)
    if len(lines) > 1:
        words = Words(name="busy-ttft", title="Short requests by phase", axis="share of short requests", unit="s")
        yield Figure(
            title="Time to first token of the short ones",
            svg=shares(lines, words),
            caption="Every step is one completed request; the further to the right, the later its first token came.",
            legend=tuple(
                Legend(glyph="─", role=line.role.value, text=f"{line.label} (n = {len(line.at)})") for line in lines
            ),
        )
    if busy.injections:
        drawn = _timeline(busy.injections[0].window, "busy-time", "With the long request")
        if drawn is not None:
            yield drawn


def _phases(busy: Busy) -> list[Line]:
    groups = [
        ("before", Role.MUTED, [] if busy.before is None else list(busy.before.settled)),
        ("during its prefill", Role.WARM, [s for one in busy.injections for s in one.sent_in("prefill")]),
        ("during its decode", Role.TAIL, [s for one in busy.injections for s in one.sent_in("decode")]),
        ("after", Role.COLD, [] if busy.after is None else list(busy.after.settled)),
    ]
    found: list[Line] = []
    for label, role, asked in groups:
        times = sorted(item.timeline.ttft_ns / 1e9 for item in asked if item.done and item.timeline.ttft_ns is not None)
        if times:
            values = tuple((i + 1) / len(times) for i in range(len(times)))
            found.append(Line(label=label, role=role, at=tuple(times), values=values))
    return found


def _reclaim(view: EvidenceView) -> Iterator[Figure]:
    """KV usage (or running requests) from shortly before each cancel on, all cancels of a stage in one line each."""
    stages = {"at_once": Role.MUTED, "queued": Role.MUTED, "prefill": Role.WARM, "decode": Role.COLD}
    lines: list[Line] = []
    what = "KV usage"
    for window in view.windows("reclaim"):
        stage = str(window.body.cell.get("stage", ""))
        left = [body.left_ns for _, body in window.requests if body.left_ns is not None]
        if not left or stage not in stages or not window.samples:
            continue
        known = [(s.at_ns, s.kv_usage) for s in window.samples if s.kv_usage is not None]
        if not known:
            known = [(s.at_ns, float(s.running)) for s in window.samples if s.running is not None]
            what = "running requests"
        around = [((at - left[0]) / 1e9, value) for at, value in known]
        if around:
            at, values = zip(*around, strict=True)
            lines.append(Line(label=stage, role=stages[stage], at=at, values=values, step=True))
    if lines and any(value > 0 for line in lines for value in line.values):
        unit = "fraction" if what == "KV usage" else ""
        words = Words(name="reclaim", title=f"{what} around each cancel", axis=what, unit=unit)
        used = dict.fromkeys((line.label, line.role) for line in lines)
        yield Figure(
            title="Around each cancel",
            svg=over_axis(lines, words, label="seconds from leaving", marks_at=(0.0,)),
            caption=f"{plural(len(lines), 'cancel')}, each a line; the red rule is when the client left.",
            legend=tuple(Legend(glyph="─", role=role.value, text=f"left: {label}") for label, role in used),
        )


def _conversation(claim: Claim) -> Iterator[Figure]:
    found: dict[str, list[tuple[float, float]]] = {}
    for item in claim.statements:
        if item.metric == "conversation_ttft" and isinstance(item.value, Measured) and "turn" in item.conditions:
            together = item.conditions.get("concurrency", "1")
            found.setdefault(together, []).append((float(item.conditions["turn"]), item.value.value))
    roles = (Role.COLD, Role.WARM, Role.TAIL, Role.MUTED)
    lines = [
        Line(
            label=f"{together} at once",
            role=role,
            at=tuple(t for t, _ in sorted(p)),
            values=tuple(v for _, v in sorted(p)),
        )
        for (together, p), role in zip(found.items(), roles, strict=False)
    ]
    if lines and len(lines[0].at) > 1:
        words = Words(name="turns", title="Time to first token by turn", axis="time to first token", unit="s")
        yield Figure(
            title="Turn by turn",
            svg=over_axis(lines, words, label="turn"),
            caption="Means. A server that keeps the conversation pays only for what is new.",
            legend=tuple(Legend(glyph="●", role=line.role.value, text=line.label) for line in lines),
        )


def _sweep(claim: Claim) -> Iterator[Figure]:
    for cache, label in (("cold", "cold"), ("hit", "with a known prefix")):
        for metric, title, unit in (
            ("sweep_ttft", "Time to first token", "s"),
            ("sweep_tpot", "Time per output token", "s"),
        ):
            cells = {
                (item.at_tokens or 0, int(item.conditions["concurrency"])): HeatCell(value=item.value.value, n=item.n)
                for item in claim.statements
                if item.metric == metric
                and item.conditions.get("cache") == cache
                and "concurrency" in item.conditions
                and isinstance(item.value, Measured)
            }
            if len(cells) < 2:
                continue
            rows, columns = sorted({length for length, _ in cells}), sorted({many for _, many in cells})
            empty = HeatCell(value=None, n=0)
            grid = [[cells.get((row, column), empty) for column in columns] for row in rows]
            words = Words(name=f"{metric}-{cache}", title=f"{title}, {label}", axis="prompt tokens", unit=unit)
            yield Figure(
                title=f"{title}, {label}", svg=heat(rows, columns, grid, words), caption="Means; darker is more."
            )


def _sustained(view: EvidenceView) -> Iterator[Figure]:
    run = read_series(view)
    if run is None:
        return
    for series in run.times:
        if len(series.points) < 2:
            continue
        what = "time to first token" if "ttft" in series.metric else "time per output token"
        title = f"{what.capitalize()}, {series.role} prompts"
        at = tuple(point.at_ns / 1e9 for point in series.points)
        line = Line(label=str(series.role), role=Role.COLD, at=at, values=tuple(v / 1e9 for v in series.values))
        words = Words(name=f"sustained-{series.metric}-{series.role}", title=title, axis=f"{what}, median", unit="s")
        yield Figure(
            title=title,
            svg=over_axis([line], words, label="seconds since the load began"),
            caption=f"Medians of {plural(len(series.points), 'window')}; the first are left out as warm-up.",
        )


def _overload(view: EvidenceView) -> Iterator[Figure]:
    seen: Overload | None = overload_of(view)
    if seen is None:
        return
    steps = [step for step in seen.steps if step.name != "idle"]
    sizes = [_size(step.window) for step in steps]
    if len(steps) < 2 or any(size is None for size in sizes):
        return
    at = tuple(float(size or 0) for size in sizes)
    good = tuple(len(step.good(seen.slo)) / step.took_s for step in steps)
    done = tuple(len(step.done) / step.took_s for step in steps)
    lines = [
        Line(label="completed", role=Role.COLD, at=at, values=done, marker="s"),
        Line(label="in time (goodput)", role=Role.TAIL, at=at, values=good),
    ]
    if any(step.refused for step in steps):
        refused = tuple(len(step.refused) / step.took_s for step in steps)
        lines.append(Line(label="rejected", role=Role.REFUSED, at=at, values=refused, marker="x"))
    words = Words(name="overload", title="Requests a second by load", axis="requests a second", unit="")
    yield Figure(
        title="Goodput",
        svg=over_axis(lines, words, label="requests at a time" if _closed(steps[0].window) else "arrivals a second"),
        caption=f"Good is: {seen.slo.how}.",
        legend=tuple(Legend(glyph="●", role=line.role.value, text=line.label) for line in lines),
    )
    worst = steps[-1].window
    drawn = _timeline(worst, "overload-time", f"The heaviest step ({steps[-1].label})")
    if drawn is not None:
        yield drawn
    if seen.recovery is not None and seen.recovery.asked:
        times = [
            ((item.timeline.submitted_ns - seen.recovery.ended_ns) / 1e9, (item.timeline.ttft_ns or 0) / 1e9)
            for item, _ in seen.recovery.asked
            if item.timeline.ttft_ns is not None
        ]
        if len(times) > 1:
            line = Line(
                label="one at a time", role=Role.COLD, at=tuple(t for t, _ in times), values=tuple(v for _, v in times)
            )
            words = Words(name="recovery", title="After the load", axis="time to first token", unit="s")
            yield Figure(
                title="After the load",
                svg=over_axis([line], words, label="seconds since the load ended"),
                caption=f"The idle server's own band ends at {short_ns(seen.recovery.band_ttft_ns)}.",
            )


def _size(window: Window) -> float | None:
    load = window.body.load
    found = load.get("concurrency", load.get("rate_per_s"))
    return float(found) if isinstance(found, (int, float)) else None


def _closed(window: Window) -> bool:
    return "concurrency" in window.body.load
