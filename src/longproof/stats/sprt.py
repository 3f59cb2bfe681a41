"""Is a share above a bar? Asked one answer at a time, with the right to stop at any moment.

A bettor who doubts that the share is as low as the bar stakes a part s of his wealth on every answer being right, at
odds that would be fair if the share were exactly the bar:

    right   wealth × (1 - s + s / bar)
    wrong   wealth × (1 - s)

While the share is at most the bar, his wealth is not expected to grow, whatever he has seen; so the probability that
it ever reaches 1 / alpha is at most alpha, however long one goes on and whenever one looks (Ville 1939). That wealth is
Wald's likelihood ratio of the bar against 1 - (1 - bar)(1 - s) (Wald 1945, "Sequential Tests of Statistical
Hypotheses"), and the average of several bettors keeps the promise (Shafer 2021, "Testing by betting"; Waudby-Smith and
Ramdas 2024). Scores between 0 and 1, such as the mean over the questions of one haystack, bet in proportion.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

Floats = NDArray[np.float64]

STAKES_ABOVE = (0.85, 0.55)
"""Against a bar of 0.85: one bettor backs a share of 0.98, the other 0.93. All right: 25 answers at alpha = 0.05."""
STAKES_BELOW = (0.7, 0.25)
"""The same against "at least the bar": one backs a share of 0.26 where the bar is 0.85, the other 0.64."""


class Side(StrEnum):
    """What the wealth is evidence for."""

    ABOVE = "above"
    BELOW = "below"


def steps(bar: float, side: Side) -> tuple[Floats, Floats]:
    """What one right and one wrong answer multiply the bettors' wealth by: two arrays, one number per bettor.

    Raises ValueError unless 0 < bar < 1.
    """
    if not 0 < bar < 1:
        raise ValueError(f"a bar of {bar} is not between 0 and 1")
    stakes = np.array(STAKES_ABOVE if side is Side.ABOVE else STAKES_BELOW)
    odds_of = bar if side is Side.ABOVE else 1 - bar
    wins, loses = 1 - stakes + stakes / odds_of, 1 - stakes
    return (wins, loses) if side is Side.ABOVE else (loses, wins)


def bettors(outcomes: Floats, bar: float, side: Side) -> Floats:
    """The logarithm of every bettor's wealth after each answer: (..., n) scores in 0..1 give (..., n, bettors)."""
    right, wrong = steps(bar, side)
    return np.cumsum(np.log(outcomes[..., None] * right + (1 - outcomes[..., None]) * wrong), axis=-2)


def pooled(wealth: Floats) -> Floats:
    """The logarithm of the bettors' average wealth: the last axis of `bettors` is gone."""
    return logsumexp(wealth, axis=-1) - math.log(wealth.shape[-1])


def log_evidence(outcomes: Sequence[float], bar: float, side: Side = Side.ABOVE) -> float:
    """The largest logarithm of wealth on the way through `outcomes`, which stand in the order they were asked in.

    Evidence for the share being above (below) the bar: at log(1 / alpha) or more, it is so with an error of alpha. The
    largest counts, not the last: what was shown once stays shown. 0 without outcomes.
    """
    if not outcomes:
        return 0.0
    return max(0.0, float(pooled(bettors(np.asarray(outcomes, dtype=np.float64), bar, side)).max()))


def anytime_bound(outcomes: Sequence[float], side: Side, alpha: float = 0.05) -> float:
    """The share is at least (Side.ABOVE) or at most (Side.BELOW) this, with an error of alpha, whenever one stopped.

    The bar at which the evidence is exactly enough: the lower bound is above a bar just when that bar is certified.
    0 or 1 where nothing is shown. The evidence falls as the bar moves towards it, so halving finds the root.
    """
    if not outcomes:
        return 0.0 if side is Side.ABOVE else 1.0
    enough = math.log(1 / alpha)
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        shown = log_evidence(outcomes, middle, side) >= enough
        if shown == (side is Side.ABOVE):
            low = middle
        else:
            high = middle
    return low if side is Side.ABOVE else high


class Outcome(StrEnum):
    """What Wald's test says so far."""

    HIGH = "high"
    LOW = "low"
    OPEN = "open"
    CAPPED = "capped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sprt:
    """Wald's sequential test of a share `low` against a share `high`, for a choice between two known rates.

    The chance of HIGH at a share of `low` is at most about `alpha`, of LOW at a share of `high` at most about `beta`.
    It says nothing about shares in between: HIGH rejects `low`, and a claim "at least 0.85" needs low = 0.85.
    """

    low: float
    high: float
    alpha: float = 0.05
    beta: float = 0.05
    cap: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.low < self.high < 1:
            raise ValueError(f"not 0 < {self.low} < {self.high} < 1")
        if not (0 < self.alpha < 0.5 and 0 < self.beta < 0.5):
            raise ValueError(f"alpha {self.alpha} and beta {self.beta} are not between 0 and 0.5")

    @property
    def right_adds(self) -> float:
        """What a right answer adds to the log likelihood ratio."""
        return math.log(self.high / self.low)

    @property
    def wrong_adds(self) -> float:
        """What a wrong answer adds: a negative number."""
        return math.log((1 - self.high) / (1 - self.low))

    def log_ratio(self, right: int, n: int) -> float:
        """The log likelihood ratio of `high` over `low` after `right` of `n`."""
        return right * self.right_adds + (n - right) * self.wrong_adds

    def outcome(self, right: int, n: int) -> Outcome:
        """What is decided after `right` of `n`. The test ends at the first answer that decides."""
        ratio = self.log_ratio(right, n)
        if ratio >= math.log((1 - self.beta) / self.alpha):
            return Outcome.HIGH
        if ratio <= math.log(self.beta / (1 - self.alpha)):
            return Outcome.LOW
        return Outcome.CAPPED if self.cap is not None and n >= self.cap else Outcome.OPEN

    def first_outcome(self, answers: Sequence[bool]) -> tuple[Outcome, int]:
        """The outcome of a sequence of answers, and how many of them it took."""
        right = 0
        for n, answer in enumerate(answers, 1):
            right += answer
            found = self.outcome(right, n)
            if found is not Outcome.OPEN:
                return found, n
        return Outcome.OPEN, len(answers)
