"""A chain of names to follow before the value is reached, beside a chain of the same shape that leads elsewhere.

asked: A      A shares with B.   B shares with C.   The locker number for C is 711097.      (three hops)
decoy: P      P shares with Q.   Q shares with R.   The locker number for R is 402358.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from longproof.quality.corpora.corpus import Corpus, Kind
from longproof.quality.item import Item, Needle
from longproof.quality.tasks.drawing import Fresh, Slot, slots
from longproof.quality.tasks.wording import THINGS, asks, in_text_order, states


@dataclass(frozen=True, slots=True, kw_only=True)
class AliasChain:
    """`hops` sentences have to be joined: all but the last say that two names have the same thing."""

    name: str
    hops: int
    needs: Kind = "prose"
    real: bool = False

    @property
    def chance(self) -> float:
        """See `Family.chance`."""
        return 0.5

    def items(self, *, seed: int, n: int, corpus: Corpus, target_tokens: int | None = None) -> tuple[Item, ...]:
        """See `Family.items`. The length changes nothing; `depth` is that of the sentence with the value."""
        del target_tokens
        return tuple(self._item(slot, corpus) for slot in slots(self.name, seed=seed, n=n))

    def _item(self, slot: Slot, corpus: Corpus) -> Item:
        fresh = Fresh(slot.seed, corpus)
        thing = slot.chance.choice(THINGS)
        names = fresh.names(2 * self.hops)
        value, wrong = fresh.numbers(2)
        needles = [
            *self._chain(thing, names[: self.hops], value, slot, asked=True),
            *self._chain(thing, names[self.hops :], wrong, slot, asked=False),
        ]
        return Item(
            family=self.name,
            index=slot.index,
            seed=slot.seed,
            needles=in_text_order(needles, slot.chance),
            question=asks(thing, names[0]),
            answers=(value,),
            candidates=(value, wrong),
            decoys={wrong: "end of the decoy chain"},
            chance=self.chance,
            depth=slot.depth,
        )

    def _chain(self, thing: str, names: list[str], value: str, slot: Slot, *, asked: bool) -> list[Needle]:
        links = [f"{one} has the same {thing} as {next_one}." for one, next_one in pairwise(names)]
        needles = [Needle(text=text, depth=slot.chance.random(), evidence=asked) for text in links]
        last = slot.depth if asked else slot.chance.random()
        return [*needles, Needle(text=states(thing, names[-1], value), depth=last, evidence=asked)]
