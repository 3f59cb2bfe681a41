"""What chance decides about an item: its place in the text, what it asks for, and values that are new to the corpus.

Everything comes from strings, so that a seed means the same items on every machine: "{seed}/{family}" for what has to
be balanced over the items, "{seed}/{family}/{index}" and its branches for one item.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import TypeVar

from longproof.errors import CorpusError
from longproof.quality.corpora.corpus import Corpus
from longproof.quality.tasks.names import NAMES, QUALITIES

T = TypeVar("T")

_GOLDEN = (math.sqrt(5) - 1) / 2
_MOST_DRAWS = 1_000
"""In a row without a new value. A corpus that holds most six-digit numbers is no haystack."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """Item `index` of a family before anything is drawn for it: its seed, its depth and its own chance."""

    index: int
    seed: str
    depth: float
    chance: Random


def slots(family: str, *, seed: int, n: int) -> Iterator[Slot]:
    """`n` slots whose depths are stratified: one in every [s/n, (s+1)/n).

    The strata come in golden-ratio order, so the first few items already cover the text (a run may stop early), from a
    place that the seed decides.
    """
    begin = Random(f"{seed}/{family}/strata").random()
    order = sorted(range(n), key=lambda index: (begin + index * _GOLDEN) % 1.0)
    strata = {index: stratum for stratum, index in enumerate(order)}
    for index in range(n):
        chance = Random(f"{seed}/{family}/{index}")
        depth = (strata[index] + chance.random()) / n
        yield Slot(index=index, seed=f"{seed}/{family}/{index}", depth=depth, chance=chance)


def balanced(levels: Sequence[T], label: str, n: int) -> list[T]:
    """`n` levels, each as often as the others: one shuffled round after the other. Whoever answers with the commonest
    level, or stops early, gains nothing."""
    chance = Random(label)
    found: list[T] = []
    while len(found) < n:
        found.extend(chance.sample(levels, len(levels)))
    return found[:n]


class Fresh:
    """Values for one item: never the same twice, and none that the corpus holds.

    Longer draws continue shorter ones, so an item that takes more distractors at a greater length keeps the ones it
    had. Raises CorpusError when nothing new is left.
    """

    def __init__(self, seed: str, corpus: Corpus) -> None:
        self._seed = seed
        self._corpus = corpus
        self._given: set[str] = set()
        self._draws = 0
        self._singles = self._new(self._single_names(), "a name")
        self._pairs = self._new(self._paired_names(), "a name of two words")

    def numbers(self, count: int, *, digits: int = 6) -> list[str]:
        """Numbers of exactly that many digits."""
        chance = self._branch("numbers")
        low, high = 10 ** (digits - 1), 10**digits
        drawn = self._new((str(chance.randrange(low, high)) for _ in itertools.count()), f"a number of {digits} digits")
        return [next(drawn) for _ in range(count)]

    def names(self, count: int) -> list[str]:
        """Single words; two-word names where these run out."""
        return [next(self._singles) for _ in range(count)]

    def paired_names(self, count: int) -> list[str]:
        """Names of two words: enough of them for the densest text."""
        return [next(self._pairs) for _ in range(count)]

    def from_pool(self, pool: Sequence[str], count: int) -> list[str]:
        """`count` of `pool`, in random order."""
        shuffled = self._branch("pool").sample(pool, len(pool))
        drawn = self._new(iter(shuffled), f"one of {pool[0]}, {pool[1]}, ...")
        return [next(drawn) for _ in range(count)]

    def _branch(self, what: str) -> Random:
        self._draws += 1
        return Random(f"{self._seed}/{what}/{self._draws}")

    def _new(self, drawn: Iterator[str], what: str) -> Iterator[str]:
        old = 0
        for value in drawn:
            if value in self._given or self._corpus.holds(value):
                old += 1
                if old == _MOST_DRAWS:
                    break
                continue
            old = 0
            self._given.add(value)
            yield value
        raise CorpusError(
            f"corpus {self._corpus.name} leaves no room for {what} that is new to it",
            advice="use another corpus: an answer must stand nowhere but in its needle",
        )

    def _single_names(self) -> Iterator[str]:
        yield from Random(f"{self._seed}/names").sample(NAMES, len(NAMES))
        yield from self._paired_names()

    def _paired_names(self) -> Iterator[str]:
        """Every pair once, without keeping a list of them."""
        chance = Random(f"{self._seed}/paired names")
        pairs = len(QUALITIES) * len(NAMES)
        at, step = chance.randrange(pairs), 0
        while math.gcd(step, pairs) != 1:
            step = chance.randrange(1, pairs)
        for _ in range(pairs):
            yield f"{QUALITIES[at // len(NAMES)]} {NAMES[at % len(NAMES)]}"
            at = (at + step) % pairs


def between(low: float, high: float, count: int, chance: Random) -> list[float]:
    """`count` depths in [low, high), in order."""
    return sorted(chance.uniform(low, high) for _ in range(count))
