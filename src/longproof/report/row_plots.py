"""Plots made of rows: intervals, parts of a whole, and cells of length by concurrency. Each takes plain values and
returns one inline SVG."""

# pyright: reportUnknownMemberType=false
# matplotlib's own stubs leave **kwargs unannotated, which makes every drawing call "partially unknown".
from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from longproof.report import ticks
from longproof.report.numbers import number, scale_for, tick, tokens
from longproof.report.plot_frame import BOTTOM, LEFT, TOP, WIDTH, Words, finish, note, place, sheet
from longproof.report.theme import Role, sentinel

_ROW = 40.0
_SIDE = 14.0
_CELL = 36.0
_SMALL = 11.8
_ROOMY = 4
"""Columns up to which a cell has room for its unit."""
_LINEAR_UP_TO = 4.0
"""Between values that lie closer together a logarithmic scale has too few round numbers."""
_WIDEST = 6.0
"""An interval that reaches further than so many times the largest value is cut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A value with its interval (None: too few samples for one)."""

    value: float
    low: float | None
    high: float | None
    role: Role
    filled: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Whiskers:
    """A row of readings, one below the other; `note` stands at the right and says them in words."""

    label: str
    note: str
    readings: tuple[Reading, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """A whole and its parts, in order, in the unit of the plot."""

    label: str
    parts: tuple[tuple[Role, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatCell:
    """One cell: a value, and how many samples it comes from; None = not measured."""

    value: float | None
    n: int


def whiskers(rows: Sequence[Whiskers], words: Words, *, reference: float | None = None) -> str:
    """Values with intervals, row by row, on one scale: linear where they lie close together, else logarithmic.
    `reference`: an upright rule, such as 1 for ratios."""
    height = TOP - 14 + BOTTOM + _ROW * len(rows)
    with sheet(height) as figure:
        axes = place(figure, height, bottom=BOTTOM, tall=_ROW * len(rows), left=_SIDE, right=_SIDE + 8)
        _row_axis(axes, len(rows))
        low, high = _reach([reading for row in rows for reading in row.readings], reference)
        _scale(axes, low, high, words)
        for at, row in enumerate(rows):
            _row_words(figure, height, at, len(rows), row.label, row.note)
            if reference is not None:  # beside the readings alone: across the words it would be in the way
                ends = [at + 0.03, at + 0.44]
                axes.plot([reference] * 2, ends, color=sentinel(Role.MUTED), linewidth=1.2, dashes=(3, 2), zorder=1)
            for nth, reading in enumerate(row.readings):
                _draw_reading(axes, at + 0.21 + 0.2 * (nth - (len(row.readings) - 1) / 2), reading, (low / 2, high * 2))
        told = "; ".join(f"{row.label}: {row.note}" for row in rows)
        silent = Words(name=words.name, title=words.title, axis="", unit=words.unit)
        return finish(figure, silent, f"{words.title}. {told}.", height=height)


def _scale(axes: Axes, low: float, high: float, words: Words) -> None:
    """The horizontal scale with its marks."""
    wide = high / low > _LINEAR_UP_TO
    if wide:
        axes.set_xscale("log")
        marks = ticks.logarithmic(low, high)
        marks = marks[:: -(-len(marks) // 5)]
        axes.set_xlim(low / 1.15, high * 1.15)
    else:
        margin = 0.04 * ((high - low) or high)
        marks = ticks.between(low - margin, high + margin)
        axes.set_xlim(low - margin, high + margin)
    axes.minorticks_off()
    axes.set_xticks(marks, [tick(mark, words.unit) for mark in marks])
    axes.minorticks_off()
    axes.set_xlabel(f"{words.axis} (log scale)" if wide else words.axis)


def _draw_reading(axes: Axes, y: float, reading: Reading, cut: tuple[float, float]) -> None:
    colour = sentinel(reading.role)
    if reading.low is not None and reading.high is not None:
        ends = [max(reading.low, cut[0]), min(reading.high, cut[1])]
        axes.plot(ends, [y] * 2, color=colour, linewidth=5, alpha=0.3, solid_capstyle="butt")
    face = colour if reading.filled else sentinel(Role.SURFACE)
    axes.plot([reading.value], [y], "o", color=face, markeredgecolor=colour, markersize=6.5, zorder=4)


def splits(rows: Sequence[Split], words: Words, names: Sequence[str]) -> str:
    """Wholes as bars of their parts from zero; `names` of the parts, for those who cannot see them."""
    height = TOP - 14 + BOTTOM + _ROW * len(rows)
    top = max(sum(value for _, value in row.parts) for row in rows)
    with sheet(height) as figure:
        axes = place(figure, height, bottom=BOTTOM, tall=_ROW * len(rows), left=_SIDE, right=_SIDE + 8)
        _row_axis(axes, len(rows))
        marks = ticks.linear(top)
        axes.set_xlim(0, max(top, marks[-1]))
        axes.set_xticks(marks, [tick(mark, words.unit) for mark in marks])
        axes.set_xlabel(words.axis)
        for at, row in enumerate(rows):
            total = sum(value for _, value in row.parts)
            _row_words(figure, height, at, len(rows), row.label, number(total, words.unit))
            left = 0.0
            for role, value in row.parts:
                axes.barh(at + 0.18, value, left=left, height=0.36, color=sentinel(role), alpha=0.8)
                left += value
        told = "; ".join(
            f"{row.label}: "
            + ", ".join(
                f"{name} {number(value, words.unit)}" for name, (_, value) in zip(names, row.parts, strict=True)
            )
            for row in rows
        )
        silent = Words(name=words.name, title=words.title, axis="", unit=words.unit)
        return finish(figure, silent, f"{words.title}. {told}.", height=height)


def heat(rows: Sequence[int], columns: Sequence[int], cells: Sequence[Sequence[HeatCell]], words: Words) -> str:
    """Lengths (rows, tokens) by concurrency (columns): a stronger colour is more; every cell has its number and n."""
    height = TOP + BOTTOM + _CELL * len(rows)
    values = [cell.value for row in cells for cell in row if cell.value is not None]
    low, high = min(values), max(values)
    with sheet(height) as figure:
        left = max(LEFT, 12 + 7.0 * max(len(tokens(row)) for row in rows))
        axes = place(figure, height, bottom=BOTTOM, tall=_CELL * len(rows), left=left)
        axes.set_xlim(-0.5, len(columns) - 0.5)
        axes.set_ylim(-0.5, len(rows) - 0.5)
        axes.grid(visible=False)
        axes.set_xticks(range(len(columns)), [f"{column:,}" for column in columns])
        axes.set_yticks(range(len(rows)), [tokens(row) for row in rows])
        axes.set_xlabel("requests at a time")
        unit = "" if len(columns) <= _ROOMY else _shared_unit(values, words.unit)
        for y, row in enumerate(cells):
            for x, cell in enumerate(row):
                strength = 0.0 if cell.value is None or high == low else (cell.value - low) / (high - low)
                _draw_cell(axes, x, y, cell, strength, values if unit else (), words.unit)
        told = ". ".join(
            f"{tokens(length)} tokens, {column} at a time: {number(cell.value, words.unit)}"
            for length, row in zip(rows, cells, strict=True)
            for column, cell in zip(columns, row, strict=True)
            if cell.value is not None
        )
        above = f"{words.axis}{f'; cells in {unit}' if unit else ''}"
        shown = Words(name=words.name, title=words.title, axis=above, unit=words.unit)
        return finish(figure, shown, f"{words.title}. {told}.", height=height)


def _draw_cell(
    axes: Axes, x: int, y: int, cell: HeatCell, strength: float, together: Sequence[float], unit: str
) -> None:
    if cell.value is None:
        axes.text(x, y, "–", ha="center", va="center", color=sentinel(Role.MUTED))
        return
    axes.barh(y, 0.96, left=x - 0.48, height=0.92, color=sentinel(Role.COLD), alpha=0.08 + 0.30 * strength)
    said = _bare(cell.value, together, unit) if together else number(cell.value, unit)
    axes.text(x, y + 0.2, said, ha="center", va="center", color=sentinel(Role.INK))
    axes.text(x, y - 0.22, f"n = {cell.n:,}", ha="center", va="center", color=sentinel(Role.INK), fontsize=_SMALL)


def _shared_unit(values: Sequence[float], unit: str) -> str:
    return scale_for(statistics.median(values), unit).suffix.strip()


def _bare(value: float, together: Sequence[float], unit: str) -> str:
    """Three digits in the scale that suits all cells."""
    scaled = value / scale_for(statistics.median(together), unit).divisor
    digits = 0 if scaled == 0 else max(0, 2 - math.floor(math.log10(abs(scaled))))
    return f"{scaled:,.{min(digits, 4)}f}"


def _row_axis(axes: Axes, count: int) -> None:
    axes.set_ylim(count - 0.5, -0.5)
    axes.set_yticks([])
    axes.grid(visible=True, axis="x")


def _row_words(figure: Figure, height: float, at: int, count: int, label: str, right: str) -> None:
    y = BOTTOM + _ROW * (count - at) - 13
    figure.text(_SIDE / WIDTH, y / height, label, color=sentinel(Role.INK), va="baseline")
    note(figure, height, x=WIDTH - _SIDE, y=y, text=right, side="right")


def _reach(rows: Sequence[Reading], reference: float | None) -> tuple[float, float]:
    """From the lowest to the highest to be drawn; intervals that reach out of all proportion are cut."""
    values = [row.value for row in rows if row.value > 0] + ([reference] if reference else [])
    least, most = min(values), max(values)
    lows = [max(row.low, least / _WIDEST) for row in rows if row.low is not None]
    highs = [min(row.high, most * _WIDEST) for row in rows if row.high is not None]
    return min([least, *lows]), max([most, *highs])
