"""One sentence holds the value; nothing else looks like it. What this loses, everything else loses."""

from __future__ import annotations

from dataclasses import dataclass

from longproof.quality.corpora.corpus import Corpus, Kind
from longproof.quality.item import Item, Needle
from longproof.quality.tasks.drawing import Fresh, slots
from longproof.quality.tasks.wording import THINGS, asks, states


@dataclass(frozen=True, slots=True, kw_only=True)
class Literal:
    """A number under a name, asked for in the same words."""

    name: str = "literal"
    needs: Kind = "prose"
    real: bool = False

    @property
    def chance(self) -> float:
        """See `Family.chance`."""
        return 0.0

    def items(self, *, seed: int, n: int, corpus: Corpus, target_tokens: int | None = None) -> tuple[Item, ...]:
        """See `Family.items`. The length changes nothing."""
        del target_tokens
        found: list[Item] = []
        for slot in slots(self.name, seed=seed, n=n):
            fresh = Fresh(slot.seed, corpus)
            thing = slot.chance.choice(THINGS)
            (key,), (value,) = fresh.names(1), fresh.numbers(1)
            found.append(
                Item(
                    family=self.name,
                    index=slot.index,
                    seed=slot.seed,
                    needles=(Needle(text=states(thing, key, value), depth=slot.depth),),
                    question=asks(thing, key),
                    answers=(value,),
                    candidates=(value,),
                    depth=slot.depth,
                )
            )
        return tuple(found)
