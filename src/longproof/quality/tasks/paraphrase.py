"""The question shares no word stem with the sentence that answers it: looking for its words finds nothing.

text:      Merrick repairs shoes in Tarnwick.          question:  In which town does the cobbler work?
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from longproof.quality.corpora.corpus import Corpus, Kind
from longproof.quality.item import Item, Needle
from longproof.quality.tasks.drawing import Fresh, Slot, slots
from longproof.quality.tasks.names import SURNAMES, TOWNS
from longproof.quality.tasks.wording import in_text_order

RELATIONS: tuple[tuple[str, str], ...] = (
    ("repairs shoes", "cobbler"),
    ("makes bread", "baker"),
    ("teaches children", "schoolmaster"),
    ("flies aeroplanes", "pilot"),
    ("puts out fires", "firefighter"),
    ("catches fish", "angler"),
    ("cuts hair", "barber"),
    ("pulls teeth", "dentist"),
    ("sells meat", "butcher"),
    ("grows vegetables", "gardener"),
    ("keeps bees", "apiarist"),
    ("looks at the stars", "astronomer"),
    ("takes photographs", "cameraman"),
    ("writes poems", "bard"),
    ("plays the violin", "musician"),
    ("makes tables and chairs", "carpenter"),
    ("mends clocks", "watchmaker"),
    ("sews suits", "tailor"),
    ("draws plans for houses", "architect"),
    ("sells medicine", "pharmacist"),
    ("cures sick animals", "veterinarian"),
    ("defends people in court", "lawyer"),
    ("drives a taxi", "cabman"),
    ("guards a flock of lambs", "shepherd"),
    ("digs for coal", "miner"),
    ("milks cows", "dairyman"),
    ("lends books", "librarian"),
    ("cooks in a restaurant", "chef"),
    ("shapes clay into pots", "ceramist"),
    ("hammers horseshoes", "blacksmith"),
    ("fixes water pipes", "plumber"),
    ("sells roses and tulips", "florist"),
    ("grinds grain into flour", "miller"),
    ("carves statues", "sculptor"),
    ("interprets between languages", "translator"),
    ("stuffs dead animals", "taxidermist"),
    ("fells trees", "lumberjack"),
    ("tells jokes on stage", "comedian"),
    ("pours beer", "bartender"),
    ("brings letters", "postman"),
)
"""(what the text says somebody does, what the question calls that person). Stems are disjoint across the whole table,
so that a question shares none with any sentence."""

_STOP_WORDS = """
a an and at between by does for from in into is named of on only out put the to what which who with
"""
STOP_WORDS = frozenset(_STOP_WORDS.split())
_SUFFIXES = ("ers", "ing", "ies", "er", "or", "ed", "es", "s", "y", "e")


@dataclass(frozen=True, slots=True, kw_only=True)
class Paraphrase:
    """Four people of different trades in different towns; the question names one by the trade."""

    name: str = "paraphrase"
    needs: Kind = "prose"
    real: bool = False
    people: int = 4

    @property
    def chance(self) -> float:
        """See `Family.chance`."""
        return 1 / self.people

    def items(self, *, seed: int, n: int, corpus: Corpus, target_tokens: int | None = None) -> tuple[Item, ...]:
        """See `Family.items`. The length changes nothing."""
        del target_tokens
        return tuple(self._item(slot, corpus) for slot in slots(self.name, seed=seed, n=n))

    def _item(self, slot: Slot, corpus: Corpus) -> Item:
        fresh = Fresh(slot.seed, corpus)
        trades = slot.chance.sample(RELATIONS, self.people)
        names, towns = fresh.from_pool(SURNAMES, self.people), fresh.from_pool(TOWNS, self.people)
        needles = [
            Needle(
                text=f"{name} {deed} in {town}.",
                depth=slot.chance.random() if place else slot.depth,
                evidence=place == 0,
            )
            for place, ((deed, _), name, town) in enumerate(zip(trades, names, towns, strict=True))
        ]
        return Item(
            family=self.name,
            index=slot.index,
            seed=slot.seed,
            needles=in_text_order(needles, slot.chance),
            question=f"Which town does the {trades[0][1]} work in? Answer with the name of the town only.",
            answers=(towns[0],),
            candidates=tuple(towns),
            decoys=dict.fromkeys(towns[1:], "somebody of another trade"),
            chance=self.chance,
            depth=slot.depth,
        )


def stems(text: str) -> frozenset[str]:
    """Stems of the words that mean something: endings cut, then the first five letters, so that related forms meet
    rather too often than too seldom."""
    return frozenset(_stem(word) for word in re.findall(r"[a-z]+", text.lower()) if word not in STOP_WORDS)


def _stem(word: str) -> str:
    for suffix in _SUFFIXES:
        if word.endswith(suffix) and len(word) - len(suffix) >= 3:
            word = word.removesuffix(suffix)
            break
    return word[:5]
