"""Questions that share a haystack share its luck: how many independent ones they are worth.

Gates ask one question per haystack, or count a haystack's mean score as one answer (`haystack_means` into
`effective_context.judge`), which assumes nothing about the dependence. The rest is for plots and plans.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.special import betaincinv

from longproof.domain.measure import Interval, Unknown

Groups = Sequence[Sequence[float]]
"""Scores in 0..1 by haystack."""


def haystack_means(groups: Groups) -> tuple[float, ...]:
    """One score per haystack, for what takes independent answers. Raises ValueError for an empty haystack."""
    _check(groups)
    return tuple(float(np.mean(group)) for group in groups)


def intraclass(groups: Groups) -> float | Unknown:
    """How alike scores of one haystack are: 0 not at all, 1 entirely (one-way analysis of variance; Donner 1986).

    May come out slightly below 0 where there is no likeness. Unknown for fewer than two haystacks, for one question per
    haystack, and where all scores are equal: then nothing can be seen.
    """
    _check(groups)
    sizes = np.array([len(group) for group in groups], dtype=np.float64)
    total, count = float(sizes.sum()), len(groups)
    if count < 2 or total <= count:
        return Unknown(reason=f"{count} haystacks with {total:g} questions: no two share one, or there is only one")
    means = np.array([np.mean(group) for group in groups])
    grand = float(np.sum(sizes * means) / total)
    between = float(np.sum(sizes * (means - grand) ** 2)) / (count - 1)
    within = float(sum(np.sum((np.asarray(g) - m) ** 2) for g, m in zip(groups, means, strict=True))) / (total - count)
    usual = (total - float(np.sum(sizes**2)) / total) / (count - 1)
    spread = between + (usual - 1) * within
    return (between - within) / spread if spread > 0 else Unknown(reason="all scores are equal")


def design_effect(groups: Groups, likeness: float | None = None) -> float:
    """By how much sharing inflates the variance of the mean, 1 + (m - 1) × likeness (Kish 1965); at least 1.

    m is the size of the haystack a question meets on average. `likeness` None takes `intraclass`, and 1 where that is
    unknown: the careful end.
    """
    _check(groups)
    sizes = np.array([len(group) for group in groups], dtype=np.float64)
    if likeness is None:
        found = intraclass(groups)
        likeness = 1.0 if isinstance(found, Unknown) else found
    met = float(np.sum(sizes**2) / np.sum(sizes))
    return max(1.0, 1 + (met - 1) * likeness)


def effective_n(groups: Groups, likeness: float | None = None) -> float:
    """How many independent questions these are worth."""
    return sum(len(group) for group in groups) / design_effect(groups, likeness)


def clustered_interval(groups: Groups, confidence: float = 0.95, likeness: float | None = None) -> Interval:
    """Clopper-Pearson at the effective n. For n fixed in advance; approximate, as the effect is estimated."""
    n = effective_n(groups, likeness)
    share = float(np.mean([score for group in groups for score in group]))
    right, tail = share * n, (1 - confidence) / 2
    return Interval(
        low=0.0 if right <= 0 else float(betaincinv(right, n - right + 1, tail)),
        high=1.0 if right >= n else float(betaincinv(right + 1, n - right, 1 - tail)),
        confidence=confidence,
        method=f"Clopper-Pearson at an effective n of {n:.3g}",
    )


def bootstrap_mean(
    groups: Groups, rng: np.random.Generator, *, draws: int = 2000, confidence: float = 0.95
) -> Interval | Unknown:
    """A percentile interval of the mean score: whole haystacks are drawn again. Unknown for fewer than ten haystacks,
    where such an interval covers too little (Cameron, Gelbach and Miller 2008)."""
    _check(groups)
    if len(groups) < 10:
        return Unknown(reason=f"{len(groups)} haystacks; a bootstrap takes 10")
    sums = np.array([float(np.sum(group)) for group in groups])
    sizes = np.array([len(group) for group in groups], dtype=np.float64)
    drawn = rng.integers(len(groups), size=(draws, len(groups)))
    means = sums[drawn].sum(axis=1) / sizes[drawn].sum(axis=1)
    low, high = np.quantile(means, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Interval(low=float(low), high=float(high), confidence=confidence, method="bootstrap of haystacks")


def _check(groups: Groups) -> None:
    if not groups or any(not group for group in groups):
        raise ValueError("every haystack needs a question, and there must be one")
