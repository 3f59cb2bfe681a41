"""All values of one key, which stand apart from each other: nothing left out, nothing of another key's."""

from __future__ import annotations

import math
from dataclasses import dataclass

from longproof.quality.corpora.corpus import Corpus, Kind
from longproof.quality.item import Item, Needle
from longproof.quality.tasks.drawing import Fresh, Slot, slots
from longproof.quality.tasks.wording import in_text_order

OBJECTS: tuple[tuple[str, str], ...] = (
    ("key", "keys"),
    ("ticket", "tickets"),
    ("crate", "crates"),
    ("parcel", "parcels"),
    ("folder", "folders"),
    ("token", "tokens"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MultiValue:
    """Two names with four numbers each; the numbers of one are asked for. The question does not say how many."""

    name: str = "multi-value"
    needs: Kind = "prose"
    real: bool = False
    values: int = 4

    @property
    def chance(self) -> float:
        """See `Family.chance`."""
        return 1 / math.comb(2 * self.values, self.values)

    def items(self, *, seed: int, n: int, corpus: Corpus, target_tokens: int | None = None) -> tuple[Item, ...]:
        """See `Family.items`. The length changes nothing; `depth` is that of one of the four values, at random."""
        del target_tokens
        return tuple(self._item(slot, corpus) for slot in slots(self.name, seed=seed, n=n))

    def _item(self, slot: Slot, corpus: Corpus) -> Item:
        fresh = Fresh(slot.seed, corpus)
        one, many = slot.chance.choice(OBJECTS)
        holder, other = fresh.names(2)
        right, wrong = fresh.numbers(self.values), fresh.numbers(self.values)
        needles = [
            Needle(
                text=f"{holder} holds the {one} {value}.",
                depth=slot.depth if place == 0 else slot.chance.random(),
            )
            for place, value in enumerate(right)
        ]
        for value in wrong:
            text = f"{other} holds the {one} {value}."
            needles.append(Needle(text=text, depth=slot.chance.random(), evidence=False))
        return Item(
            family=self.name,
            index=slot.index,
            seed=slot.seed,
            needles=in_text_order(needles, slot.chance),
            question=f"Which {many} does {holder} hold? List the number of every one on one line, separated by commas.",
            answers=tuple(right),
            candidates=(*right, *wrong),
            decoys=dict.fromkeys(wrong, "value of another key"),
            chance=self.chance,
            answer_tokens=96,
            depth=slot.depth,
        )
