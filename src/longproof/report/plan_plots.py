"""The picture of a plan: what stands on each stage against its memory, and how many requests of which length fit.

One SVG file that stands alone: it carries both themes, and its texts are what a screen reader says.
"""

# pyright: reportUnknownMemberType=false
# matplotlib's own stubs leave **kwargs unannotated, which makes every drawing call "partially unknown".
from __future__ import annotations

from dataclasses import dataclass

from matplotlib.axes import Axes

from longproof.domain.measure import Measured, value_or_none
from longproof.domain.units import format_bytes
from longproof.plan.planner import Plan, RankPlan
from longproof.report import ticks
from longproof.report.numbers import tokens
from longproof.report.plot_frame import FONT, HEIGHT, LEFT, RIGHT, WIDTH, Words, finish, frame, value_ticks
from longproof.report.theme import Role, css_variables, sentinel

_GIB = 1 << 30
_GAP, _HEAD = 28.0, 52.0
_NARROWEST_PT = 15.0
"""Below this a stage's bar carries no label of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    name: str
    role: Role
    alpha: float


_PARTS = (
    _Part(name="weights", role=Role.MUTED, alpha=0.8),
    _Part(name="workspace", role=Role.WARM, alpha=0.8),
    _Part(name="KV cache", role=Role.COLD, alpha=0.95),
)


def plan_picture(plan: Plan) -> str:
    """The whole picture as one SVG document. Raises ValueError when there is neither a stage nor a curve to draw."""
    panels = [drawn for drawn in (_memory_panel(plan), _curve_panel(plan)) if drawn]
    if not panels:
        raise ValueError("the plan has nothing to draw: no stage's memory and no capacity is known")
    width = len(panels) * WIDTH + (len(panels) - 1) * _GAP
    height = HEIGHT + _HEAD
    placed = "".join(
        panel.replace('<svg class="plot"', f'<svg x="{i * (WIDTH + _GAP):g}" y="{_HEAD:g}" width="{WIDTH:g}"'
                      f' height="{HEIGHT:g}" overflow="visible"', 1)
        for i, panel in enumerate(panels)
    )  # fmt: skip
    title = f"{plan.model.name} on {plan.launch.engine.value}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="-16 -8 {width + 32:g} {height + 20:g}"'
        f' font-family="system-ui, sans-serif" role="img" aria-label="{_escaped(title)}">'
        f"<style>{css_variables()}</style>"
        f'<rect x="-16" y="-8" width="{width + 32:g}" height="{height + 20:g}" style="fill:var(--paper)"/>'
        f'<text x="4" y="14" style="fill:var(--ink);font-size:{FONT + 2:g}px;font-weight:600">{_escaped(title)}</text>'
        f"{_legend()}{placed}</svg>\n"
    )


def _memory_panel(plan: Plan) -> str:
    """Stacked bars, one per stage: the fullest rank of each, against the device's memory."""
    stages = _stage_ranks(plan)
    sizes = [_amounts(rank) for rank in stages]
    if not any(rank.cache_bytes for rank in stages) and all(rank.memory is None for rank in stages):
        return ""  # bare weights are no picture of what fits
    device = max((value_or_none(r.memory.device_bytes) or 0 for r in stages if r.memory is not None), default=0)
    words = Words(name="memory", title="Memory of one rank by stage", axis="GiB on one rank of each stage", unit="GiB")
    with frame() as (figure, axes):
        for index, parts in enumerate(sizes):
            bottom = 0.0
            for part, size in zip(_PARTS, parts, strict=True):
                axes.bar(
                    [index], [size / _GIB], width=0.62, bottom=bottom, color=sentinel(part.role), alpha=part.alpha,
                    linewidth=0, zorder=3,
                )  # fmt: skip
                bottom += size / _GIB
        top = max(device / _GIB, *(sum(parts) / _GIB for parts in sizes))
        if device:
            _line(axes, device / _GIB, f"device {device / _GIB:,.1f}", len(sizes))
        marks = ticks.linear(top)
        value_ticks(axes, marks, lambda value: f"{value:g}")
        axes.set_ylim(0, max(top * 1.12, marks[-1]))
        axes.set_xlim(-0.6, len(sizes) - 0.4)
        shown = _labelled(len(sizes))
        axes.set_xticks(shown, [str(i) for i in shown])
        axes.set_xlabel("pipeline stage")
        told = "; ".join(_told(rank, parts) for rank, parts in zip(stages, sizes, strict=True))
        return finish(figure, words, f"{words.title}. {told}.")


def _line(axes: Axes, height: float, label: str, stages: int) -> None:
    axes.axhline(height, color=sentinel(Role.BAD), linewidth=1.4, dashes=(5, 3), zorder=4)
    axes.annotate(
        label, (stages - 0.42, height), xytext=(0, 3), textcoords="offset points", ha="right",
        color=sentinel(Role.BAD),
    )  # fmt: skip


def _curve_panel(plan: Plan) -> str:
    """Requests at once against their length, both logarithmic; the asked request is marked."""
    points = [(point.tokens, point.sessions) for point in plan.curve if point.sessions > 0]
    if len(points) < 2:
        return ""
    words = Words(
        name="concurrency", title="Requests at once by length", axis="requests at once (log scale)", unit="requests"
    )
    with frame() as (figure, axes):
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.plot(
            [at for at, _ in points], [count for _, count in points], color=sentinel(Role.COLD), linewidth=1.8,
            drawstyle="steps-post" if points[0][1] < 20 else "default", zorder=3,
        )  # fmt: skip
        asked, held = plan.request.total_tokens, value_or_none(plan.at_once)
        if held:
            axes.plot([asked], [held], "o", color=sentinel(Role.WARM), markersize=7, zorder=5)
            axes.annotate(
                f"{held:,} x {asked:,}", (asked, held), xytext=(-11, -9), textcoords="offset points", ha="right",
                color=sentinel(Role.WARM),
            )  # fmt: skip
        low, high = min(count for _, count in points), max(count for _, count in points)
        value_ticks(axes, ticks.logarithmic(low, max(high, low * 4)), lambda value: f"{value:,.0f}")
        axes.set_ylim(max(0.8, low / 1.6), max(high, low * 4) * 1.6)
        axes.set_xlim(points[0][0] / 1.25, points[-1][0] * 1.25)
        lengths = ticks.thinned(
            _round_lengths([at for at, _ in points]), width_pt=WIDTH - LEFT - RIGHT, digit_pt=FONT * 0.56
        )
        axes.minorticks_off()
        axes.set_xticks(lengths, [tokens(length) for length in lengths])
        axes.set_xlabel("tokens of one request (log scale)")
        told = "; ".join(f"{at:,} tokens: {count:,}" for at, count in points)
        return finish(figure, words, f"{words.title}. {told}.")


def _round_lengths(lengths: list[int]) -> list[int]:
    """Powers of two among the lengths, and both ends."""
    return [n for n in lengths if n & (n - 1) == 0 or n in (lengths[0], lengths[-1])]


def _stage_ranks(plan: Plan) -> list[RankPlan]:
    """One rank per stage: the one with the least left for the cache."""
    fullest: dict[int, RankPlan] = {}
    for rank in plan.ranks:
        held = fullest.get(rank.stage)
        if held is None or _left(rank) < _left(held):
            fullest[rank.stage] = rank
    return [fullest[stage] for stage in sorted(fullest)]


def _left(rank: RankPlan) -> int:
    return rank.available.value.best_bytes if isinstance(rank.available, Measured) else 0


def _amounts(rank: RankPlan) -> tuple[float, float, float]:
    """Weights, workspace and cache in bytes; a part nobody knows is left out (0)."""
    weights = value_or_none(rank.weights)
    workspace = 0
    for term in rank.memory.terms if rank.memory is not None else ():
        if term.name != "weights" and isinstance(term.amount, Measured):
            workspace += term.amount.value.best_bytes
    return float(weights.best_bytes if weights is not None else 0), float(workspace), float(rank.cache_bytes)


def _told(rank: RankPlan, parts: tuple[float, float, float]) -> str:
    named = ", ".join(f"{part.name} {format_bytes(size)}" for part, size in zip(_PARTS, parts, strict=True))
    return f"stage {rank.stage}: {named}"


def _labelled(stages: int) -> list[int]:
    room = int((WIDTH - LEFT - RIGHT) / _NARROWEST_PT)
    step = -(-stages // room)
    return list(range(0, stages, step))


def _legend() -> str:
    drawn, x = "", 4.0
    for part in _PARTS:
        drawn += (
            f'<rect x="{x:g}" y="28" width="11" height="11" rx="2"'
            f' style="fill:var(--{part.role.value});opacity:{part.alpha:g}"/>'
            f'<text x="{x + 16:g}" y="38" style="fill:var(--muted);font-size:{FONT:g}px">{part.name}</text>'
        )
        x += 32 + len(part.name) * FONT * 0.56
    return drawn


def _escaped(words: str) -> str:
    return words.replace("&", "&amp;").replace("<", "&lt;").replace('"', "&quot;")
