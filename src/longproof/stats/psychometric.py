"""Where an accuracy curve falls through a threshold: an estimate with an interval. What is proven is `climb`'s matter.

    share right at length L   =   floor + (1 - lapse - floor) / (1 + exp((log2 L - centre) / spread))

The effective length is where that equals the threshold. The spread, the lapse (misses at any length) and the floor
(where the fall ends: half the prompt may go on being read) are not of interest and not known, so they are averaged over
rather than fitted: every combination on a grid is weighed by how well it explains the answers. With fewer than fifty
answers a cell this covers where a fitted curve's profile likelihood falls short (Wichmann and Hill 2001; the grid after
Schütt, Harmeling, Macke and Wichmann 2016, who also give the prior of the lapse).

Priors: log2 of the effective length uniform from three octaves below the shortest length to three above the longest,
the spread uniform in its logarithm from 0.03 to 2.5 octaves, the lapse Beta(1, 10) below 1 - threshold, the floor one
of four heights between chance and threshold. The likelihood does not care why the asking stopped, so answers of cells
that stopped on their own results may be used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from longproof.stats.sprt import Floats

_STEP_OCTAVES = 0.05
_BEYOND_OCTAVES = 3.0
_SPREADS_OCTAVES = np.geomspace(0.03, 2.5, 10)
_LAPSES = np.array([0.0, 0.07, 0.14, 0.23, 0.33, 0.47, 0.61, 0.8])
"""As parts of 1 - threshold: a curve that starts below the threshold has no effective length."""
_FLOORS = np.array([0.0, 0.3, 0.6, 0.9])
"""As parts of the way from chance to the threshold."""
_RUNS_AT_ONCE = 32


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
    edges, log_right, log_wrong, log_prior = _grid(tuple(lengths_tokens), threshold, chance)
    found = np.empty((len(right), len(probabilities)))
    for start in range(0, len(right), _RUNS_AT_ONCE):
        rows = slice(start, start + _RUNS_AT_ONCE)
        log_weight = right[rows] @ log_right + (n[rows] - right[rows]) @ log_wrong + log_prior
        log_weight -= log_weight.max(axis=1, keepdims=True)
        mass = np.exp(log_weight, out=log_weight).reshape(len(log_weight), len(edges) - 1, -1).sum(axis=2)
        below = np.concatenate((np.zeros((len(mass), 1)), np.cumsum(mass, axis=1)), axis=1)
        for i, row in enumerate(below):
            found[start + i] = np.exp2(np.interp(probabilities, row / row[-1], edges))
    return found


@lru_cache(maxsize=4)
def _grid(lengths_tokens: tuple[int, ...], threshold: float, chance: float) -> tuple[Floats, Floats, Floats, Floats]:
    """Edges of the effective lengths in log2 tokens; logarithms of right, of wrong (lengths, curves), of the prior."""
    if not 0 <= chance < threshold < 1:
        raise ValueError(f"not 0 <= chance {chance} < threshold {threshold} < 1")
    octaves = np.log2(np.asarray(lengths_tokens, dtype=np.float64))
    edges = np.arange(octaves[0] - _BEYOND_OCTAVES, octaves[-1] + _BEYOND_OCTAVES + _STEP_OCTAVES, _STEP_OCTAVES)
    lapses, floors = _LAPSES * (1 - threshold), chance + _FLOORS * (threshold - chance)
    length, spread, lapse, floor = np.meshgrid(
        (edges[:-1] + edges[1:]) / 2, _SPREADS_OCTAVES, lapses, floors, indexing="ij"
    )
    top = 1 - lapse
    centre = length - spread * np.log((top - threshold) / (threshold - floor))
    far = np.clip((octaves[:, None] - centre.ravel()) / spread.ravel(), -50, 50)
    share = np.clip(floor.ravel() + (top - floor).ravel() / (1 + np.exp(far)), 1e-9, 1 - 1e-9)
    prior = np.gradient(lapses) * (1 - lapses) ** 9
    log_prior = np.broadcast_to(np.log(prior)[None, None, :, None], length.shape).ravel()
    return edges, np.log(share), np.log1p(-share), log_prior
