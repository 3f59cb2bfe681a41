"""Where the marks of an axis stand, and scales that matplotlib does not have. Pure arithmetic."""

from __future__ import annotations

import math
from collections.abc import Sequence

from longproof.domain.units import format_tokens

_STEPS = (1, 2, 5, 10)


def logarithmic(low: float, high: float) -> list[float]:
    """Round numbers within [low, high] (slightly widened) for a logarithmic scale: decades when they suffice, else
    1-2-5."""
    first, last = math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1
    inside = (low / 1.3, high * 1.4)
    decades = [10.0**power for power in range(first, last + 1)]
    for factors in ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 4, 5, 6, 8)):
        marks = [
            decade * factor for decade in decades for factor in factors if inside[0] <= decade * factor <= inside[1]
        ]
        if len(marks) >= 3:
            return marks
    return marks


def linear(top: float) -> list[float]:
    """Three to six round numbers from 0 up to `top` or just above."""
    if top <= 0:
        return [0.0, 1.0]
    rough = top / 4
    decade = 10.0 ** math.floor(math.log10(rough))
    step = next(decade * factor for factor in _STEPS if decade * factor >= rough * 0.9)
    return [round(step * i, 12) for i in range(math.ceil(top / step - 0.05) + 1)]


def between(low: float, high: float) -> list[float]:
    """Two to six round numbers within [low, high]."""
    if high <= low:
        return [low]
    rough = (high - low) / 5
    decade = 10.0 ** math.floor(math.log10(rough))
    step = next(decade * factor for factor in _STEPS if decade * factor >= rough * 0.9)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(step * i, 12) for i in range(first, last + 1)]


def whole(count: int) -> list[int]:
    """Whole numbers from 1 to `count`, at most about seven."""
    step = next(factor * 10**power for power in range(8) for factor in (1, 2, 5) if count / (factor * 10**power) <= 7)
    return [1, *[i for i in range(step, count + 1, step) if i > 1]]


def thinned(lengths: Sequence[int], *, width_pt: float, digit_pt: float) -> list[int]:
    """The lengths that can be labelled on a logarithmic axis of `width_pt` points without touching; first and last
    always are."""
    if len(lengths) < 2:
        return list(lengths)
    span = math.log(lengths[-1] / lengths[0])

    def place(length: int) -> float:
        return math.log(length / lengths[0]) / span * width_pt * 0.89

    def half(length: int) -> float:
        text = format_tokens(length)
        return (len(text) - text.count(",") / 2) * digit_pt / 2 + 2  # a comma is half as wide as a digit

    kept = [lengths[0]]
    last = lengths[-1]
    for length in lengths[1:-1]:
        clear_left = place(length) - half(length) >= place(kept[-1]) + half(kept[-1])
        if clear_left and place(length) + half(length) <= place(last) - half(last):
            kept.append(length)
    if place(last) - half(last) < place(kept[-1]) + half(kept[-1]):
        kept.pop()
    return [*kept, last]


def signed_log(distance: float) -> float:
    """0 → 0, ±1 → ±1, ±10 → ±2, ±100 → ±3: small and large distances from zero in one picture."""
    if distance == 0:
        return 0.0
    return math.copysign(1 + math.log10(abs(distance)) if abs(distance) >= 1 else abs(distance), distance)


def distances(low: int, high: int) -> list[int]:
    """Marks for a `signed_log` scale: 0, ±1 and powers of ten out to the farthest distance on each side, at most
    four a side."""
    return [*[-mark for mark in reversed(_side(-low))], 0, *_side(high)]


def _side(farthest: int) -> list[int]:
    powers = [10**power for power in range(int(math.log10(farthest)) + 1)] if farthest >= 1 else [1]
    if len(powers) <= 4:
        return powers
    step = math.ceil(len(powers) / 3)
    return powers[step - 1 :: step]  # the marks next to 0 go first: they would crowd it
