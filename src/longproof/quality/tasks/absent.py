"""Is it there at all? Twins with the same question: in one the sentence stands in the text, in the other it does not.

Whoever always says no is right in half of them, which is what chance gives: a model's "not in the text" means nothing
until it has been held against its "yes" (Youden's J = true yes + true no - 1 = 2 x accuracy - 1 over whole pairs).
The free form asks for the value itself, or for two words where the text does not say: who invents one is seen doing it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

from longproof.quality.corpora.corpus import Corpus, Kind
from longproof.quality.item import Item, Needle
from longproof.quality.tasks.drawing import Fresh, Slot, slots
from longproof.quality.tasks.wording import THINGS, in_text_order, states

YES, NO = "yes", "no"
NOT_STATED = "not stated"


@dataclass(frozen=True, slots=True, kw_only=True)
class AbsentOrPresent:
    """Both twins hold as many sentences of the asked form, and one that gives the asked name something else; only the
    names differ. `free`: the value is asked for, not whether it is there."""

    name: str = "absent"
    free: bool = False
    needs: Kind = "prose"
    real: bool = False
    distractors: int = 3

    @property
    def chance(self) -> float:
        """See `Family.chance`."""
        return 0.5

    def items(self, *, seed: int, n: int, corpus: Corpus, target_tokens: int | None = None) -> tuple[Item, ...]:
        """See `Family.items`. Pairs follow each other, which of them first is chance; an odd `n` gives one item more.
        `depth` is the place where the sentence stands or would stand."""
        del target_tokens
        found: list[Item] = []
        for slot in slots(self.name, seed=seed, n=(n + 1) // 2):
            twins = [self._twin(slot, corpus, present=present) for present in (True, False)]
            slot.chance.shuffle(twins)
            for twin in twins:
                index = len(found)
                found.append(replace(twin, index=index, seed=f"{seed}/{self.name}/{index}"))
        return tuple(found)

    def _twin(self, slot: Slot, corpus: Corpus, *, present: bool) -> Item:
        """One of the two: everything drawn is the same for both."""
        fresh, chance = Fresh(f"{slot.seed}/pair", corpus), Random(f"{slot.seed}/pair")
        thing, near = chance.sample(THINGS, 2)
        asked, instead, *others = fresh.names(2 + self.distractors)
        value, near_value, *wrong = fresh.numbers(2 + self.distractors)
        named = asked if present else instead
        needles = [Needle(text=states(thing, named, value), depth=slot.depth, evidence=present)]
        near_miss = states(near, asked, near_value)
        needles.append(Needle(text=near_miss, depth=chance.random(), evidence=False))
        for other, number in zip(others, wrong, strict=True):
            needles.append(Needle(text=states(thing, other, number), depth=chance.random(), evidence=False))
        item = Item(
            family=self.name,
            index=slot.index,
            seed=slot.seed,
            needles=in_text_order(needles, chance),
            question=f"Does the text say what the {thing} for {asked} is? Answer yes or no.",
            answers=(YES,) if present else (NO,),
            candidates=(YES, NO),
            decoys={NO: "overlooked"} if present else {YES: "invented"},
            chance=self.chance,
            pair=f"{slot.seed}/pair",
            depth=slot.depth,
        )
        if not self.free:
            return item
        decoys = {near_value: "another thing of that name", **dict.fromkeys(wrong, "value of another key")}
        other = (NOT_STATED, "overlooked") if present else (value, "value of another key")
        return replace(
            item,
            question=f"What is the {thing} for {asked}? Answer with the number only, or with the words {NOT_STATED}.",
            answers=(value,) if present else (NOT_STATED,),
            candidates=(value, NOT_STATED, near_value, *wrong),
            decoys={**decoys, other[0]: other[1]},
        )
