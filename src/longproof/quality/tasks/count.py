"""How many different people did something, among sentences that only look like it."""

from __future__ import annotations

from dataclasses import dataclass

from longproof.quality.corpora.corpus import Corpus, Kind
from longproof.quality.item import Item, Needle
from longproof.quality.tasks.drawing import Fresh, Slot, balanced, slots
from longproof.quality.tasks.wording import NUMBER_ONLY, in_text_order

COUNTS = (2, 3, 4, 5, 6, 7)
SENTENCES = 9
"""Of the form "X delivered a ...", counted ones and near-misses together: always the same number, so that it tells
nothing about the answer."""

DEEDS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("delivered", "a parcel", ("a letter", "a basket", "a ladder")),
    ("repaired", "a bicycle", ("a clock", "a fence", "a radio")),
    ("borrowed", "a map", ("a lamp", "a tent", "a drum")),
    ("painted", "a door", ("a boat", "a bench", "a wall")),
    ("bought", "a lantern", ("a kettle", "a carpet", "a mirror")),
    ("planted", "an oak", ("a rose", "a vine", "a hedge")),
)
"""Verb, what is counted, near-misses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counting:
    """Two to seven people, each number equally often. In every item one of them is mentioned twice: sentences are not
    people."""

    name: str = "count"
    needs: Kind = "prose"
    real: bool = False

    @property
    def chance(self) -> float:
        """See `Family.chance`."""
        return 1 / len(COUNTS)

    def items(self, *, seed: int, n: int, corpus: Corpus, target_tokens: int | None = None) -> tuple[Item, ...]:
        """See `Family.items`. The length changes nothing; `depth` is that of one of the counted sentences, at random;
        the others are spread over the text."""
        del target_tokens
        counts = balanced(COUNTS, f"{seed}/{self.name}/counts", n)
        return tuple(self._item(slot, counts[slot.index], corpus) for slot in slots(self.name, seed=seed, n=n))

    def _item(self, slot: Slot, count: int, corpus: Corpus) -> Item:
        people = Fresh(slot.seed, corpus).names(SENTENCES)
        verb, counted, misses = slot.chance.choice(DEEDS)
        needles = [
            Needle(text=f"{person} {verb} {counted}.", depth=slot.chance.random() if place else slot.depth)
            for place, person in enumerate(people[:count])
        ]
        again = f"{slot.chance.choice(people[:count])} {verb} another {counted.split()[1]}."
        needles.append(Needle(text=again, depth=slot.chance.random()))
        for person in people[count:]:
            text = f"{person} {verb} {slot.chance.choice(misses)}."
            needles.append(Needle(text=text, depth=slot.chance.random(), evidence=False))
        return Item(
            family=self.name,
            index=slot.index,
            seed=slot.seed,
            needles=in_text_order(needles, slot.chance),
            question=f"How many different people {verb} {counted}? {NUMBER_ONLY}",
            answers=(str(count),),
            candidates=tuple(map(str, (*COUNTS, COUNTS[-1] + 1, SENTENCES, SENTENCES + 1))),
            decoys={
                str(SENTENCES): "everybody counted",
                str(SENTENCES + 1): "every sentence counted",
                str(count + 1): "the one mentioned twice counted twice",
            },
            chance=self.chance,
            depth=slot.depth,
        )
