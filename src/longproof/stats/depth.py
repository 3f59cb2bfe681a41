"""Does it matter where in the prompt the answer stands?

Two questions. Does accuracy change with depth (a slope)? And does it break at one distance from the end, as when only
the last so many tokens are attended to? A break at a power of two, flat on either side, is no lack of ability but a
window that somebody set: sliding attention where the model has none, or a cache that forgot its head.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, ndtr, ndtri, xlogy

from longproof.domain.measure import Interval, Unknown
from longproof.stats.sprt import Floats

Labels = NDArray[np.int64]

_FLAT = 0.05
"""A side of a break counts as flat unless a trend within it is shown at this level."""
_SUPPORT = 2.0
"""Breaks whose log likelihood is within this of the best are as good as the best (a ratio of about 7)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DepthTrend:
    """How accuracy changes from depth 0 (head) to 1 (tail), in log odds: above 0, later is easier.

    `p_value` belongs to "depth does not matter", two-sided. `interval` is Wald's, of the penalised fit.
    """

    slope: float
    interval: Interval
    p_value: float
    n: int


def depth_trend(
    depths: Sequence[float],
    right: Sequence[bool],
    groups: Sequence[int] | None = None,
    confidence: float = 0.95,
) -> DepthTrend | Unknown:
    """Logistic regression of `right` on depth, with a level of its own for every group (length, family).

    The slope carries Firth's penalty (1993), so that it exists where all heads are lost and all tails found. The test
    is the score test, stratified by group (Cochran 1954; Armitage 1955; Mantel 1963), which needs no fit. Unknown where
    no group has both right and wrong answers at different depths.
    """
    x, y = np.asarray(depths, dtype=np.float64), np.asarray(right, dtype=np.float64)
    labels = _labels(groups, len(x))
    if not len(x) == len(y) == len(labels):
        raise ValueError("depths, answers and groups differ in number")
    z = _score(x, y, labels)
    if z is None:
        return Unknown(reason=f"n = {len(x)}: no group has right and wrong answers at different depths")
    columns = np.column_stack([x, *((labels == label).astype(np.float64) for label in np.unique(labels))])
    slope, error = _penalised_slope(columns, y)
    half = float(ndtri((1 + confidence) / 2)) * error
    interval = Interval(low=slope - half, high=slope + half, confidence=confidence, method="Wald, Firth's penalty")
    return DepthTrend(slope=slope, interval=interval, p_value=2 * float(ndtr(-abs(z))), n=len(x))


def _score(x: Floats, y: Floats, labels: Labels) -> float | None:
    """The stratified score statistic of a slope, standard normal without one. None where nothing varies."""
    total, variance = 0.0, 0.0
    for label in np.unique(labels):
        inside = labels == label
        depth, answer = x[inside], y[inside]
        if len(depth) < 2:
            continue
        spread = float(np.sum((depth - depth.mean()) ** 2))
        total += float(np.sum((depth - depth.mean()) * answer))
        # Permutation variance: exact for any order of the answers within the group.
        variance += spread * float(np.sum((answer - answer.mean()) ** 2)) / (len(depth) - 1)
    return total / variance**0.5 if variance > 0 else None


def _penalised_slope(columns: Floats, y: Floats) -> tuple[float, float]:
    """Firth's estimate of the first coefficient and its standard error."""
    beta = np.zeros(columns.shape[1])
    information = np.eye(len(beta))
    for _ in range(100):
        share = expit(columns @ beta)
        weight = share * (1 - share)
        information = columns.T @ (columns * weight[:, None])
        inverse = np.linalg.pinv(information)
        leverage = weight * np.einsum("ij,jk,ik->i", columns, inverse, columns)
        step = inverse @ (columns.T @ (y - share + leverage * (0.5 - share)))
        largest = float(np.abs(step).max())
        beta = beta + step * min(1.0, 3.0 / largest if largest > 0 else 1.0)
        if largest < 1e-9:
            break
    return float(beta[0]), float(np.sqrt(np.linalg.pinv(information)[0, 0]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Break:
    """The best place to cut answers into near and far by the distance of the evidence from the prompt's end.

    The cut lies somewhere from `found_within_tokens` to `lost_from_tokens` (as good as the best). `p_value` belongs to
    "far is no worse than near", by the score test within groups, corrected for all places tried. `flat`: neither side
    has a trend of its own. `power_of_two` is the only power of two in that range, or None where there is none or more
    than one.
    """

    found_within_tokens: int
    lost_from_tokens: int
    near_right: int
    near_n: int
    far_right: int
    far_n: int
    p_value: float
    flat: bool
    power_of_two: int | None

    def looks_like_window(self, alpha: float = 0.01) -> bool:
        """Whether this is a window rather than ability: a break beyond doubt, flat on both sides, most of the far side
        lost, and at a power of two."""
        lost = self.far_right * self.near_n < 0.5 * self.near_right * self.far_n
        return self.p_value < alpha and self.flat and lost and self.power_of_two is not None


def distance_break(
    distances_tokens: Sequence[int], right: Sequence[bool], groups: Sequence[int] | None = None
) -> Break | Unknown:
    """Looks for a break in accuracy by distance from the end.

    Answers of several lengths may be pooled, with the lengths as `groups`: then only differences within a length count,
    because a longer prompt is harder and its evidence farther away.

    Unknown for fewer than ten answers, for fewer than two distances, and where all answers are equal.
    """
    labels = _labels(groups, len(right))
    order = np.argsort(np.asarray(distances_tokens), kind="stable")
    labels = labels[order]
    distance = np.asarray(distances_tokens, dtype=np.int64)[order]
    answer = np.asarray(right, dtype=np.float64)[order]
    n, total = len(answer), float(answer.sum())
    cuts = np.flatnonzero(np.diff(distance) > 0) + 1  # so many answers are near
    if n < 10 or not len(cuts) or total in (0, n):
        return Unknown(reason=f"n = {n}: no two distances with right and wrong answers")
    near = np.cumsum(answer)[cuts - 1]
    far = total - near
    likely = _two_shares(near, cuts.astype(np.float64), far, (n - cuts).astype(np.float64))
    likely = np.where(near / cuts > far / (n - cuts), likely, -np.inf)
    best = int(np.argmax(likely))
    if not np.isfinite(likely[best]):
        return Unknown(reason="answers far from the end are found no less often than those near it")
    good = np.flatnonzero(likely >= likely[best] - _SUPPORT)
    cut = int(cuts[best])
    low, high = int(distance[cuts[good[0]] - 1]), int(distance[cuts[good[-1]]])
    z = _score((np.arange(n) < cut).astype(np.float64), answer, labels)
    return Break(
        found_within_tokens=low,
        lost_from_tokens=high,
        near_right=int(near[best]),
        near_n=cut,
        far_right=int(far[best]),
        far_n=n - cut,
        p_value=1.0 if z is None else min(1.0, float(ndtr(-z)) * len(cuts)),
        flat=all(_is_flat(distance[side], answer[side], labels[side]) for side in (slice(cut), slice(cut, None))),
        power_of_two=_only_power(low, high),
    )


def _two_shares(near: Floats, near_n: Floats, far: Floats, far_n: Floats) -> Floats:
    """The log likelihood of one share on either side of each cut."""
    inside = xlogy(near, near / near_n) + xlogy(near_n - near, 1 - near / near_n)
    outside = xlogy(far, far / far_n) + xlogy(far_n - far, 1 - far / far_n)
    return np.add(inside, outside, dtype=np.float64)


def _labels(groups: Sequence[int] | None, n: int) -> Labels:
    if groups is None:
        return np.zeros(n, dtype=np.int64)
    return np.unique(np.asarray(groups), return_inverse=True)[1].astype(np.int64)


def _is_flat(distance: Labels, answer: Floats, labels: Labels) -> bool:
    z = _score(np.log2(np.maximum(distance, 1)), answer, labels)
    return z is None or 2 * float(ndtr(-abs(z))) >= _FLAT


def _only_power(low: int, high: int) -> int | None:
    power = 1 << max(0, (max(low, 1) - 1).bit_length())
    return power if low <= power <= high < 2 * power else None
