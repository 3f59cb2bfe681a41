"""The sheet every plot is drawn on: size, style, the frame, and how it becomes part of a page.

matplotlib is imported here and by the plots alone. Figures are made through its object-oriented interface: there is no
global figure state.
"""

# pyright: reportUnknownMemberType=false
# matplotlib's own stubs leave **kwargs unannotated, which makes every drawing call "partially unknown".
from __future__ import annotations

import io
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from longproof.report.numbers import Formatter
from longproof.report.svg import embed
from longproof.report.theme import Role, sentinel

WIDTH, HEIGHT = 312.0, 222.0
"""Points. Narrow on purpose: on a phone the drawing is shown about as large as it was drawn, and its letters stay
readable."""
LEFT, RIGHT, BOTTOM, TOP = 46.0, 12.0, 40.0, 26.0
FONT = 12.0
STYLE = {
    "svg.fonttype": "none",  # text stays text: it can be read out, searched, and takes the page's font
    "svg.hashsalt": "longproof",  # ids depend on the drawing alone: same evidence, same bytes
    "font.size": FONT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.linewidth": 1.0,
    "axes.edgecolor": sentinel(Role.RULE),
    "axes.axisbelow": True,
    "axes.labelcolor": sentinel(Role.MUTED),
    "axes.labelsize": FONT,
    "axes.labelpad": 5.0,
    "grid.color": sentinel(Role.GRID),
    "grid.linewidth": 1.0,
    "text.color": sentinel(Role.INK),
    "xtick.color": sentinel(Role.RULE),
    "ytick.color": sentinel(Role.RULE),
    "xtick.labelcolor": sentinel(Role.MUTED),
    "ytick.labelcolor": sentinel(Role.MUTED),
    "xtick.major.size": 4.0,
    "ytick.major.size": 0.0,
    "xtick.minor.size": 0.0,
    "ytick.minor.size": 0.0,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """What stands around a plot: `name` for ids, `title` and the `axis` above the vertical scale, `unit` of the
    values."""

    name: str
    title: str
    axis: str
    unit: str


@contextmanager
def frame() -> Generator[tuple[Figure, Axes]]:
    """An empty plot with a horizontal grid; axes leave room for `Words.axis` above."""
    with sheet(HEIGHT) as figure:
        yield figure, place(figure, HEIGHT, bottom=BOTTOM, tall=HEIGHT - TOP - BOTTOM)


@contextmanager
def sheet(height: float) -> Generator[Figure]:
    """An empty drawing of the usual width, as tall as its rows need."""
    with mpl.rc_context(STYLE):  # pyright: ignore[reportArgumentType] # the stubs want literals for the names
        yield Figure(figsize=(WIDTH / 72, height / 72), dpi=72)


def place(
    figure: Figure, height: float, *, bottom: float, tall: float, left: float = LEFT, right: float = RIGHT
) -> Axes:
    """Axes on a sheet; all in points."""
    axes = figure.add_axes((left / WIDTH, bottom / height, (WIDTH - left - right) / WIDTH, tall / height))
    axes.grid(visible=True, axis="y")
    return axes


def note(figure: Figure, height: float, *, x: float, y: float, text: str, side: str = "left") -> None:
    """Words on the sheet in the colour of axis labels; points from the lower left corner."""
    figure.text(x / WIDTH, y / height, text, color=sentinel(Role.MUTED), va="baseline", ha=side)


def finish(figure: Figure, words: Words, description: str, *, height: float = HEIGHT) -> str:
    """The drawing as an SVG element; `description` is what a screen reader says."""
    note(figure, height, x=4, y=height - 13, text=words.axis)
    out = io.StringIO()
    metadata = {"Date": None, "Creator": None, "Format": None, "Type": None}  # nothing that changes from run to run
    figure.savefig(out, format="svg", metadata=metadata, transparent=True)
    return embed(out.getvalue(), name=words.name, title=words.title, description=description)


def value_ticks(axes: Axes, marks: Sequence[float], text: Formatter) -> None:
    """Marks of the vertical axis."""
    axes.minorticks_off()
    axes.set_yticks(list(marks), [text(mark) for mark in marks])
    axes.minorticks_off()
