"""How much N independent sessions hold together: the N-fold convolution of one session's distribution.

    one session's blocks ─▶ cells ─▶ P(X = k) ─ N-fold convolution, cut at the limit ─▶ P(S_N ≤ limit)

Sizes are never negative, so a partial sum above the limit stays above it: cutting every convolution there loses nothing
that is asked for. Where a cell is one block the result is exact. In larger pools a size between two cells is shared
between them so that its mean stays; rounding all sizes up, and all down, brackets the result strictly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray
from scipy.signal import fftconvolve

GRID_CELLS = 1 << 14
"""Cells the limit is cut into at most."""
_NOISE = 1e-12
"""Below this a probability is rounding of the transform, not a probability."""

Sizes = Sequence[tuple[int, float]]
"""(blocks, probability) of one session."""


class Rounding(Enum):
    """What becomes of a size that lies between two cells."""

    UP = "up"
    DOWN = "down"
    SHARED = "shared"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """How many sessions fit, and the probability that so many exceed the limit. `low` and `high` bracket the exact
    number; they differ only where the grid is coarser than a block."""

    sessions: int
    risk: float
    low: int
    high: int


def most_sessions(sizes: Sizes, limit_blocks: int, risk: float, *, ceiling: int) -> Fit:
    """The most sessions whose sum exceeds `limit_blocks` with at most probability `risk`, up to `ceiling`.

    Raises ValueError for a risk outside (0, 1), a negative limit or an empty distribution.
    """
    if not 0 < risk < 1 or limit_blocks < 0 or not sizes:
        raise ValueError(f"risk {risk}, limit {limit_blocks} blocks, {len(sizes)} sizes")
    quantum = _quantum(limit_blocks)
    sessions, kept = _fit(sizes, limit_blocks, quantum, Rounding.SHARED, risk, ceiling)
    low = high = sessions
    if quantum > 1:
        low, _ = _fit(sizes, limit_blocks, quantum, Rounding.UP, risk, ceiling)
        high, _ = _fit(sizes, limit_blocks, quantum, Rounding.DOWN, risk, ceiling)
    return Fit(sessions=sessions, risk=_probability(1 - kept), low=min(low, sessions), high=max(high, sessions))


def exceed_probability(sizes: Sizes, sessions: int, limit_blocks: int) -> float:
    """The probability that `sessions` hold more than `limit_blocks`."""
    if sessions < 0 or limit_blocks < 0 or not sizes:
        raise ValueError(f"{sessions} sessions, limit {limit_blocks} blocks, {len(sizes)} sizes")
    quantum = _quantum(limit_blocks)
    powers = _Powers(_histogram(sizes, quantum, limit_blocks // quantum, Rounding.SHARED))
    return _probability(1 - powers.within(sessions))


def sum_quantile(sizes: Sizes, sessions: int, risk: float) -> int:
    """The smallest number of blocks that `sessions` exceed with at most probability `risk`, rounded up to the grid."""
    largest = sessions * max(blocks for blocks, _ in sizes)
    quantum = _quantum(largest)
    # rounding up adds less than a cell per session
    powers = _Powers(_histogram(sizes, quantum, largest // quantum + sessions, Rounding.UP))
    return int(np.searchsorted(np.cumsum(powers.power(sessions)), 1 - risk - _NOISE)) * quantum


def _fit(
    sizes: Sizes, limit_blocks: int, quantum: int, rounding: Rounding, risk: float, ceiling: int
) -> tuple[int, float]:
    cells = -(-limit_blocks // quantum) if rounding is Rounding.DOWN else limit_blocks // quantum
    return _Powers(_histogram(sizes, quantum, cells, rounding)).most(1 - risk, ceiling)


def _quantum(blocks: int) -> int:
    return max(1, math.ceil((blocks + 1) / GRID_CELLS))


def _probability(value: float) -> float:
    return min(1.0, max(0.0, value))


def _histogram(sizes: Sizes, quantum: int, cells: int, rounding: Rounding) -> NDArray[np.float64]:
    """Probabilities of 0 … `cells` cells; larger sizes are left out: they exceed the limit alone."""
    counts = np.zeros(cells + 1)
    total = sum(weight for _, weight in sizes)
    for blocks, weight in sizes:
        below, rest = divmod(blocks, quantum)
        above = {Rounding.UP: 1.0 if rest else 0.0, Rounding.DOWN: 0.0, Rounding.SHARED: rest / quantum}[rounding]
        for cell, part in ((below, 1 - above), (below + 1, above)):
            if part and cell <= cells:
                counts[cell] += part * weight / total
    return counts


class _Powers:
    """Convolution powers 1, 2, 4, … of a histogram, each cut at its length."""

    def __init__(self, one: NDArray[np.float64]) -> None:
        self._doubled = [one]

    def power(self, n: int) -> NDArray[np.float64]:
        """The histogram of `n` sessions."""
        result = np.zeros_like(self._doubled[0])
        result[0] = 1.0
        for bit in range(n.bit_length()):
            if n >> bit & 1:
                result = _convolve(result, self._double(bit))
        return result

    def within(self, n: int) -> float:
        """The probability that `n` sessions stay within the limit."""
        return float(self.power(n).sum())

    def most(self, probability: float, ceiling: int) -> tuple[int, float]:
        """The largest n up to `ceiling` with at least `probability` of staying within, and its probability."""
        wanted = probability - _NOISE
        top = 0
        while (1 << top) <= ceiling and float(self._double(top).sum()) >= wanted:
            top += 1
        count, kept = 0, 1.0
        held = self.power(0)
        for bit in range(top - 1, -1, -1):
            if count + (1 << bit) > ceiling:
                continue
            tried = self._double(bit) if count == 0 else _convolve(held, self._double(bit))
            inside = float(tried.sum())
            if inside >= wanted:
                count, kept, held = count + (1 << bit), inside, tried
        return count, kept

    def _double(self, bit: int) -> NDArray[np.float64]:
        while len(self._doubled) <= bit:
            self._doubled.append(_convolve(self._doubled[-1], self._doubled[-1]))
        return self._doubled[bit]


def _convolve(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    product: NDArray[np.float64] = np.asarray(fftconvolve(a, b), dtype=np.float64)[: len(a)]
    product[product < 0] = 0.0  # the transform leaves noise of 1e-17 around zero
    return product
