"""Quantiles of clustered samples: their intervals cover, and clusters, not samples, are what counts."""

from __future__ import annotations

import numpy as np
import pytest

from longproof.domain.measure import Interval, Unknown
from longproof.stats.bootstrap import LEAST_CLUSTERS, clustered_quantile, pooled_quantile


def interval(clusters: list[list[float]], q: float, seed: int = 0) -> Interval:
    found = clustered_quantile(clusters, q, rng=np.random.default_rng(seed))
    assert isinstance(found, Interval)
    return found


def test_interval_is_a_point_when_all_samples_are_equal() -> None:
    found = interval([[2.0, 2.0]] * 10, 0.95)
    assert (found.low, found.high) == (2.0, 2.0)


def test_clusters_count_and_not_samples_when_samples_of_one_answer_are_alike() -> None:
    """Ten answers of a hundred equal gaps each are ten observations, not a thousand: the median of 1 … 10 is known to
    within about two each way (the 95 % interval of order statistics of ten is 2 … 9)."""
    found = interval([[float(i)] * 100 for i in range(1, 11)], 0.5)
    assert found.low <= 3
    assert found.high >= 8


def test_true_median_is_covered_nearly_always_when_answers_differ() -> None:
    """95 % of 100 intervals are expected to hold it; bootstrap of 20 clusters is a little short of that."""
    rng = np.random.default_rng(4)
    held = 0
    for seed in range(100):
        clusters = [list(rng.normal(rng.normal(0, 1), 0.3, 10)) for _ in range(20)]
        found = interval(clusters, 0.5, seed)
        held += found.low <= 0 <= found.high
    assert held >= 88


def test_there_is_no_interval_when_answers_are_few() -> None:
    assert isinstance(
        clustered_quantile([[1.0, 2.0]] * (LEAST_CLUSTERS - 1), 0.5, rng=np.random.default_rng(0)), Unknown
    )


def test_pooled_quantile_is_that_of_all_samples() -> None:
    assert pooled_quantile([[1.0, 2.0], [3.0, 4.0]], 0.5) == 2.0
    assert pooled_quantile([[1.0], [9.0]], 0.99) == 9.0
    assert isinstance(pooled_quantile([], 0.5), Unknown)


@pytest.mark.parametrize("q", [0.5, 0.95, 0.99])
def test_same_seed_gives_the_same_interval(q: float) -> None:
    clusters = [list(np.random.default_rng(i).exponential(1, 15)) for i in range(12)]
    assert interval(clusters, q, 3) == interval(clusters, q, 3)
