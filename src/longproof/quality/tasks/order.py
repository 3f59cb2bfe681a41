"""The i-th of several requests that differ only in their codes: content does not find it, only counting does."""

from __future__ import annotations

from dataclasses import dataclass

from longproof.quality.corpora.corpus import Corpus, Kind
from longproof.quality.item import Item, Needle
from longproof.quality.tasks.drawing import Fresh, Slot, balanced, between, slots
from longproof.quality.tasks.wording import NUMBER_ONLY

ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth")
REQUESTS: tuple[tuple[str, str], ...] = (
    ("poem", "the tide"),
    ("report", "the bridge"),
    ("letter", "the harvest"),
    ("story", "the lighthouse"),
    ("song", "the winter"),
    ("speech", "the railway"),
    ("riddle", "the orchard"),
    ("review", "the exhibition"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SameRequest:
    """`requests` sentences of the same wording, and two of another kind between them. Every rank is asked for equally
    often, at every depth."""

    name: str
    requests: int
    needs: Kind = "prose"
    real: bool = False
    other_requests: int = 2

    @property
    def chance(self) -> float:
        """See `Family.chance`."""
        return 1 / self.requests

    def items(self, *, seed: int, n: int, corpus: Corpus, target_tokens: int | None = None) -> tuple[Item, ...]:
        """See `Family.items`. The length changes nothing; `depth` is that of the asked request."""
        del target_tokens
        ranks = balanced(range(self.requests), f"{seed}/{self.name}/ranks", n)
        return tuple(self._item(slot, ranks[slot.index], corpus) for slot in slots(self.name, seed=seed, n=n))

    def _item(self, slot: Slot, rank: int, corpus: Corpus) -> Item:
        fresh = Fresh(slot.seed, corpus)
        asked, other = slot.chance.sample(REQUESTS, 2)
        codes, wrong = fresh.numbers(self.requests), fresh.numbers(self.other_requests)
        # rank and depth are independent: the ones before are spread over what lies before, the ones after likewise
        depths = [*between(0, slot.depth, rank, slot.chance), slot.depth]
        depths += between(slot.depth, 1, self.requests - 1 - rank, slot.chance)
        needles = [
            Needle(text=_request(asked, code), depth=depth, evidence=True)
            for code, depth in zip(codes, depths, strict=True)
        ]
        for code, depth in zip(wrong, between(0, 1, self.other_requests, slot.chance), strict=True):
            needles.append(Needle(text=_request(other, code), depth=depth, evidence=False))
        kind, about = asked
        return Item(
            family=self.name,
            index=slot.index,
            seed=slot.seed,
            needles=tuple(sorted(needles, key=lambda needle: needle.depth)),
            question=(
                f"Counting from the beginning of the text, what is the code of the {ORDINALS[rank]} {kind} about "
                f"{about}? {NUMBER_ONLY}"
            ),
            answers=(codes[rank],),
            candidates=(*codes, *wrong),
            decoys={**_meanings(codes, rank), **dict.fromkeys(wrong, "a request of another kind")},
            chance=self.chance,
            depth=slot.depth,
        )


def _request(kind: tuple[str, str], code: str) -> str:
    return f"Somebody asked for a {kind[0]} about {kind[1]} and got one with the code {code}."


def _meanings(codes: list[str], rank: int) -> dict[str, str]:
    """What each wrong code says about the reader; the nearest mistake is named before the ends of the list."""
    meanings: dict[str, str] = {}
    for place, code in enumerate(codes):
        if place == rank:
            continue
        if abs(place - rank) == 1:
            meanings[code] = f"one off: the {ORDINALS[place]}"
        elif place == 0:
            meanings[code] = "the first instead"
        elif place == len(codes) - 1:
            meanings[code] = "the last instead"
        else:
            meanings[code] = f"the {ORDINALS[place]} instead"
    return meanings
