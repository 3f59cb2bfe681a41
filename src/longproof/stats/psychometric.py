"""Where an accuracy curve falls through a threshold: an estimate with an interval. What is proven is `climb`'s matter.

    share right at length L   =   floor + (1 - lapse - floor) / (1 + exp((log2 L - centre) / spread))

The effective length is where that equals the threshold. The spread, the lapse (misses at any length) and the floor
(where the fall ends: half the prompt may go on being read) are not of interest and not known, so they are averaged over
rather than fitted: every combination on a grid is weighed by how well it explains the answers. With fewer than fifty
answers a cell this covers where a fitted curve's profile likelihood falls short (Wichmann and Hill 2001; the grid after
Schütt, Harmeling, Macke and Wichmann 2016, who also give the prior of the lapse).

Priors: log2 of the effective length uniform from three octaves below the shortest length to three above the longest;
the spread uniform in its logarithm from 0.003 (a wall) to 2.5 octaves; the lapse Beta(1, 10) below 1 - threshold, since
a curve that starts below it has no effective length; the floor at chance in one case of four, else uniform between
chance and threshold. The likelihood does not care why the asking stopped, so answers of cells that stopped on their own
results may be used.

The grid is laid in steps: a coarse one over everything, on answers weakened until it is fine enough for them, finds the
box that holds the weight; a new grid in that box takes the answers at a higher strength, until they are at their own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from longproof.stats.sprt import Floats

_BEYOND_OCTAVES = 3.0
_LOG_SPREADS = (math.log(0.003), math.log(2.5))
_MOST_LAPSE, _MOST_FLOOR = 0.97, 0.97
"""As parts of 1 - threshold, and of the way from chance to threshold."""
_AT_CHANCE = 0.25
_COARSE, _FINE = (110, 14, 8, 5), (40, 14, 10, 6)
"""Grid points for effective length, spread, lapse and floor."""
_COARSE_ANSWERS = 40
"""So many answers a cell the coarse grid can take; from grid to grid it may be this much more: """
_STRENGTHEN = 6
_NEGLIGIBLE = 1e-4
_SINGLE = np.float32
"""Logarithms of shares are summed over some hundred answers: seven digits are plenty, and three times as fast."""

Singles = NDArray[np.float32]
Curves = tuple[Singles, Singles, Singles]
Box = tuple[tuple[float, float], tuple[float, float], tuple[float, float], tuple[float, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthEstimate:
    """An estimated effective length and its interval, in tokens.

    An end (or the estimate) is None where it lies outside the lengths asked about: below the shortest for `low`, beyond
    the longest for `high`. `reaches_longest`: the estimate itself lies beyond the longest.
    """

    tokens: float | None
    low_tokens: float | None
    high_tokens: float | None
    reaches_longest: bool
    confidence: float
    method: str


def estimate(
    lengths_tokens: Sequence[int],
    right: Sequence[float],
    n: Sequence[float],
    *,
    threshold: float,
    chance: float = 0.0,
    confidence: float = 0.95,
) -> LengthEstimate:
    """The effective length behind `right` of `n` at each length. `threshold` and `chance` are shares of right answers.

    `lengths_tokens` are all lengths of the design, with n = 0 where nothing was asked. Shares of clusters go in as
    `right` and `n` divided by their design effect. Raises ValueError without answers, or for right > n.
    """
    low, middle, high = length_quantiles(
        lengths_tokens,
        np.asarray(right, dtype=np.float64)[None, :],
        np.asarray(n, dtype=np.float64)[None, :],
        threshold=threshold,
        chance=chance,
        probabilities=((1 - confidence) / 2, 0.5, (1 + confidence) / 2),
    )[0]
    shortest, longest = lengths_tokens[0], lengths_tokens[-1]
    return LengthEstimate(
        tokens=float(middle) if shortest <= middle <= longest else None,
        low_tokens=float(low) if low >= shortest else None,
        high_tokens=float(high) if high <= longest else None,
        reaches_longest=bool(middle > longest),
        confidence=confidence,
        method="logistic curve on a grid; spread, lapse and floor averaged over",
    )


def length_quantiles(
    lengths_tokens: Sequence[int],
    right: Floats,
    n: Floats,
    *,
    threshold: float,
    chance: float,
    probabilities: Sequence[float],
) -> Floats:
    """Quantiles of the effective length in tokens for many runs: (runs, lengths) counts give (runs, probabilities)."""
    if np.any(right < 0) or np.any(right > n) or not np.all(np.sum(n, axis=1) > 0):
        raise ValueError("every run needs answers, and no more right ones than answers")
    design = _Design(tuple(lengths_tokens), threshold, chance)
    found = np.empty((len(right), len(probabilities)))
    for i, (hits, asked) in enumerate(zip(right, n, strict=True)):
        edges, mass = _posterior(design, hits, asked)
        below = np.concatenate(([0.0], np.cumsum(mass)))
        found[i] = np.exp2(np.interp(probabilities, below / below[-1], edges))
    return found


@dataclass(frozen=True, slots=True)
class _Design:
    lengths_tokens: tuple[int, ...]
    threshold: float
    chance: float

    def __post_init__(self) -> None:
        if not 0 <= self.chance < self.threshold < 1:
            raise ValueError(f"not 0 <= chance {self.chance} < threshold {self.threshold} < 1")

    @property
    def everything(self) -> Box:
        """Where the priors live: octaves, log spread, parts of the lapse and of the floor."""
        low, high = math.log2(self.lengths_tokens[0]), math.log2(self.lengths_tokens[-1])
        lengths = (low - _BEYOND_OCTAVES, high + _BEYOND_OCTAVES)
        return lengths, _LOG_SPREADS, (0.0, _MOST_LAPSE), (0.0, 1.0)


def _posterior(design: _Design, right: Floats, n: Floats) -> tuple[Floats, Floats]:
    """The weight of the effective length between `edges` (octaves)."""
    strength = min(1.0, _COARSE_ANSWERS / float(n.max()))
    box = _narrowed(design.everything, _weights(_coarse(design), right * strength, n * strength, _COARSE))
    while True:
        strength = min(1.0, strength * _STRENGTHEN)
        weights = _weights(_curves(design, box, _FINE), right * strength, n * strength, _FINE)
        if strength == 1.0:
            return np.linspace(*box[0], _FINE[0] + 1), weights.sum(axis=(1, 2, 3))
        box = _narrowed(box, weights)


def _weights(curves: Curves, right: Floats, n: Floats, sizes: tuple[int, ...]) -> Floats:
    log_right, log_wrong, log_prior = curves
    log_weight = right.astype(_SINGLE) @ log_right + (n - right).astype(_SINGLE) @ log_wrong + log_prior
    return np.exp(log_weight - log_weight.max()).reshape(sizes).astype(np.float64)


def _narrowed(box: Box, weights: Floats) -> Box:
    """The part of the box that holds the weight, and one grid cell more on every side."""
    sides: list[tuple[float, float]] = []
    for axis, (low, high) in enumerate(box):
        mass = weights.sum(axis=tuple(other for other in range(4) if other != axis))
        share = np.cumsum(mass) / mass.sum()
        first, last = np.searchsorted(share, [_NEGLIGIBLE, 1 - _NEGLIGIBLE])
        cell = (high - low) / len(mass)
        sides.append((max(low, low + (float(first) - 1) * cell), min(high, low + (float(last) + 2) * cell)))
    return sides[0], sides[1], sides[2], sides[3]


@lru_cache(maxsize=4)
def _coarse(design: _Design) -> Curves:
    return _curves(design, design.everything, _COARSE)


def _curves(design: _Design, box: Box, sizes: tuple[int, ...]) -> Curves:
    """Logarithms of right and of wrong (lengths, curves), and of the prior (curves), at the midpoints of a grid."""
    middles = [
        low + (np.arange(size) + 0.5) * (high - low) / size for (low, high), size in zip(box, sizes, strict=True)
    ]
    length, log_spread, lapse_part, floor_part = np.meshgrid(*middles, indexing="ij", sparse=True)
    spread = np.exp(log_spread)
    lapse = lapse_part * (1 - design.threshold)
    floor = design.chance + _floor(floor_part) * (design.threshold - design.chance)
    top = 1 - lapse
    centre = length - spread * np.log((top - design.threshold) / (design.threshold - floor))
    shares = np.empty((len(design.lengths_tokens), *sizes), dtype=_SINGLE)
    narrow, level, height = (np.asarray(part, dtype=_SINGLE) for part in (1 / spread, floor, top - floor))
    for row, tokens in zip(shares, design.lengths_tokens, strict=True):
        far = np.subtract(math.log2(tokens), centre, dtype=_SINGLE) * narrow
        np.add(level, height / (1 + np.exp(np.minimum(far, 50))), out=row)
    shares = np.clip(shares.reshape(len(shares), -1), 1e-6, 1 - 1e-6)
    log_prior = np.broadcast_to(9 * np.log1p(-lapse), sizes).ravel().astype(_SINGLE)
    return np.log(shares), np.log1p(-shares), log_prior


def _floor(part: Floats) -> Floats:
    """The first quarter of a uniform part is the floor at chance, the rest runs up to the threshold."""
    return _MOST_FLOOR * np.maximum(0.0, (part - _AT_CHANCE) / (1 - _AT_CHANCE))
