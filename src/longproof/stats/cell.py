"""One cell, one question: is the share of right answers above the bar, below it, or not worth asking further?

    after each answer   wealth of those who bet on "above"  ≥ 1 / alpha_above   certified
                        wealth of those who bet on "below"  ≥ 1 / alpha_below   refuted
                        neither is within reach of the cap                      undecided
                        the cap is reached                                      undecided

Giving up early costs power and never adds error: only the two wealths can certify or refute (see `sprt`). "Within
reach" means: if the rest went on at the share seen so far, two standard errors kinder to the bettor, the
wealth would get there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from longproof.stats.sprt import Floats, Side, bettors, pooled, steps

Codes = NDArray[np.int8]
Counts = NDArray[np.int64]

OPEN, CERTIFIED, REFUTED, UNDECIDED, UNASKED = 0, 1, -1, 2, 3
"""What is known about a cell: more answers are needed, the share is above, below, it was given up, or not asked."""

_LEAST_BEFORE_GIVING_UP = 20
_KIND = 2.0
"""Standard errors by which the forecast leans to the bettor's side before a cell is given up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CellTest:
    """What decides a cell. `cap` is the most answers it may take; without `may_certify` it can only be refuted."""

    bar: float
    alpha_above: float
    alpha_below: float
    cap: int
    may_certify: bool = True

    def __post_init__(self) -> None:
        if not 0 < self.bar < 1:
            raise ValueError(f"a bar of {self.bar} is not between 0 and 1")
        if not (0 < self.alpha_above < 1 and 0 < self.alpha_below < 1):
            raise ValueError(f"errors of {self.alpha_above} and {self.alpha_below} are not between 0 and 1")
        if self.cap < 1:
            raise ValueError(f"a cap of {self.cap} answers")


def decide(test: CellTest, outcomes: Floats, asked: Counts) -> tuple[Codes, Counts]:
    """The first decision on the way through `outcomes` (..., cap), of which the first `asked` (...) are there.

    Outcomes are scores in 0..1 in the order they were asked in; what stands behind `asked` does not matter. Returns the
    code and how many answers it took, or OPEN and `asked`.
    """
    n: Counts = np.arange(1, outcomes.shape[-1] + 1, dtype=np.int64)
    there = n <= asked[..., None]
    scores = np.where(there, outcomes, 0.5)
    found = _codes(
        test,
        bettors(scores, test.bar, Side.ABOVE),
        bettors(scores, test.bar, Side.BELOW),
        np.cumsum(scores, axis=-1),
        n,
    )
    found = np.where(there, found, OPEN)
    first = np.argmax(found != OPEN, axis=-1)
    code = np.take_along_axis(found, first[..., None], axis=-1)[..., 0].astype(np.int8)
    return code, np.where(code == OPEN, asked, first + 1)


@lru_cache(maxsize=64)
def code_table(test: CellTest) -> Codes:
    """The code of every (n, right) for answers that are right or wrong: (cap + 1, cap + 1), read-only."""
    n, right = np.meshgrid(np.arange(test.cap + 1), np.arange(test.cap + 1), indexing="ij")
    right = np.minimum(right, n)
    wealth: list[Floats] = []
    for side in Side:
        per_right, per_wrong = steps(test.bar, side)
        wealth.append(np.add(right[..., None] * np.log(per_right), (n - right)[..., None] * np.log(per_wrong)))
    table = _codes(test, wealth[0], wealth[1], right.astype(np.float64), n)
    table[0] = OPEN
    table.flags.writeable = False
    return table


def _codes(test: CellTest, above: Floats, below: Floats, right: Floats, n: Counts) -> Codes:
    mean = (right + 0.5) / (n + 1)
    error = np.sqrt(mean * (1 - mean) / np.maximum(n, 1))
    left = np.maximum(test.cap - n, 0)
    enough_above, enough_below = math.log(1 / test.alpha_above), math.log(1 / test.alpha_below)
    certified = (pooled(above) >= enough_above) & test.may_certify
    refuted = pooled(below) >= enough_below
    kind_above = _forecast(above, test.bar, Side.ABOVE, np.minimum(mean + _KIND * error, 1), left)
    kind_below = _forecast(below, test.bar, Side.BELOW, np.maximum(mean - _KIND * error, 0), left)
    hopeful = ((kind_above >= enough_above) & test.may_certify) | (kind_below >= enough_below)
    given_up = (~hopeful & (n >= _LEAST_BEFORE_GIVING_UP)) | (n >= test.cap)
    code = np.where(certified, CERTIFIED, np.where(refuted, REFUTED, np.where(given_up, UNDECIDED, OPEN)))
    return code.astype(np.int8)


def _forecast(wealth: Floats, bar: float, side: Side, share: Floats, left: Counts) -> Floats:
    right, wrong = steps(bar, side)
    per_answer = share[..., None] * np.log(right) + (1 - share[..., None]) * np.log(wrong)
    return pooled(wealth + left[..., None] * per_answer)


def fewest_more(test: CellTest, outcomes: Sequence[float]) -> int:
    """The fewest further answers that can decide: all right, or all wrong. So many may be under way at once without one
    being asked in vain. 0 where the cap is reached."""
    left = test.cap - len(outcomes)
    if left <= 0:
        return 0
    scores = np.asarray(outcomes, dtype=np.float64)
    more = np.arange(1, left + 1)
    least = left
    for side, alpha in ((Side.ABOVE, test.alpha_above), (Side.BELOW, test.alpha_below)):
        if side is Side.ABOVE and not test.may_certify:
            continue
        now = bettors(scores, test.bar, side)[-1] if len(outcomes) else np.zeros(2)
        best = np.log(np.maximum(*steps(test.bar, side)))
        reached = pooled(now + more[:, None] * best) >= math.log(1 / alpha)
        if reached.any():
            least = min(least, int(more[np.argmax(reached)]))
    return least


def fewest_to_certify(test: CellTest) -> int:
    """How many answers certify the share if all are right: 25 for 0.85, 52 for 0.925. A cap below it makes asking
    vain."""
    per_right = np.log(steps(test.bar, Side.ABOVE)[0])
    n = 1
    while pooled(n * per_right) < math.log(1 / test.alpha_above):
        n += 1
    return n


@dataclass(frozen=True, slots=True, kw_only=True)
class Operating:
    """What a cell does at one true share: probabilities of its ends, and the mean number of answers."""

    certified: float
    refuted: float
    undecided: float
    mean_answers: float


def operating(test: CellTest, share: float) -> Operating:
    """Exactly, for independent answers that are right with probability `share`: every path is followed at once."""
    table = code_table(test)
    ends = dict.fromkeys((CERTIFIED, REFUTED, UNDECIDED), 0.0)
    alive = np.zeros(test.cap + 1)
    alive[0] = 1.0
    answers = 0.0
    for n in range(1, test.cap + 1):
        answers += float(alive.sum())
        alive = alive * (1 - share) + np.concatenate(([0.0], alive[:-1])) * share
        for code in ends:
            here = table[n] == code
            ends[code] += float(alive[here].sum())
            alive[here] = 0.0
    return Operating(certified=ends[CERTIFIED], refuted=ends[REFUTED], undecided=ends[UNDECIDED], mean_answers=answers)
