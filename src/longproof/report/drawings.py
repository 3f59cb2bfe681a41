"""Where things stand in the drawings that the templates make: everything as fractions or small fixed units, no
markup."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from longproof.domain.events import RequestTimeline
from longproof.report import ticks
from longproof.report.numbers import plural, short_ns, tokens
from longproof.report.outcomes import LOOKS, kind, word
from longproof.report.requests import AFTER_WAITING, Stage
from longproof.report.verdict import Mark
from longproof.report.waiting import Waited

_WIDEST_LINEAR = 25
"""Beyond this ratio between the largest and the smallest number a linear bar of the smaller one cannot be seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisMark:
    """A number on the axis: `percent` of the width."""

    name: str
    role: str
    text: str
    percent: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisTick:
    """A labelled place on the axis; `anchor` keeps the outer labels inside the drawing."""

    text: str
    percent: float
    anchor: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """The known numbers on one scale. `linear`: bars from zero mean something; otherwise the scale is logarithmic,
    with dots only."""

    marks: tuple[AxisMark, ...]
    ticks: tuple[AxisTick, ...]
    linear: bool


def axis(marks: Sequence[Mark]) -> Axis | None:
    """One axis for the numbers that are known; None when fewer than two are, since there is nothing to relate."""
    known = [(mark, mark.tokens) for mark in marks if mark.tokens]
    if len(known) < 2:
        return None
    values = [value for _, value in known]
    low, high = min(values), max(values)
    linear = high / low <= _WIDEST_LINEAR
    top = high * 1.06
    floor = math.log10(low) - 0.35

    def percent(value: float) -> float:
        share = value / top if linear else (math.log10(value) - floor) / (math.log10(top) + 0.1 - floor)
        return round(share * 100, 3)

    places = ticks.linear(high) if linear else ticks.logarithmic(low, high)
    shown = [place for place in places if 0 <= percent(place) <= 100]
    shown = shown[:: math.ceil(len(shown) / 5)]
    return Axis(
        marks=tuple(AxisMark(name=m.name, role=m.role, text=tokens(v), percent=percent(v)) for m, v in known),
        ticks=tuple(AxisTick(text=tokens(p), percent=percent(p), anchor=_anchor(percent(p))) for p in shown),
        linear=linear,
    )


def _anchor(percent: float) -> str:
    if percent < 6:
        return "start"
    return "end" if percent > 94 else "middle"


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A stretch of a request's bar, in per cent of its own duration."""

    role: str
    start: float
    width: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One request as a bar over its own duration. `stamps`: (name, time since submission) of what happened."""

    title: str
    total: str
    key: str
    segments: tuple[Segment, ...]
    ticks: tuple[float, ...]
    stamps: tuple[tuple[str, str], ...]


def bar(length: int, key: str, timeline: RequestTimeline) -> Bar:
    """submitted ─ headers ─ first byte ─ first token ─ finished; what did not happen is not drawn."""
    start, whole = timeline.submitted_ns, max(1, timeline.e2e_ns)
    moments = [
        ("headers", timeline.headers_ns),
        ("first byte", timeline.first_byte_ns),
        ("first token", timeline.first_token_ns),
        ("last token", timeline.chunks[-1].at_ns if timeline.chunks else None),
        ("finished", timeline.finished_ns),
    ]
    known = [(name, at) for name, at in moments if at is not None]

    def percent(at_ns: int) -> float:
        return round((at_ns - start) / whole * 100, 3)

    last = "wait" if timeline.first_token_ns is None else "tokens"
    cuts = [("headers", timeline.headers_ns), ("wait", timeline.first_token_ns), (last, timeline.finished_ns)]
    segments: list[Segment] = []
    at = 0.0
    for role, end_ns in cuts:
        if end_ns is None:
            continue
        segments.append(Segment(role=role, start=at, width=round(percent(end_ns) - at, 3)))
        at = percent(end_ns)
    return Bar(
        title=f"{tokens(length)} tokens",
        total=short_ns(timeline.e2e_ns),
        key=key,
        segments=tuple(segments),
        ticks=tuple(percent(at_ns) for name, at_ns in known if name in ("first byte", "first token")),
        stamps=tuple((name, short_ns(at_ns - start)) for name, at_ns in known),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """Beside the flow: how many requests left here and why, or what is known of those that stayed (`leaves` False)."""

    y: float
    css: str
    glyph: str
    text: str
    leaves: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A state of the flow with its count; `y` is its top edge."""

    y: float
    name: str
    count: str
    branches: tuple[Branch, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """The state picture. Widths are fixed by the template; `height` is what it needs."""

    boxes: tuple[Box, ...]
    height: float
    told: str


_BOX, _GAP, _LINE = 42.0, 26.0, 22.0


def flow(stages: Sequence[Stage], waited: Waited | None = None) -> Flow:
    """States from top to bottom, exits to the right between them. An outcome that did not occur is not drawn. What is
    known of waiting stands before the first token."""
    boxes: list[Box] = []
    told: list[str] = []
    top = 1.0
    for at, stage in enumerate(stages):
        beside = _waiting(waited) if at + 2 < len(stages) and stages[at + 1].name == AFTER_WAITING else []
        beside += [(css(kind(o).value), LOOKS[kind(o)].glyph, f"{n:,} × {word(o)}", True) for o, n in stage.left]
        branches = tuple(
            Branch(y=top + _BOX + 17 + _LINE * row, css=style, glyph=glyph, text=text, leaves=leaves)
            for row, (style, glyph, text, leaves) in enumerate(beside)
        )
        boxes.append(Box(y=top, name=stage.name, count=f"{stage.reached:,}", branches=branches))
        told.append(f"{plural(stage.reached, 'request')} {stage.name}")
        told.extend(f"of these {branch.text}" for branch in branches)
        top += _BOX + (_GAP if not branches else _LINE * len(branches) + 16)
    return Flow(boxes=tuple(boxes), height=boxes[-1].y + _BOX + 1, told="; ".join(told))


def _waiting(waited: Waited | None) -> list[tuple[str, str, str, bool]]:
    if waited is None:
        return []
    lines = (
        ("is-clamped", "◷", waited.met_a_queue, "met a queue"),
        ("is-completed", "→", waited.no_queue, "met no queue"),
        ("is-stopped", "?", waited.not_known, "waiting unknown"),
    )
    return [(style, glyph, f"{count:,} × {text}", False) for style, glyph, count, text in lines if count]


def css(name: str) -> str:
    """A kind or standing as the class that colours it: ``is-not-shown``."""
    return "is-" + name.split(" by ", maxsplit=1)[0].replace(" ", "-")
