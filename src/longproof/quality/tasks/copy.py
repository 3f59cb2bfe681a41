"""Can it say again what it read? A note of some forty tokens, to be repeated word for word.

Hardly a question of ability: whoever finds the note and then changes a word of it may have a damaged cache. So it says
something about the server, and no gate on effective context counts it.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from longproof.quality.corpora.corpus import Corpus, Kind
from longproof.quality.item import Item, Needle
from longproof.quality.tasks.drawing import Fresh, Slot, slots
from longproof.quality.tasks.names import NAMES, QUALITIES
from longproof.quality.tasks.wording import in_text_order

WORDS = 20
"""Plain words of one to three tokens: about forty tokens."""
_POOL = sorted({word.lower() for word in (*NAMES, *QUALITIES)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """Three notes under names of their own; one is asked for. Every word counts; case and line breaks do not."""

    name: str = "copy"
    needs: Kind = "prose"
    real: bool = False
    notes: int = 3

    @property
    def chance(self) -> float:
        """See `Family.chance`."""
        return 1 / self.notes

    def items(self, *, seed: int, n: int, corpus: Corpus, target_tokens: int | None = None) -> tuple[Item, ...]:
        """See `Family.items`. The length changes nothing."""
        del target_tokens
        return tuple(self._item(slot, corpus) for slot in slots(self.name, seed=seed, n=n))

    def _item(self, slot: Slot, corpus: Corpus) -> Item:
        key, *others = Fresh(slot.seed, corpus).names(self.notes)
        drawn = Random(f"{slot.seed}/notes")
        taken = {key.lower(), *(other.lower() for other in others)}
        pool = [word for word in _POOL if word not in taken]
        note, *wrong = (" ".join(drawn.sample(pool, WORDS)) for _ in range(self.notes))
        needles = [Needle(text=_states(key, note), depth=slot.depth)]
        for other, text in zip(others, wrong, strict=True):
            needles.append(Needle(text=_states(other, text), depth=slot.chance.random(), evidence=False))
        return Item(
            family=self.name,
            index=slot.index,
            seed=slot.seed,
            needles=in_text_order(needles, slot.chance),
            question=f"What does the note for {key} say? Repeat it word for word.",
            answers=(note,),
            candidates=(note, *wrong),
            decoys=dict.fromkeys(wrong, "another note"),
            chance=self.chance,
            answer_tokens=96,
            depth=slot.depth,
        )


def _states(key: str, note: str) -> str:
    return f"The note for {key} says: {note}."
