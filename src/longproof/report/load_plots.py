"""Plots of values under load: over steps, seconds or turns, and as distributions. Each takes plain values and returns
one inline SVG."""

# pyright: reportUnknownMemberType=false
# matplotlib's own stubs leave **kwargs unannotated, which makes every drawing call "partially unknown".
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle

from matplotlib.axes import Axes

from longproof.report import ticks
from longproof.report.numbers import number, tick
from longproof.report.plot_frame import Words, finish, frame, value_ticks
from longproof.report.theme import Role, sentinel

DASHES: tuple[tuple[float, ...], ...] = ((), (5, 1.5), (1.5, 1.2), (6, 1.5, 1.5, 1.5))
"""Lines of one plot differ in these as they do in colour."""
DASH_GLYPHS = ("━━", "╍╍", "┅┅", "━╍")
_MOST_TOLD = 24
_MOST_STEPS = 240
_MOST_PLACES = 7
_HIGHEST_BAR = 2.0
_BESIDE = 0.06
_FEW_MARKS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Values over an axis. `low` and `high`: the ends of intervals, None where there is none, same length as `values`
    or empty. `dashed`: not measured but worked out."""

    label: str
    role: Role
    at: tuple[float, ...]
    values: tuple[float, ...]
    low: tuple[float | None, ...] = ()
    high: tuple[float | None, ...] = ()
    marker: str = "o"
    step: bool = False
    dashed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Across:
    """The horizontal axis of `over_axis`. `names`: its places stand side by side under these names instead of to scale.
    `rules`: where an upright dashed rule stands."""

    label: str
    names: tuple[str, ...] = ()
    rules: tuple[float, ...] = ()


def shares(lines: Sequence[Line], words: Words) -> str:
    """Empirical distributions: the share of requests that took at most so long (logarithmic). Of very many a line
    shows evenly chosen ones, the ends among them."""
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
        value_ticks(axes, (0.0, 0.5, 1.0), lambda share: tick(share, "fraction"))
        for line, dashes in zip(lines, cycle(DASHES), strict=False):
            kept = _evenly(len(line.at))
            at, heights = [line.at[i] for i in kept], [line.values[i] for i in kept]
            (drawn,) = axes.plot([at[0], *at], [0, *heights], color=sentinel(line.role), linewidth=1.8)
            drawn.set_drawstyle("steps-post")
            drawn.set_dashes(dashes)
        told = ". ".join(
            f"{line.label}: median {number(_median(line), words.unit)}, n = {len(line.at)}" for line in lines
        )
        return finish(figure, words, f"{words.title}. {told}.")


def over_axis(lines: Sequence[Line], words: Words, across: Across, *, level: float | None = None) -> str:
    """Values against steps, seconds or turns, from zero. `level`: a horizontal dashed rule."""
    with frame() as (figure, axes):
        _value_axis(axes, lines, words, level)
        _place_axis(axes, lines, across)
        for at in across.rules:
            axes.axvline(at, color=sentinel(Role.BAD), linewidth=1.4, dashes=(4, 3), zorder=1)
        if level is not None:
            axes.axhline(level, color=sentinel(Role.MUTED), linewidth=1.2, dashes=(4, 3), zorder=1)
        barred = sum(bool(line.low) for line in lines) > 1
        for nth, line in enumerate(lines):
            beside = _BESIDE * (nth - (len(lines) - 1) / 2) if across.names and barred else 0.0
            _draw(axes, line, beside)
        return finish(figure, words, f"{words.title}. {'. '.join(_told(line, words, across) for line in lines)}.")


def _value_axis(axes: Axes, lines: Sequence[Line], words: Words, level: float | None) -> None:
    top = max([value for line in lines for value in line.values] + [level or 0.0]) or 1.0
    ends = [end for line in lines for end in line.high if end is not None]
    top = max(top, min(max(ends, default=0.0), _HIGHEST_BAR * top))  # a bar that reaches further is cut at the edge
    marks = ticks.linear(top)
    value_ticks(axes, marks, lambda value: tick(value, words.unit))
    axes.set_ylim(0, max(top * 1.06, marks[-1] * 1.02))


def _place_axis(axes: Axes, lines: Sequence[Line], across: Across) -> None:
    axes.set_xlabel(across.label)
    if across.names:
        axes.set_xlim(-0.4, len(across.names) - 0.6)
        step = -(-len(across.names) // _MOST_PLACES)
        axes.set_xticks(range(0, len(across.names), step), across.names[::step])
        return
    places = [at for line in lines for at in line.at]
    low, high = min(places), max(places)
    margin = 0.04 * ((high - low) or 1.0)
    shown = ticks.between(low - margin, high + margin)
    axes.set_xlim(low - margin, high + margin)
    axes.set_xticks(shown, [f"{place:,.6g}".replace("-", "−") for place in shown])


def _draw(axes: Axes, line: Line, beside: float) -> None:
    """`beside`: how far it stands off its places, so that bars do not cover each other."""
    colour = sentinel(line.role)
    places = [at + beside for at in line.at]
    for at, low, high in zip(places, line.low, line.high, strict=False):
        if low is not None and high is not None:
            axes.plot([at] * 2, [max(0.0, low), high], color=colour, linewidth=5, alpha=0.28, solid_capstyle="butt")
    axes.plot(
        places,
        line.values,
        line.marker,
        linestyle=(0, (3, 3)) if line.dashed else "-",
        color=colour,
        linewidth=1.5,
        markersize=_marker_size(line),
        drawstyle="steps-post" if line.step else "default",
        clip_on=False,
    )


def _marker_size(line: Line) -> float:
    if line.step or line.dashed:
        return 0
    return 5 if len(line.at) <= _FEW_MARKS else 2.5


def _told(line: Line, words: Words, across: Across) -> str:
    """As much as anybody wants read out."""
    pairs = list(zip(line.at, line.values, strict=True))
    few = pairs[:: -(-len(pairs) // _MOST_TOLD)]
    names = [across.names[round(at)] if across.names else f"{at:.3g}" for at, _ in few]
    said = ", ".join(f"{name}: {number(value, words.unit)}" for name, (_, value) in zip(names, few, strict=True))
    return f"{line.label} by {across.label}: {said}"


def _evenly(count: int) -> list[int]:
    """Indices of at most about `_MOST_STEPS` items, the first and the last among them."""
    step = -(-count // _MOST_STEPS)
    return sorted({*range(0, count, step), count - 1})


def _median(line: Line) -> float:
    return sorted(line.at)[(len(line.at) - 1) // 2]
