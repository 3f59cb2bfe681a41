"""Shares of right answers where some are right by luck, and what a guesser cannot get."""

from __future__ import annotations

import math
from dataclasses import dataclass

from longproof.domain.measure import Interval
from longproof.stats.proportion import wilson


def corrected(share: float, chance: float) -> float:
    """The share above chance, (share - chance) / (1 - chance): 0 for a guesser, 1 for a perfect solver, below 0 for
    someone worse than guessing. Raises ValueError unless 0 <= chance < 1."""
    _check(chance)
    return (share - chance) / (1 - chance)


def raised(threshold: float, chance: float) -> float:
    """The share that a corrected `threshold` asks for: the inverse of `corrected`."""
    _check(chance)
    return chance + (1 - chance) * threshold


def corrected_interval(interval: Interval, chance: float) -> Interval:
    """Both ends corrected; `chance` counts as known, because it follows from how the items are made."""
    return Interval(
        low=corrected(interval.low, chance),
        high=corrected(interval.high, chance),
        confidence=interval.confidence,
        method=f"{interval.method}, corrected for chance {chance:g}",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Youden:
    """How well present is told from absent: right on present + right on absent - 1. 0 for always yes and always no."""

    value: float
    interval: Interval


def youden(present_right: int, present_n: int, absent_right: int, absent_n: int, confidence: float = 0.95) -> Youden:
    """Youden's J (1950) with an interval by the square-and-add method on two Wilson intervals (Newcombe 1998, method
    10; Zou and Donner 2008). For n fixed in advance.

    For gates, score a pair of twins as the mean of the two and use a chance of 0.5: (mean - 0.5) / 0.5 is J.
    """
    on_present, on_absent = present_right / present_n, absent_right / absent_n
    value = on_present + on_absent - 1
    of_present = wilson(present_right, present_n, confidence)
    of_absent = wilson(absent_right, absent_n, confidence)
    down = math.hypot(on_present - of_present.low, on_absent - of_absent.low)
    up = math.hypot(of_present.high - on_present, of_absent.high - on_absent)
    interval = Interval(
        low=max(-1.0, value - down), high=min(1.0, value + up), confidence=confidence, method="square-and-add Wilson"
    )
    return Youden(value=value, interval=interval)


def _check(chance: float) -> None:
    if not 0 <= chance < 1:
        raise ValueError(f"a chance of {chance} is not between 0 and 1")
