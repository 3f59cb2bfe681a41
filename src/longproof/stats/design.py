"""What a run asks of one family: lengths, threshold, errors and caps, all fixed before the first answer."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from longproof.stats.cell import CellTest
from longproof.stats.chance import raised


class Rule(StrEnum):
    """What must reach the threshold."""

    ABSOLUTE = "absolute"
    """The share of right answers."""
    RETENTION = "retention"
    """The same among items whose control was right: outcomes hold only those items (see `retention`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """What is asked of one family, fixed before the first answer.

    `threshold` is meant after correction for `chance`. `families` counts the families of the run. A cell takes at most
    `cap` answers, and up to `patience` times as many from a quarter of the longest length down to an eighth and below:
    short cells are cheap, and one that is given up ends the climb.
    """

    lengths_tokens: tuple[int, ...]
    threshold: float = 0.85
    chance: float = 0.0
    rule: Rule = Rule.ABSOLUTE
    alpha: float = 0.05
    families: int = 1
    cap: int = 118
    patience: int = 2
    control_floor: float = 0.5

    def __post_init__(self) -> None:
        pairs = pairwise(self.lengths_tokens)
        if not self.lengths_tokens or self.lengths_tokens[0] < 1 or any(low >= high for low, high in pairs):
            raise ValueError(f"lengths must ascend from 1: {self.lengths_tokens}")
        if not (0 < self.threshold < 1 and 0 < self.control_floor < 1 and 0 < self.alpha < 0.5):
            raise ValueError("threshold and floor must lie between 0 and 1, alpha between 0 and 0.5")
        if self.families < 1 or self.patience < 1:
            raise ValueError("families and patience are at least 1")

    @property
    def bar(self) -> float:
        """The threshold on the scale of the scores: chance 0.5 makes 0.925 of 0.85."""
        return raised(self.threshold, self.chance)

    @property
    def alpha_refuted(self) -> float:
        """The error of one refuted cell, so that all cells of all families together keep `alpha`."""
        return self.alpha / (self.families * (len(self.lengths_tokens) + 1))

    def cap_at(self, length_tokens: int) -> int:
        """The most answers at this length."""
        affordable = self.cap * self.lengths_tokens[-1] // (4 * length_tokens)
        return min(max(self.cap, affordable), self.cap * self.patience)

    def test_at(self, length_tokens: int, *, may_certify: bool = True) -> CellTest:
        """The test of the cell at this length."""
        return CellTest(
            bar=self.bar,
            alpha_above=self.alpha,
            alpha_below=self.alpha_refuted,
            cap=self.cap_at(length_tokens),
            may_certify=may_certify,
        )

    @property
    def control_tests(self) -> tuple[CellTest, CellTest]:
        """The control must pass its floor; it has failed when it lies below what the lengths must reach."""
        floor = CellTest(
            bar=raised(self.control_floor, self.chance),
            alpha_above=self.alpha,
            alpha_below=self.alpha_refuted,
            cap=self.cap,
        )
        return floor, floor if self.rule is Rule.RETENTION else self.test_at(self.lengths_tokens[0])

    @property
    def most_tokens(self) -> int:
        """What the whole design costs in prompt tokens if every cell goes to its cap."""
        return sum(self.cap_at(length) * length for length in self.lengths_tokens)


def asking_order(n: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """An order for n items that has nothing to do with their depth.

    Item i of n lies in depth stratum i. Asked in that order, the first answers would all come from the head of the
    prompt, and a cell that stops early would have seen nothing else.
    """
    return rng.permutation(n)
