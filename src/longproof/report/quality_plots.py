"""The plots of effective context: accuracy against length, and where in the prompt answers are found."""

# pyright: reportUnknownMemberType=false
# matplotlib's own stubs leave **kwargs unannotated, which makes every drawing call "partially unknown".
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes

from longproof.report import ticks
from longproof.report.numbers import tokens
from longproof.report.plot_frame import FONT, LEFT, RIGHT, WIDTH, Words, finish, frame, value_ticks
from longproof.report.theme import Role, sentinel


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Right of n at one length, with the interval that the claim states."""

    tokens: int
    right: int
    n: int
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One answer: where its evidence stood (0 head, 1 tail) at which length, and whether it was right."""

    tokens: int
    depth: float
    right: bool


def accuracy(
    shares: Sequence[Share],
    *,
    control: float | None,
    bar: float,
    certified: int | None,
    refuted: int | None,
    words: Words,
) -> str:
    """Shares with their intervals; the threshold as a rule, the control beneath as a dashed one, the bracket marked."""
    with frame() as (figure, axes):
        lengths = [share.tokens for share in shares]
        _lengths(axes, lengths)
        axes.set_ylim(-0.03, 1.06)
        value_ticks(axes, (0.0, 0.5, 1.0), lambda value: f"{100 * value:.0f} %")
        axes.axhline(bar, color=sentinel(Role.INK), linewidth=1.0, zorder=1)
        if control is not None:
            axes.axhline(control, color=sentinel(Role.MUTED), linewidth=1.2, dashes=(3, 3), zorder=1)
        axes.fill_between(
            lengths,
            [s.low for s in shares],
            [s.high for s in shares],
            color=sentinel(Role.COLD),
            alpha=0.15,
            linewidth=0,
        )
        axes.plot(
            lengths, [s.right / s.n for s in shares], "o-", color=sentinel(Role.COLD), linewidth=1.6, markersize=5.5
        )
        for length, role, marker in ((certified, Role.GOOD, "^"), (refuted, Role.BAD, "X")):
            if length is not None:
                axes.plot([length], [0.0], marker, color=sentinel(role), markersize=9, zorder=5, clip_on=False)
        told = ", ".join(f"{tokens(s.tokens)} tokens: {s.right} of {s.n}" for s in shares)
        return finish(figure, words, f"{words.title}. {told}.")


def two_sides(lengths: Sequence[int], a: Sequence[float], b: Sequence[float], words: Words) -> str:
    """Shares right of A and of B over the same questions. A's marks are full and B's hollow, so that both are seen
    where they agree."""
    with frame() as (figure, axes):
        _lengths(axes, lengths)
        axes.set_ylim(-0.06, 1.06)
        value_ticks(axes, (0.0, 0.5, 1.0), lambda value: f"{100 * value:.0f} %")
        axes.plot(lengths, a, "o-", color=sentinel(Role.COLD), linewidth=1.6, markersize=5)
        axes.plot(
            lengths,
            b,
            "s",
            color=sentinel(Role.WARM),
            linewidth=1.6,
            markersize=9,
            linestyle=(0, (4, 2)),
            markerfacecolor="none",
        )
        told = ", ".join(
            f"{tokens(length)} tokens: A {100 * of_a:.0f} %, B {100 * of_b:.0f} %"
            for length, of_a, of_b in zip(lengths, a, b, strict=True)
        )
        return finish(figure, words, f"{words.title}. {told}.")


def depths(answers: Sequence[Answer], words: Words) -> str:
    """Every answer at its length and depth: found, or lost a little to the right, since twins stand at one depth."""
    with frame() as (figure, axes):
        _lengths(axes, sorted({answer.tokens for answer in answers}))
        axes.set_ylim(1.05, -0.05)
        value_ticks(axes, (0.0, 0.5, 1.0), lambda value: {0.0: "head", 0.5: "middle", 1.0: "tail"}[value])
        low, high = axes.get_xlim()
        aside = (high / low) ** 0.012  # of the axis' width
        for answer in answers:
            role, marker = (Role.GOOD, "o") if answer.right else (Role.BAD, "X")
            at = answer.tokens / aside if answer.right else answer.tokens * aside
            axes.plot([at], [answer.depth], marker, color=sentinel(role), markersize=5.5, alpha=0.85)
        lost = [answer for answer in answers if not answer.right]
        return finish(figure, words, f"{words.title}. {len(answers)} answers, {len(lost)} lost.")


def _lengths(axes: Axes, lengths: Sequence[int]) -> None:
    axes.set_xscale("log", base=2)
    margin = (lengths[-1] / lengths[0]) ** 0.07 if lengths[-1] > lengths[0] else 1.5
    axes.set_xlim(lengths[0] / margin, lengths[-1] * margin)
    shown = ticks.thinned(list(lengths), width_pt=WIDTH - LEFT - RIGHT, digit_pt=FONT * 0.56)
    axes.minorticks_off()
    axes.set_xticks(shown, [tokens(length) for length in shown])
    axes.set_xlabel("prompt tokens (log scale)")
