"""The picture of a window under load: requests as bars, the engine's gauges under them, all on one clock."""

# pyright: reportUnknownMemberType=false
# matplotlib's own stubs leave **kwargs unannotated, which makes every drawing call "partially unknown".
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from longproof.report import ticks
from longproof.report.numbers import tick
from longproof.report.plot_frame import BOTTOM, LEFT, TOP, Words, finish, note, place, sheet, value_ticks
from longproof.report.theme import Role, sentinel

_ROW = 7.0
"""Points that one request's bar takes."""
_LEAST_ROWS = 6
_STRIP = 44.0
_STRIP_GAP = 30.0
_ENDED = {
    "rejected": ("x", Role.REFUSED),
    "cancelled": ("|", Role.INK),
    "failed": ("X", Role.BAD),
    "not ended in time": ("X", Role.BAD),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestBar:
    """One request, in seconds from the window's start: waiting or prefilled until `first_s` (None: no token came),
    then decoded until `end_s`. `long`: drawn apart. `ended` is a word: completed, rejected, cancelled, failed."""

    sent_s: float
    first_s: float | None
    end_s: float
    long: bool
    ended: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauge:
    """A gauge over time: seconds and values; `role` is its colour."""

    name: str
    role: Role
    at_s: tuple[float, ...]
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Strip:
    """Gauges that share one scale, in `unit`; `marks_s`: moments marked at its top."""

    title: str
    unit: str
    gauges: tuple[Gauge, ...]
    marks_s: tuple[float, ...] = ()


def timeline(bars: Sequence[RequestBar], strips: Sequence[Strip], words: Words) -> str:
    """Requests as bars on one clock, the engine's gauges below them on the same clock. The clock spans the bars."""
    rows_tall = _ROW * max(len(bars), _LEAST_ROWS)
    below = len(strips) * (_STRIP + _STRIP_GAP)
    height = TOP + BOTTOM + rows_tall + below
    start, end = min(bar.sent_s for bar in bars), max(bar.end_s for bar in bars)
    margin = 0.02 * ((end - start) or 1.0)
    span = (max(0.0, start - margin), end + margin)
    with sheet(height) as figure:
        rows = place(figure, height, bottom=BOTTOM + below, tall=rows_tall)
        rows.set_ylim(max(len(bars), _LEAST_ROWS) - 0.3, -0.7)
        rows.set_yticks([])
        for row, bar in enumerate(bars):
            _draw_bar(rows, row, bar)
        clocks = [rows, *(_strip(figure, height, at, strip, len(strips)) for at, strip in enumerate(strips))]
        for axes in clocks:
            axes.set_xlim(*span)
            axes.grid(visible=True, axis="x")
            shown = ticks.between(*span)
            axes.set_xticks(shown, [f"{place_:,.6g}" for place_ in shown])
            axes.tick_params(labelbottom=axes is clocks[-1])
        clocks[-1].set_xlabel("seconds since the window began")
        return finish(figure, words, _told(bars, strips, span, words), height=height)


def _draw_bar(axes: Axes, row: int, bar: RequestBar) -> None:
    wait = Role.WARM if bar.long else Role.COLD
    tall = 0.92 if bar.long else 0.62
    until = bar.end_s if bar.first_s is None else bar.first_s
    axes.barh(row, until - bar.sent_s, left=bar.sent_s, height=tall, color=sentinel(wait), alpha=0.85)
    if bar.first_s is not None:
        axes.barh(row, bar.end_s - bar.first_s, left=bar.first_s, height=tall, color=sentinel(Role.TAIL), alpha=0.45)
    if bar.ended in _ENDED:
        marker, role = _ENDED[bar.ended]
        axes.plot([bar.end_s], [row], marker, color=sentinel(role), markersize=5.5, markeredgewidth=1.6, clip_on=False)


def _strip(figure: Figure, height: float, at: int, strip: Strip, count: int) -> Axes:
    bottom = BOTTOM + (count - 1 - at) * (_STRIP + _STRIP_GAP)
    axes = place(figure, height, bottom=bottom, tall=_STRIP)
    top = max([value for gauge in strip.gauges for value in gauge.values] + [0.0])
    top = top or (0.01 if strip.unit == "fraction" else 1.0)
    axes.set_ylim(0, top * 1.3)
    value_ticks(axes, (0.0, top), lambda value: tick(float(f"{value:.3g}"), strip.unit))
    note(figure, height, x=LEFT, y=bottom + _STRIP + 6, text=strip.title)
    for gauge in strip.gauges:
        axes.plot(gauge.at_s, gauge.values, color=sentinel(gauge.role), linewidth=1.4, drawstyle="steps-post")
        if strip.unit == "fraction":
            axes.fill_between(
                gauge.at_s, gauge.values, step="post", color=sentinel(gauge.role), alpha=0.15, linewidth=0
            )
    if strip.marks_s:
        heights = [top * 1.14] * len(strip.marks_s)
        axes.plot(strip.marks_s, heights, "v", color=sentinel(Role.BAD), markersize=6.5, zorder=5)
    return axes


def _told(bars: Sequence[RequestBar], strips: Sequence[Strip], span: tuple[float, float], words: Words) -> str:
    ends = dict.fromkeys(bar.ended for bar in bars)
    counts = ", ".join(f"{sum(bar.ended == end for bar in bars)} {end}" for end in ends)
    said = [f"{words.title}. {len(bars)} requests drawn from {span[0]:.1f} s to {span[1]:.1f} s: {counts}"]
    for strip in strips:
        said += [f"{gauge.name} at most {tick(max(gauge.values), strip.unit)}" for gauge in strip.gauges]
        said += [f"{len(strip.marks_s)} moments marked"] if strip.marks_s else []
    return "; ".join(said) + "."
