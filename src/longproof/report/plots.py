"""The plots of the page. Each takes numbers and returns one inline SVG; only what was measured is drawn, references
are named as such."""

# pyright: reportUnknownMemberType=false
# matplotlib's own stubs leave **kwargs unannotated, which makes every drawing call "partially unknown".
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes

from longproof.domain.outcome import Outcome
from longproof.report import ticks
from longproof.report.numbers import number, tick, tokens
from longproof.report.outcomes import look, word
from longproof.report.plot_frame import FONT as _FONT
from longproof.report.plot_frame import LEFT as _LEFT
from longproof.report.plot_frame import RIGHT as _RIGHT
from longproof.report.plot_frame import WIDTH as _WIDTH
from longproof.report.plot_frame import Words
from longproof.report.plot_frame import finish as _finish
from longproof.report.plot_frame import frame as _frame
from longproof.report.plot_frame import value_ticks as _value_ticks
from longproof.report.theme import Role, sentinel


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """All that was measured at one length: the samples, and the mean with its interval where the claim states one."""

    tokens: int
    samples: tuple[float, ...] = ()
    mean: float | None = None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Points that belong together. `marker` is matplotlib's: shapes differ as colours do."""

    label: str
    points: tuple[Point, ...]
    role: Role = Role.COLD
    marker: str = "o"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One request of the boundary search, in the order sent."""

    total_tokens: int
    outcome: Outcome


def time_by_length(series: Sequence[Series], words: Words, *, references: bool) -> str:
    """Times against length, both logarithmic. `references`: lines of slope 1 and 2 through the first mean, drawn as
    guides."""
    with _frame() as (figure, axes):
        _length_axis(axes, series)
        values = [value for value in _all_values(series) if value > 0]  # an interval of few samples can reach below 0
        axes.set_yscale("log")
        low, high = min(values), max(values)
        _value_ticks(axes, ticks.logarithmic(low, high), lambda value: tick(value, words.unit))
        axes.set_ylim(low / 1.35, high * 1.45)
        if references:
            _slopes(axes, series[0])
        _draw(axes, series)
        return _finish(figure, words, _told(series, words))


def value_by_length(series: Sequence[Series], words: Words) -> str:
    """Values against length; the vertical scale is linear and starts at zero, so that heights can be compared."""
    with _frame() as (figure, axes):
        _length_axis(axes, series)
        top = max(_all_values(series))
        marks = ticks.linear(top)
        _value_ticks(axes, marks, lambda value: tick(value, words.unit))
        axes.set_ylim(0, max(top * 1.08, marks[-1] * 1.02))
        _draw(axes, series)
        return _finish(figure, words, _told(series, words))


def search_path(trials: Sequence[Trial], *, boundary_tokens: int | None, words: Words) -> str:
    """The boundary search in the order it went: distance of each total from the boundary, on a scale that shows 1
    and 100,000 alike.

    Without a measured boundary the totals themselves are drawn.
    """
    with _frame() as (figure, axes):
        axes.set_xlim(0.4, len(trials) + 0.6)
        axes.set_xticks(ticks.whole(len(trials)))
        axes.set_xlabel("request, in the order sent")
        if boundary_tokens is None:
            heights = [float(trial.total_tokens) for trial in trials]
            marks = ticks.linear(max(heights))
            _value_ticks(axes, marks, tokens)
            axes.set_ylim(0, max(max(heights) * 1.1, marks[-1]))
        else:
            heights = [ticks.signed_log(trial.total_tokens - boundary_tokens) for trial in trials]
            _distance_axis(axes, [trial.total_tokens - boundary_tokens for trial in trials])
        axes.plot(range(1, len(trials) + 1), heights, color=sentinel(Role.RULE), linewidth=1.2, zorder=2)
        for at, (trial, height) in enumerate(zip(trials, heights, strict=True), start=1):
            _mark(axes, at, height, trial.outcome)
        told = "; ".join(f"{tokens(trial.total_tokens)} {word(trial.outcome)}" for trial in trials)
        return _finish(figure, words, f"{words.title}. In order: {told}.")


def count_differences(pairs: Sequence[tuple[int, int]], words: Words) -> str:
    """(sent, used) token counts: the difference used − sent against sent. A flat row at zero is what an honest
    server gives."""
    with _frame() as (figure, axes):
        points = tuple(Point(tokens=sent) for sent, _ in pairs)
        _length_axis(axes, [Series(label="", points=points)])
        differences = [used - sent for sent, used in pairs]
        _distance_axis(axes, differences)
        for (sent, used), difference in zip(pairs, differences, strict=True):
            role = Role.GOOD if used == sent else Role.BAD
            axes.plot(
                [sent], [ticks.signed_log(difference)], "o" if used == sent else "X", color=sentinel(role), markersize=5
            )
        wrong = sum(1 for difference in differences if difference)
        return _finish(figure, words, f"{words.title}. {len(pairs)} prompts, {wrong} where the counts differ.")


def _length_axis(axes: Axes, series: Sequence[Series]) -> None:
    lengths = sorted({point.tokens for one in series for point in one.points})
    axes.set_xscale("log")
    margin = (lengths[-1] / lengths[0]) ** 0.06 if lengths[-1] > lengths[0] else 1.5
    axes.set_xlim(lengths[0] / margin, lengths[-1] * margin)
    shown = ticks.thinned(lengths, width_pt=_WIDTH - _LEFT - _RIGHT, digit_pt=_FONT * 0.56)
    axes.minorticks_off()
    axes.set_xticks(shown, [tokens(length) for length in shown])
    axes.set_xlabel("prompt tokens (log scale)")


def _distance_axis(axes: Axes, distances: Sequence[int]) -> None:
    marks = ticks.distances(min(distances), max(distances))
    axes.set_yticks([ticks.signed_log(mark) for mark in marks], [_signed(mark) for mark in marks])
    low, high = ticks.signed_log(min(*distances, -1)), ticks.signed_log(max(*distances, 1))
    axes.set_ylim(low - 0.45, high + 0.45)
    axes.axhline(0, color=sentinel(Role.MUTED), linewidth=1.2, zorder=1)


def _signed(value: float) -> str:
    return "0" if value == 0 else f"{'+' if value > 0 else '−'}{abs(value):,.0f}"


def _draw(axes: Axes, series: Sequence[Series]) -> None:
    for one in series:
        colour = sentinel(one.role)
        means = [(point.tokens, point.mean) for point in one.points if point.mean is not None]
        axes.plot([at for at, _ in means], [mean for _, mean in means], color=colour, linewidth=1.6, zorder=3)
        for point in one.points:
            axes.plot(
                [point.tokens] * len(point.samples),
                point.samples,
                one.marker,
                color="none",
                markeredgecolor=colour,
                markeredgewidth=1.1,
                markersize=5.5,
                zorder=4,
            )
            if point.low is not None and point.high is not None:
                axes.plot(
                    [point.tokens] * 2,
                    [point.low, point.high],
                    color=colour,
                    linewidth=4,
                    alpha=0.35,
                    solid_capstyle="butt",
                )


def _mark(axes: Axes, at: float, height: float, outcome: Outcome) -> None:
    drawn = look(outcome)
    colour = sentinel(drawn.role)
    axes.plot(
        [at],
        [height],
        drawn.marker,
        color=colour if drawn.filled else sentinel(Role.SURFACE),
        markeredgecolor=colour,
        markeredgewidth=1.5,
        markersize=8,
        zorder=4,
    )


def _slopes(axes: Axes, series: Series) -> None:
    anchors = [(point.tokens, point.mean) for point in series.points if point.mean is not None]
    if len(anchors) < 2:
        return
    (start, origin), (end, last) = anchors[0], anchors[-1]
    top = axes.get_ylim()[1]
    for power, label in ((1, "∝ n"), (2, "∝ n²")):
        stop = min(float(end), start * (top / origin) ** (1 / power))
        height = origin * (stop / start) ** power
        axes.plot([start, stop], [origin, height], color=sentinel(Role.MUTED), linewidth=1, dashes=(3, 3), zorder=1)
        above = height > last * 1.01  # the label stands on the side that the measured line leaves free
        steep = stop < end
        axes.annotate(
            label,
            (stop, height),
            xytext=(-18, -9) if steep else ((-16, 4) if above else (2, -27)),
            textcoords="offset points",
            ha="right",
            color=sentinel(Role.MUTED),
        )


def _all_values(series: Sequence[Series]) -> list[float]:
    values = [
        value for one in series for point in one.points for value in (*point.samples, point.low, point.high, point.mean)
    ]
    return [value for value in values if value is not None]


def _told(series: Sequence[Series], words: Words) -> str:
    lines: list[str] = []
    for one in series:
        values = [
            f"{tokens(point.tokens)} tokens: {number(point.mean, words.unit)}"
            for point in one.points
            if point.mean is not None
        ]
        lines.append(f"{one.label}: {', '.join(values)}" if values else f"{one.label}: no mean stated")
    return f"{words.title}. {'. '.join(lines)}."
