"""Whole units that together cost a wanted number of tokens: how a prompt reaches its length, nothing being cut."""

from __future__ import annotations

from random import Random

import numpy as np
from numpy.typing import NDArray

_MOST_UNITS = 12


class Pool:
    """Units by what they cost. Built once per corpus: units [n] in ascending order of cost.

    `spare`: the units that may be used for this at all (those whose cost was counted).
    """

    def __init__(self, tokens: NDArray[np.int64], spare: NDArray[np.bool_]) -> None:
        numbers = np.flatnonzero(spare)
        self._order = numbers[np.argsort(tokens[numbers], kind="stable")]
        costs, begins = np.unique(tokens[self._order], return_index=True)
        ends = np.append(begins, len(self._order))[1:]
        self._begins: dict[int, tuple[int, int]] = {
            int(cost): (int(begin), int(end)) for cost, begin, end in zip(costs, begins, ends, strict=True)
        }
        self._costs = [int(cost) for cost in costs]

    @property
    def cheapest(self) -> int | None:
        """The smallest cost there is; None for an empty pool."""
        return self._costs[0] if self._costs else None

    def exactly(self, tokens: int, *, taken: NDArray[np.bool_], chance: Random) -> tuple[int, ...] | None:
        """Different units that cost `tokens` together, none of them `taken` [all units]; None when none are found.

        Tries one unit, then two, after choosing single ones while more than two are needed. Seeded: same arguments,
        same units.
        """
        used = taken.copy()
        chosen: list[int] = []
        left = tokens
        while len(chosen) < _MOST_UNITS:
            if left == 0:
                return tuple(chosen)
            found = self._one_or_two(left, used, chance)
            if found is not None:
                return (*chosen, *found)
            one = self._large(left, used, chance)
            if one is None:
                return None
            cost, number = one
            used[number] = True
            chosen.append(number)
            left -= cost
        return None

    def _one_or_two(self, tokens: int, used: NDArray[np.bool_], chance: Random) -> tuple[int, ...] | None:
        alone = self._any(tokens, used, chance)
        if alone is not None:
            return (alone,)
        firsts = [cost for cost in self._costs if cost < tokens and tokens - cost in self._begins]
        chance.shuffle(firsts)
        for cost in firsts:
            first = self._any(cost, used, chance)
            second = None if first is None else self._any(tokens - cost, used, chance, besides=first)
            if first is not None and second is not None:
                return (first, second)
        return None

    def _large(self, most: int, used: NDArray[np.bool_], chance: Random) -> tuple[int, int] | None:
        """(cost, unit): one of at least a third of what is left, else the largest that fits."""
        costs = [cost for cost in self._costs if cost <= most]
        large = [cost for cost in costs if 3 * cost >= most]
        chance.shuffle(large)
        for cost in (*large, *reversed(costs)):
            number = self._any(cost, used, chance)
            if number is not None:
                return cost, number
        return None

    def _any(self, cost: int, used: NDArray[np.bool_], chance: Random, *, besides: int = -1) -> int | None:
        """A unit of that cost that is not used: the first from a random one on."""
        begin, end = self._begins.get(cost, (0, 0))
        if begin == end:
            return None
        shift = chance.randrange(end - begin)
        around = (int(self._order[begin + (shift + step) % (end - begin)]) for step in range(end - begin))
        return next((number for number in around if not used[number] and number != besides), None)
