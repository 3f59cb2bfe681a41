"""Plots as inline SVG: only what was measured, the same bytes each time, nothing that clashes or leaks."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from longproof.domain.outcome import Outcome
from longproof.report import load_plots, plots, row_plots, timeline_plot
from longproof.report.load_plots import Across, Line
from longproof.report.plot_frame import Words
from longproof.report.plots import Point, Series, Trial
from longproof.report.row_plots import HeatCell, Reading, Split, Whiskers
from longproof.report.theme import Role, sentinel
from longproof.report.timeline_plot import Gauge, RequestBar, Strip

_SVG = "{http://www.w3.org/2000/svg}"
_WORDS = Words(name="p", title="Time <by> length", axis="time", unit="s")
_THREE = (
    Point(tokens=512, samples=(1.0, 1.1), mean=1.05, low=0.9, high=1.2),
    Point(tokens=1024, samples=(2.0, 2.2), mean=2.1, low=1.9, high=2.3),
    Point(tokens=2048, samples=(4.5,), mean=4.5),
)
_LINES = (
    Line(label="first", role=Role.COLD, at=(0.0, 1.0), values=(0.5, 1.0), low=(0.2, None), high=(0.7, None)),
    Line(label="second", role=Role.WARM, at=(0.0, 1.0), values=(0.0, 0.3), step=True),
)
_ROWS = (
    Whiskers(
        label="a < b",
        note="1 → 2",
        readings=(
            Reading(value=1.0, low=-5.0, high=90.0, role=Role.COLD, filled=False),
            Reading(value=2.0, low=None, high=None, role=Role.WARM),
        ),
    ),
)
_CELL = HeatCell(value=0.25, n=3)
_BARS = (
    RequestBar(sent_s=0.0, first_s=None, end_s=0.0, long=False, ended="rejected"),
    RequestBar(sent_s=0.1, first_s=1.0, end_s=1.5, long=True, ended="cancelled"),
)
_STRIP = Strip(
    title="KV <pool>",
    unit="fraction",
    gauges=(Gauge(name="used", role=Role.WARM, at_s=(0.0, 1.0), values=(0.0, 0.0)),),
    marks_s=(0.5,),
)


def _drawings() -> dict[str, str]:
    series = [Series(label="cold", points=_THREE), Series(label="again", points=_THREE, role=Role.WARM, marker="s")]
    trials = [
        Trial(total_tokens=8192, outcome=Outcome.COMPLETED),
        Trial(total_tokens=8193, outcome=Outcome.SHORT),
        Trial(total_tokens=16384, outcome=Outcome.REFUSED_LENGTH),
        Trial(total_tokens=8200, outcome=Outcome.HUNG),
    ]
    return {
        "time": plots.time_by_length(series, _WORDS, references=True),
        "value": plots.value_by_length(series, _WORDS),
        "search": plots.search_path(trials, boundary_tokens=8192, words=_WORDS),
        "lost search": plots.search_path(trials, boundary_tokens=None, words=_WORDS),
        "counts": plots.count_differences([(128, 128), (4096, 2048)], _WORDS),
        "over axis": load_plots.over_axis(_LINES, _WORDS, Across(label="turn", names=("1", "2")), level=2.0),
        "over time": load_plots.over_axis(_LINES, _WORDS, Across(label="seconds", rules=(0.5,))),
        "shares": load_plots.shares(_LINES[:1], _WORDS),
        "whiskers": row_plots.whiskers(_ROWS, _WORDS, reference=1.0),
        "splits": row_plots.splits([Split(label="a < b", parts=((Role.COLD, 1.0), (Role.WARM, 0.0)))], _WORDS, "xy"),
        "heat": row_plots.heat([512, 1024], [1], [[_CELL], [HeatCell(value=None, n=0)]], _WORDS),
        "timeline": timeline_plot.timeline(_BARS, [_STRIP], _WORDS),
        "bare timeline": timeline_plot.timeline(_BARS[:1], [], _WORDS),
    }


@pytest.mark.parametrize("name", sorted(_drawings()))
def test_drawing_is_clean_inline_svg_when_embedded(name: str) -> None:
    svg = _drawings()[name]
    root = ElementTree.fromstring(svg.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1))
    ids = re.findall(r' id="([^"]+)"', svg)
    used = re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', svg)
    assert root.find(f"{_SVG}title").text == "Time <by> length"  # type: ignore[union-attr]
    assert root.find(f"{_SVG}desc").text  # type: ignore[union-attr]
    assert "width" not in root.attrib
    assert "height" not in root.attrib
    assert len(ids) == len(set(ids))
    assert {one or other for one, other in used} <= set(ids)
    assert all(anchor.startswith("p-") for anchor in ids)
    assert not re.search(r"<style|<metadata|<!|<\?|font-family|http:|xlink", svg)
    assert not any(sentinel(role) in svg for role in Role)


def test_drawing_has_the_same_bytes_when_made_twice() -> None:
    assert _drawings() == _drawings()


def test_every_sample_is_one_mark_when_times_are_drawn() -> None:
    # 2 + 2 + 1 samples in one series, each a <use> filled with nothing
    svg = plots.time_by_length([Series(label="cold", points=_THREE)], _WORDS, references=False)
    assert len(re.findall(r"<use [^>]*fill-opacity: 0|<use [^>]*fill: none", svg)) == 5


def test_no_interval_is_drawn_when_there_is_none() -> None:
    with_two = plots.value_by_length([Series(label="cold", points=_THREE)], _WORDS)
    bare = tuple(Point(tokens=point.tokens, samples=point.samples, mean=point.mean) for point in _THREE)
    without = plots.value_by_length([Series(label="cold", points=bare)], _WORDS)
    assert with_two.count("stroke-opacity: 0.35") == 2  # the first two points have intervals
    assert without.count("stroke-opacity: 0.35") == 0


def test_interval_ends_at_the_edge_when_it_reaches_below_zero() -> None:
    wide = Point(tokens=512, samples=(0.01, 0.03), mean=0.02, low=-0.11, high=0.15)
    svg = plots.time_by_length([Series(label="cold", points=(wide, *_THREE[1:]))], _WORDS, references=True)
    assert svg.count("stroke-opacity: 0.35") == 2
    assert "nan" not in svg.lower()


def test_guides_are_left_out_when_no_mean_was_stated() -> None:
    points = tuple(Point(tokens=tokens, samples=(1.0,)) for tokens in (512, 1024))
    svg = plots.time_by_length([Series(label="cold", points=points)], _WORDS, references=True)
    assert "∝" not in svg


def test_description_names_the_numbers_when_read_aloud() -> None:
    svg = plots.time_by_length([Series(label="cold", points=_THREE)], _WORDS, references=True)
    assert "cold: 512 tokens: 1.05 s, 1,024 tokens: 2.10 s, 2,048 tokens: 4.50 s" in svg


def test_outcomes_differ_in_shape_when_drawn() -> None:
    kinds = [Outcome.COMPLETED, Outcome.SHORT, Outcome.REFUSED_LENGTH, Outcome.HUNG]
    svg = plots.search_path(
        [Trial(total_tokens=100 + i, outcome=outcome) for i, outcome in enumerate(kinds)],
        boundary_tokens=100,
        words=_WORDS,
    )
    marks = re.findall(r'<use href="#(p-[^"]+)"[^>]*stroke-width: 1.5', svg)
    assert len(marks) == len(set(marks)) == 4


def test_interval_is_cut_when_it_reaches_out_of_all_proportion() -> None:
    """Up to 90 around values of 1 and 2: the scale ends at six times the larger one."""
    svg = row_plots.whiskers(_ROWS, _WORDS)
    assert "10 s" in svg  # 12 is the end, so 10 is the last mark
    assert "100 s" not in svg


def test_cells_share_a_unit_when_there_are_many_columns() -> None:
    cells = [[HeatCell(value=0.05 * 2**i, n=2) for i in range(6)]]
    svg = row_plots.heat([512], [1, 2, 4, 8, 16, 32], cells, _WORDS)
    assert "cells in ms" in svg  # the median is 0.2 to 0.4 s
    assert ">1,600<" in svg  # 0.05 × 32 s


def test_marks_stay_few_when_places_are_many() -> None:
    line = Line(label="x", role=Role.COLD, at=tuple(map(float, range(30))), values=(1.0,) * 30)
    svg = load_plots.over_axis([line], _WORDS, Across(label="step", names=tuple(f"n{i}" for i in range(30))))
    assert re.findall(r">(n\d+)<", svg) == ["n0", "n5", "n10", "n15", "n20", "n25"]
