"""The plots of what happened under load. Each takes plain values and returns one inline SVG."""

# pyright: reportUnknownMemberType=false
# matplotlib's own stubs leave **kwargs unannotated, which makes every drawing call "partially unknown".
from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from longproof.report import ticks
from longproof.report.numbers import number, tick, tokens
from longproof.report.plot_frame import BOTTOM, LEFT, RIGHT, STYLE, TOP, WIDTH, Words, finish, frame, value_ticks
from longproof.report.theme import Role, sentinel

_ROW = 7.0
"""Points that one request's bar takes."""
_GAUGES = 74.0
_GAP = 26.0
_MOST_TOLD = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestBar:
    """One request, in seconds from the window's start: queued or prefilled until `first_s` (None: no token came), then
    decoded until `end_s`. `long`: drawn apart. `ended` is a word: completed, rejected, cancelled, failed."""

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
class Line:
    """Values over an axis; `low` and `high` are ends of intervals where there are some, same length as `values`."""

    label: str
    role: Role
    at: tuple[float, ...]
    values: tuple[float, ...]
    marker: str = "o"
    step: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatCell:
    """One cell: a value, and how many requests it comes from; None = not measured, `why` says it in a word."""

    value: float | None
    n: int


_ENDED = {"rejected": ("x", Role.REFUSED), "cancelled": ("|", Role.MUTED), "failed": ("X", Role.BAD)}


def timeline(bars: Sequence[RequestBar], gauges: Sequence[Gauge], words: Words) -> str:
    """Requests as bars on one clock, the engine's gauges below them on the same clock."""
    below = _GAUGES + _GAP if gauges else 0.0
    height = TOP + BOTTOM + _ROW * max(len(bars), 6) + below
    end_s = max([bar.end_s for bar in bars] + [at for gauge in gauges for at in gauge.at_s[-1:]])
    with _tall(height) as figure:
        rows = _axes(figure, height, bottom=BOTTOM + below, tall=_ROW * max(len(bars), 6))
        rows.set_xlim(0, end_s * 1.01)
        rows.set_ylim(len(bars) - 0.3, -0.7)
        rows.set_yticks([])
        rows.grid(visible=False)
        for row, bar in enumerate(bars):
            _draw_bar(rows, row, bar)
        if gauges:
            rows.tick_params(labelbottom=False)
            under = _axes(figure, height, bottom=BOTTOM, tall=_GAUGES)
            _draw_gauges(under, gauges, end_s)
        else:
            _seconds_axis(rows, end_s)
        told = f"{words.title}. {len(bars)} requests over {end_s:.1f} s; " + "; ".join(
            f"{gauge.name} up to {max(gauge.values):g}" for gauge in gauges if gauge.values
        )
        return _finish_tall(figure, words, told, height)


def _draw_bar(axes: Axes, row: int, bar: RequestBar) -> None:
    wait, decode = (Role.WARM, Role.TAIL) if bar.long else (Role.COLD, Role.TAIL)
    tall = 0.92 if bar.long else 0.62
    until = bar.end_s if bar.first_s is None else bar.first_s
    axes.barh(row, until - bar.sent_s, left=bar.sent_s, height=tall, color=sentinel(wait), alpha=0.85)
    if bar.first_s is not None:
        axes.barh(row, bar.end_s - bar.first_s, left=bar.first_s, height=tall, color=sentinel(decode), alpha=0.45)
    if bar.ended in _ENDED:
        marker, role = _ENDED[bar.ended]
        axes.plot([bar.end_s], [row], marker, color=sentinel(role), markersize=5.5, markeredgewidth=1.6)


def _draw_gauges(axes: Axes, gauges: Sequence[Gauge], end_s: float) -> None:
    """Shares (KV usage) fill the axis from 0 to 1; counts are drawn against their own largest value, named in the
    legend outside."""
    axes.set_ylim(0, 1.08)
    value_ticks(axes, (0.0, 0.5, 1.0), lambda share: f"{100 * share:.0f} %")
    for gauge in gauges:
        top = max(1.0, *gauge.values) if gauge.role is not Role.WARM else 1.0
        heights = [value / top for value in gauge.values]
        axes.plot(gauge.at_s, heights, color=sentinel(gauge.role), linewidth=1.4, drawstyle="steps-post")
        if gauge.role is Role.WARM:
            axes.fill_between(gauge.at_s, heights, step="post", color=sentinel(Role.WARM), alpha=0.15, linewidth=0)
    _seconds_axis(axes, end_s)


def shares(lines: Sequence[Line], words: Words) -> str:
    """Empirical distributions: the share of requests that took at most so long (logarithmic)."""
    with frame() as (figure, axes):
        values = [value for line in lines for value in line.at if value > 0]
        low, high = min(values), max(values)
        axes.set_xscale("log")
        marks = ticks.logarithmic(low, high)
        axes.minorticks_off()
        axes.set_xticks(list(marks), [tick(mark, words.unit) for mark in marks])
        axes.minorticks_off()
        axes.set_xlim(low / 1.2, high * 1.2)
        axes.set_xlabel("at most (log scale)")
        axes.set_ylim(0, 1.04)
        value_ticks(axes, (0.0, 0.5, 1.0), lambda share: f"{100 * share:.0f} %")
        for line in lines:
            axes.plot(line.at, line.values, color=sentinel(line.role), linewidth=1.8, drawstyle="steps-post")
        told = ". ".join(
            f"{line.label}: median {number(_median(line), words.unit)}, n = {len(line.at)}" for line in lines
        )
        return finish(figure, words, f"{words.title}. {told}.")


def over_axis(lines: Sequence[Line], words: Words, *, label: str, marks_at: Sequence[float] = ()) -> str:
    """Values against steps, seconds or turns, from zero. `marks_at`: upright rules, such as a change point."""
    with frame() as (figure, axes):
        places = sorted({at for line in lines for at in line.at})
        top = max([value for line in lines for value in line.values] + [0.0]) or 1.0
        marks = ticks.linear(top)
        value_ticks(axes, marks, lambda value: tick(value, words.unit))
        axes.set_ylim(0, max(top * 1.1, marks[-1] * 1.02))
        wide = (places[-1] - places[0]) or 1.0
        axes.set_xlim(places[0] - 0.05 * wide, places[-1] + 0.05 * wide)
        shown = places if len(places) <= 7 else ticks.linear(places[-1])
        axes.set_xticks(list(shown), [f"{place:,.6g}" for place in shown])
        axes.set_xlabel(label)
        for at in marks_at:
            axes.axvline(at, color=sentinel(Role.BAD), linewidth=1.2, dashes=(4, 3), zorder=1)
        for line in lines:
            style = "steps-post" if line.step else "default"
            axes.plot(
                line.at,
                line.values,
                line.marker,
                linestyle="-",
                color=sentinel(line.role),
                linewidth=1.5,
                markersize=0 if line.step else 5,
                drawstyle=style,
            )
        told = ". ".join(
            f"{line.label}: "
            + ", ".join(
                f"{at:g}: {number(value, words.unit)}"
                for at, value in list(zip(line.at, line.values, strict=True))[:24]
            )
            for line in lines
        )
        return finish(figure, words, f"{words.title}. {told}.")


def heat(rows: Sequence[int], columns: Sequence[int], cells: Sequence[Sequence[HeatCell]], words: Words) -> str:
    """Lengths (rows, tokens) by concurrency (columns): darker is more; every cell has its number and n."""
    height = TOP + BOTTOM + 34.0 * len(rows)
    values = [cell.value for row in cells for cell in row if cell.value is not None]
    low, high = min(values), max(values)
    with _tall(height) as figure:
        axes = _axes(figure, height, bottom=BOTTOM, tall=34.0 * len(rows), left=LEFT + 6)
        axes.set_xlim(-0.5, len(columns) - 0.5)
        axes.set_ylim(-0.5, len(rows) - 0.5)
        axes.grid(visible=False)
        axes.set_xticks(range(len(columns)), [f"{column:,}" for column in columns])
        axes.set_yticks(range(len(rows)), [tokens(row) for row in rows])
        axes.set_xlabel("requests at a time")
        for y, row in enumerate(cells):
            for x, cell in enumerate(row):
                if cell.value is None:
                    axes.text(x, y, "not measured", ha="center", va="center", color=sentinel(Role.MUTED), fontsize=9)
                    continue
                strength = 0.0 if high == low else (cell.value - low) / (high - low)
                axes.barh(y, 0.96, left=x - 0.48, height=0.92, color=sentinel(Role.COLD), alpha=0.10 + 0.32 * strength)
                axes.text(
                    x, y + 0.12, number(cell.value, words.unit), ha="center", va="center", color=sentinel(Role.INK)
                )
                axes.text(
                    x, y - 0.26, f"n = {cell.n}", ha="center", va="center", color=sentinel(Role.MUTED), fontsize=9
                )
        told = ". ".join(
            f"{tokens(length)} tokens, {column} at a time: {number(cell.value, words.unit)}"
            for length, row in zip(rows, cells, strict=True)
            for column, cell in zip(columns, row, strict=True)
            if cell.value is not None
        )
        return _finish_tall(figure, words, f"{words.title}. {told}.", height)


def _few(line: Line) -> list[tuple[float, float]]:
    """As much as anybody wants read out."""
    return list(zip(line.at, line.values, strict=True))[:_MOST_TOLD]


def _median(line: Line) -> float:
    return sorted(line.at)[(len(line.at) - 1) // 2]


def _seconds_axis(axes: Axes, end_s: float) -> None:
    shown = ticks.linear(end_s)
    axes.set_xlim(0, end_s * 1.01)
    axes.set_xticks(list(shown), [f"{place:,.6g}" for place in shown])
    axes.set_xlabel("seconds")


@contextmanager
def _tall(height: float) -> Generator[Figure]:
    with mpl.rc_context(STYLE):  # pyright: ignore[reportArgumentType] # the stubs want literals for the names
        yield Figure(figsize=(WIDTH / 72, height / 72), dpi=72)


def _axes(figure: Figure, height: float, *, bottom: float, tall: float, left: float = LEFT) -> Axes:
    axes = figure.add_axes((left / WIDTH, bottom / height, (WIDTH - left - RIGHT) / WIDTH, tall / height))
    axes.grid(visible=True, axis="y")
    return axes


def _finish_tall(figure: Figure, words: Words, description: str, height: float) -> str:
    """`finish` places the axis words for the usual height."""
    shifted = Words(name=words.name, title=words.title, axis="", unit=words.unit)
    figure.text(4 / WIDTH, 1 - 13 / height, words.axis, color=sentinel(Role.MUTED), va="baseline")
    return finish(figure, shifted, description)
