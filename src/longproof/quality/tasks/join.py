"""A field of one document names another document, whose field is the answer: two documents, one question.

The documents are paragraphs of the user's; the fields at their heads are written anew for every item, so that nothing
of the answer can be remembered. Every document refers to another one and has a number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from longproof.quality.corpora.corpus import Corpus, Kind
from longproof.quality.item import Item, Needle
from longproof.quality.tasks.drawing import Fresh, Slot, slots
from longproof.quality.tasks.excerpts import Excerpt, as_document, excerpts
from longproof.quality.tasks.wording import NUMBER_ONLY, in_text_order


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """Four documents that refer to each other in a ring; the number of the one that a named one refers to."""

    name: str = "join"
    needs: Kind = "prose"
    real: bool = True
    documents: int = 4

    @property
    def chance(self) -> float:
        """See `Family.chance`."""
        return 1 / self.documents

    def items(self, *, seed: int, n: int, corpus: Corpus, target_tokens: int | None = None) -> tuple[Item, ...]:
        """See `Family.items`. The length changes nothing; `depth` is that of the document with the answer."""
        del target_tokens
        found = excerpts(corpus, f"{seed}/{self.name}", each=self.documents, items=n)
        return tuple(self._item(slot, found, corpus) for slot in slots(self.name, seed=seed, n=n))

    def _item(self, slot: Slot, found: Sequence[Excerpt], corpus: Corpus) -> Item:
        shown = slot.chance.sample(found, self.documents)
        fresh = Fresh(slot.seed, corpus)
        names, numbers = fresh.names(self.documents), fresh.numbers(self.documents)
        needles: list[Needle] = []
        for place, (name, number, excerpt) in enumerate(zip(names, numbers, shown, strict=True)):
            refers_to = names[(place + 1) % self.documents]
            fields = f"Its file number is {number}. It refers to document {refers_to}."
            needles.append(
                Needle(
                    text=as_document(name, f"{fields}\n{excerpt.text}"),
                    depth=slot.depth if place == 1 else slot.chance.random(),
                    evidence=place in (0, 1),
                )
            )
        return Item(
            family=self.name,
            index=slot.index,
            seed=slot.seed,
            needles=in_text_order(needles, slot.chance),
            # one sentence: a small model only repeats the first of two
            question=f"What is the file number of the document that document {names[0]} refers to? {NUMBER_ONLY}",
            answers=(numbers[1],),
            candidates=tuple(numbers),
            decoys={
                **dict.fromkeys(numbers[2:], "another document"),
                numbers[0]: "own number of the document named: stopped on the way",
            },
            chance=self.chance,
            depth=slot.depth,
        )
