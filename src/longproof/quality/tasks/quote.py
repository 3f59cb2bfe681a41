"""Which document holds this sentence? One of its words is left out, and the documents have names of our own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from longproof.quality.corpora.corpus import Corpus, Kind
from longproof.quality.item import Item, Needle
from longproof.quality.tasks.drawing import Fresh, Slot, slots
from longproof.quality.tasks.excerpts import Excerpt, as_document, excerpts
from longproof.quality.tasks.wording import in_text_order

BLANK = "____"
_WORD_LETTERS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class QuoteAttribution:
    """Paragraphs of four of the user's documents; a sentence of one is quoted."""

    name: str = "quote"
    needs: Kind = "prose"
    real: bool = True
    documents: int = 4

    @property
    def chance(self) -> float:
        """See `Family.chance`."""
        return 1 / self.documents

    def items(self, *, seed: int, n: int, corpus: Corpus, target_tokens: int | None = None) -> tuple[Item, ...]:
        """See `Family.items`. The length changes nothing; `depth` is that of the document asked for."""
        del target_tokens
        found = excerpts(corpus, f"{seed}/{self.name}", each=self.documents, items=n)
        return tuple(self._item(slot, found, corpus) for slot in slots(self.name, seed=seed, n=n))

    def _item(self, slot: Slot, found: Sequence[Excerpt], corpus: Corpus) -> Item:
        shown = slot.chance.sample(found, self.documents)
        names = Fresh(slot.seed, corpus).names(self.documents)
        needles = [
            Needle(
                text=as_document(name, excerpt.text),
                depth=slot.chance.random() if place else slot.depth,
                evidence=place == 0,
            )
            for place, (name, excerpt) in enumerate(zip(names, shown, strict=True))
        ]
        sentence = slot.chance.choice(shown[0].sentences)
        words = sentence.split(" ")
        # never the first word: it may be what the sentence is recognised by
        long_words = [place for place, word in enumerate(words) if place and len(word) >= _WORD_LETTERS]
        words[slot.chance.choice(long_words or [1])] = BLANK
        return Item(
            family=self.name,
            index=slot.index,
            seed=slot.seed,
            needles=in_text_order(needles, slot.chance),
            question=(
                f'Which document holds the sentence "{" ".join(words)}" (with another word for {BLANK})? '
                f"Answer with the name of the document only."
            ),
            answers=(names[0],),
            candidates=tuple(names),
            decoys=dict.fromkeys(names[1:], "another document"),
            chance=self.chance,
            depth=slot.depth,
        )
