"""Accuracy against length with one assumption only: it does not rise. The fit, where it crosses, and a bootstrap.

An estimate beside `psychometric`, for curves of no particular shape. A plain percentile interval of the crossing covers
far too little: where every answer of a length is right, drawing them again changes nothing, and between two lengths the
straight line is a guess. So the interval here runs from one length asked about to another.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from longproof.stats.psychometric import LengthEstimate
from longproof.stats.sprt import Floats


def non_increasing(means: Floats, weights: Floats) -> Floats:
    """The weighted least-squares fit of a sequence that never rises, along the last axis (Barlow et al. 1972).

    Pooling adjacent violators gives at each place the smallest, over all starts up to it, of the largest weighted mean
    from there to any end behind it. Places of weight 0 take the value of their surroundings.
    """
    length = means.shape[-1]
    zeros = np.zeros((*means.shape[:-1], 1))
    sums = np.concatenate((zeros, np.cumsum(means * weights, axis=-1)), axis=-1)
    totals = np.concatenate((zeros, np.cumsum(weights, axis=-1)), axis=-1)
    fitted = np.full(means.shape, np.inf)
    for start in range(length):
        total = totals[..., start + 1 :] - totals[..., start, None]
        summed = sums[..., start + 1 :] - sums[..., start, None]
        mean = np.where(total > 0, summed / np.where(total > 0, total, 1.0), -np.inf)
        largest = np.maximum.accumulate(mean[..., ::-1], axis=-1)[..., ::-1]
        usable = np.where(np.isfinite(largest), largest, np.inf)
        fitted[..., start:] = np.minimum(fitted[..., start:], usable)
    return fitted


def crossing(octaves: Floats, fitted: Floats, threshold: float) -> Floats:
    """Where non-increasing fits (..., lengths) fall through the threshold, in octaves, straight between the lengths.

    -inf where the first already lies below, +inf where none does.
    """
    below = fitted < threshold
    first = np.argmax(below, axis=-1)
    last = np.maximum(first - 1, 0)
    high = np.take_along_axis(fitted, last[..., None], axis=-1)[..., 0]
    low = np.take_along_axis(fitted, first[..., None], axis=-1)[..., 0]
    drop = np.where(high > low, high - low, 1.0)
    where = octaves[last] + (octaves[first] - octaves[last]) * (high - threshold) / drop
    where = np.where(below[..., 0], -np.inf, where)
    return np.where(below.any(axis=-1), where, np.inf)


def bootstrap(
    scores: Sequence[tuple[int, Sequence[float]]],
    threshold: float,
    rng: np.random.Generator,
    *,
    draws: int = 1000,
    confidence: float = 0.95,
) -> LengthEstimate:
    """The crossing, and an interval from a bootstrap: haystacks are drawn again within every length.

    `scores` pairs a length in tokens with one score in 0..1 per haystack, so that questions which share one stay
    together. A curve that does not rise may fall anywhere between two lengths, so every draw counts with both: the
    interval runs from a quantile of the last lengths that hold to one of the first that do not. Raises ValueError
    where a length has no scores or lengths do not ascend.
    """
    lengths = np.array([length for length, _ in scores], dtype=np.float64)
    if not scores or any(not len(row) for _, row in scores) or np.any(np.diff(lengths) <= 0):
        raise ValueError("every length needs scores, and lengths must ascend")
    rows = [np.asarray(row, dtype=np.float64) for _, row in scores]
    weights = np.array([float(len(row)) for row in rows])
    seen = crossing(np.log2(lengths), non_increasing(np.array([row.mean() for row in rows]), weights), threshold)
    again = np.stack([rng.choice(row, size=(draws, len(row))).mean(axis=1) for row in rows], axis=1)
    below = non_increasing(again, np.broadcast_to(weights, again.shape)) < threshold
    first = np.where(below.any(axis=1), np.argmax(below, axis=1), len(lengths))
    tail = (1 - confidence) / 2
    last_held = int(np.quantile(first, tail, method="inverted_cdf")) - 1
    first_lost = int(np.quantile(first, 1 - tail, method="inverted_cdf"))
    return LengthEstimate(
        tokens=float(np.exp2(seen)) if np.isfinite(seen) else None,
        low_tokens=float(lengths[last_held]) if last_held >= 0 else None,
        high_tokens=float(lengths[first_lost]) if first_lost < len(lengths) else None,
        reaches_longest=bool(seen == np.inf),
        confidence=confidence,
        method=f"isotonic, bootstrap of haystacks ({draws} draws), from length to length",
    )
