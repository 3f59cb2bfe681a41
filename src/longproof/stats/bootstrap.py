"""Quantiles of samples that come in clusters: gaps of one answer resemble each other, answers do not.

Whole clusters are drawn again with replacement (Efron and Tibshirani 1993, chapters 8 and 13), and the interval is that
of the resamples' quantiles. With few clusters it is too narrow: below `LEAST_CLUSTERS` there is none.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from longproof.domain.measure import Interval, Unknown
from longproof.stats.quantile import sample_quantile

LEAST_CLUSTERS = 8
_RESAMPLES = 1_000
_AT_A_TIME = 100


def clustered_quantile(
    clusters: Sequence[Sequence[float]], q: float, *, rng: np.random.Generator, confidence: float = 0.95
) -> Interval | Unknown:
    """The interval of the `q` quantile of all samples together. Unknown for too few clusters with samples."""
    filled = [cluster for cluster in clusters if cluster]
    if len(filled) < LEAST_CLUSTERS:
        return Unknown(reason=f"n = {len(filled)} answers: an interval takes {LEAST_CLUSTERS}")
    values: NDArray[np.float64] = np.asarray([value for cluster in filled for value in cluster], dtype=np.float64)
    owners = np.repeat(np.arange(len(filled)), [len(cluster) for cluster in filled])
    order = np.argsort(values, kind="stable")
    values, owners = values[order], owners[order]
    found: list[NDArray[np.float64]] = []
    for _ in range(_RESAMPLES // _AT_A_TIME):
        drawn = rng.multinomial(len(filled), np.full(len(filled), 1 / len(filled)), size=_AT_A_TIME)
        reached = np.cumsum(drawn[:, owners], axis=1)
        wanted = np.maximum(1, np.ceil(q * reached[:, -1:] - 1e-9))
        found.append(values[(reached >= wanted).argmax(axis=1)])
    spread = np.concatenate(found)
    tail = (1 - confidence) / 2
    return Interval(
        low=float(np.quantile(spread, tail)),
        high=float(np.quantile(spread, 1 - tail)),
        confidence=confidence,
        method="bootstrap over answers",
    )


def pooled_quantile(clusters: Sequence[Sequence[float]], q: float) -> float | Unknown:
    """The sample quantile of all samples together."""
    return sample_quantile([value for cluster in clusters for value in cluster], q)
