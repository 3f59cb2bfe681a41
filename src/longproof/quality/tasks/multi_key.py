"""The right one among values of the same form: one of eight, or one of as many as there are stretches of 64 tokens.

What makes this hard is the other keys, and the place among them: a small model finds the first and the last of eight
more often than those between, whatever stands around them. Filler that only pushes eight keys apart may leave such a
model as it was; keys that grow with the text do not.
"""

from __future__ import annotations

from dataclasses import dataclass

from longproof.quality.corpora.corpus import Corpus, Kind
from longproof.quality.item import Item, Needle
from longproof.quality.tasks.drawing import Fresh, Slot, slots
from longproof.quality.tasks.wording import THINGS, asks, in_text_order, states

FEWEST_KEYS = 2
"""One to confuse the asked one with: from 128 tokens on, every length is as densely strewn with keys as any other."""
TOKENS_PER_KEY = 64
"""A model for which eight keys are easy at any length falls where their number grows with it: Qwen2.5-Coder-0.5B found
6 of 6 at 979 tokens and 2 of 5 at 3,735."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MultiKey:
    """`keys` names with a number each; one is asked for."""

    name: str = "multi-key-8"
    needs: Kind = "prose"
    real: bool = False
    keys: int = 8

    @property
    def chance(self) -> float:
        """See `Family.chance`."""
        return 1 / self.keys

    def items(self, *, seed: int, n: int, corpus: Corpus, target_tokens: int | None = None) -> tuple[Item, ...]:
        """See `Family.items`. The length changes nothing."""
        del target_tokens
        return tuple(_item(self.name, slot, self.keys, corpus) for slot in slots(self.name, seed=seed, n=n))


def keys_at(tokens: int) -> int:
    """Keys of a dense text of that many tokens."""
    return max(FEWEST_KEYS, tokens // TOKENS_PER_KEY)


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseKeys:
    """As many keys as there are stretches of 64 tokens. A longer text keeps the keys of a shorter one and adds more."""

    name: str = "multi-key-dense"
    needs: Kind = "prose"
    real: bool = False

    @property
    def chance(self) -> float:
        """See `Family.chance`. Longer texts have more keys: `chance_at` says how many."""
        return 1 / FEWEST_KEYS

    def items(self, *, seed: int, n: int, corpus: Corpus, target_tokens: int | None = None) -> tuple[Item, ...]:
        """See `Family.items`. Without a length there are as few keys as there ever are."""
        keys = keys_at(target_tokens or 0)
        return tuple(_item(self.name, slot, keys, corpus, two_words=True) for slot in slots(self.name, seed=seed, n=n))


def _item(family: str, slot: Slot, keys: int, corpus: Corpus, *, two_words: bool = False) -> Item:
    fresh = Fresh(slot.seed, corpus)
    thing = slot.chance.choice(THINGS)
    names = fresh.paired_names if two_words else fresh.names
    (key, *others), (value, *wrong) = names(keys), fresh.numbers(keys)
    needles = [Needle(text=states(thing, key, value), depth=slot.depth)]
    for other, number in zip(others, wrong, strict=True):
        needles.append(Needle(text=states(thing, other, number), depth=slot.chance.random(), evidence=False))
    return Item(
        family=family,
        index=slot.index,
        seed=slot.seed,
        needles=in_text_order(needles, slot.chance),
        question=asks(thing, key),
        answers=(value,),
        candidates=(value, *wrong),
        decoys=dict.fromkeys(wrong, "value of another key"),
        chance=1 / keys,
        depth=slot.depth,
    )
