"""Whether a series got worse on the way, and where: one step up or one steady rise, tested against chance.

    step    the mean behind a split above the mean before it, for the split that explains most (with every split on one
            scale: the number of values on each side is allowed for)
    trend   the straight line through all values

    p = how often chance alone makes the better of the two explain as large a part of the spread

Chance is the values themselves in any order. Neighbours that resemble each other make steps and rises by themselves:
where the series remembers, chance is a normal series with the same memory (first-order, estimated after step or trend
is taken out, and corrected upwards, because that estimate is too low in short series).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from longproof.domain.measure import Unknown

LEAST_VALUES = 10
"""Below that no order of the values is rare enough to mean anything beside other tests."""
_LEAST_SIDE = 3
_DRAWN = 9_999
_CORRECTION = 4.0
_MOST_MEMORY = 0.7
"""A level that wanders more slowly than that over a whole run is what this looks for."""
_NOTHING = 1e-12

Floats: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rise:
    """How a series rose, if it did. `p_value` is one-sided; `at` indexes the first value behind the likeliest step,
    with the medians `before` and `after` it. `kind` says which of the two shapes explains more. `memory` is the
    correlation of neighbours that chance was given."""

    p_value: float
    at: int
    before: float
    after: float
    kind: str
    memory: float


def rise(values: Sequence[float], *, rng: np.random.Generator) -> Rise | Unknown:
    """The likeliest rise in a series and the probability that chance makes one as clear. Unknown for fewer than
    `LEAST_VALUES` values. `rng` decides which orders are drawn."""
    n = len(values)
    if n < LEAST_VALUES:
        return Unknown(reason=f"n = {n}: a change in time takes n = {LEAST_VALUES}")
    found = np.asarray(values, dtype=np.float64)
    memory = _memory(found)
    steps, trend = _scores(found[None, :])
    at = int(np.argmax(steps[0])) + _LEAST_SIDE
    step_score, trend_score = float(np.max(steps[0])), float(trend[0])
    drawn_steps, drawn_trends = _scores(_chance(found, memory, rng))
    drawn = np.maximum(drawn_steps.max(axis=1), drawn_trends)
    as_large = int(np.sum(drawn >= max(step_score, trend_score) - 1e-9))
    return Rise(
        p_value=(1 + as_large) / (1 + _DRAWN),
        at=at,
        before=statistics.median(values[:at]),
        after=statistics.median(values[at:]),
        kind="step" if step_score >= trend_score else "trend",
        memory=memory,
    )


def _scores(rows: Floats) -> tuple[Floats, Floats]:
    """For each row the scores of all splits and that of the trend, each with variance 1 by chance. A score's square is
    n - 1 times the part of the spread that it explains."""
    n = rows.shape[1]
    centred: Floats = rows - rows.mean(axis=1, keepdims=True)
    spread: Floats = np.sqrt((centred**2).sum(axis=1, keepdims=True) / (n - 1))
    centred = np.divide(centred, spread, out=np.zeros_like(centred), where=spread > _NOTHING * np.abs(rows).max())
    first: Floats = np.arange(_LEAST_SIDE, n - _LEAST_SIDE + 1, dtype=np.float64)
    sums = -np.cumsum(centred, axis=1)[:, _LEAST_SIDE - 1 : n - _LEAST_SIDE]  # what lies behind the split
    steps = sums / np.sqrt(first * (n - first) / n)
    position: Floats = np.arange(n, dtype=np.float64) - (n - 1) / 2
    trend: Floats = centred @ position / math.sqrt(float(position @ position))
    return steps, trend


def _chance(values: Floats, memory: float, rng: np.random.Generator) -> Floats:
    """Rows that chance makes: the values in any order, or, with memory, normal series of the first order."""
    n = len(values)
    if memory == 0:
        return values[np.argsort(rng.random((_DRAWN, n)), axis=1)]
    series = rng.standard_normal((_DRAWN, n))
    for at in range(1, n):
        series[:, at] = memory * series[:, at - 1] + math.sqrt(1 - memory**2) * series[:, at]
    return series


def _memory(values: Floats) -> float:
    """Correlation of neighbours, 0 where there is none to speak of."""
    shapes = (values - _best_step(values), values - _line(values))
    residuals = min(shapes, key=lambda left: float(left @ left))
    if float(residuals @ residuals) <= _NOTHING * float(values @ values):
        return 0.0
    left = _neighbours(residuals)
    return float(np.clip(left + _CORRECTION / len(values), 0.0, _MOST_MEMORY)) if left > 0 else 0.0


def _best_step(values: Floats) -> Floats:
    splits = range(_LEAST_SIDE, len(values) - _LEAST_SIDE + 1)
    fits: list[Floats] = []
    for at in splits:
        fit = np.full(len(values), values[at:].mean())
        fit[:at] = values[:at].mean()
        fits.append(fit)
    return min(fits, key=lambda fit: float((values - fit) @ (values - fit)))


def _line(values: Floats) -> Floats:
    position: Floats = np.arange(len(values), dtype=np.float64) - (len(values) - 1) / 2
    slope = float(position @ values) / float(position @ position)
    return values.mean() + slope * position


def _neighbours(residuals: Floats) -> float:
    return float(residuals[:-1] @ residuals[1:]) / float(residuals @ residuals)
