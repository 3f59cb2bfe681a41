"""A value that is changed several times: the latest counts. Other keys change too, so the last sentence is no help."""

from __future__ import annotations

from dataclasses import dataclass

from longproof.quality.corpora.corpus import Corpus, Kind
from longproof.quality.item import Item, Needle
from longproof.quality.tasks.drawing import Fresh, Slot, between, slots
from longproof.quality.tasks.wording import NUMBER_ONLY, THINGS, states


@dataclass(frozen=True, slots=True, kw_only=True)
class LatestState:
    """Three keys with `values` values each, one after the other; the latest of one is asked for."""

    name: str = "state"
    needs: Kind = "prose"
    real: bool = False
    values: int = 3
    other_keys: int = 2

    @property
    def chance(self) -> float:
        """See `Family.chance`."""
        return 1 / self.values

    def items(self, *, seed: int, n: int, corpus: Corpus, target_tokens: int | None = None) -> tuple[Item, ...]:
        """See `Family.items`. The length changes nothing; `depth` is that of the latest value."""
        del target_tokens
        return tuple(self._item(slot, corpus) for slot in slots(self.name, seed=seed, n=n))

    def _item(self, slot: Slot, corpus: Corpus) -> Item:
        fresh = Fresh(slot.seed, corpus)
        thing = slot.chance.choice(THINGS)
        asked, *others = fresh.names(1 + self.other_keys)
        history = fresh.numbers(self.values)
        *old, latest = history
        before = between(0, slot.depth, len(old), slot.chance)
        needles = self._rewrites(thing, asked, history, [*before, slot.depth], evidence=True)
        wrong: list[str] = []
        for other in others:
            values = fresh.numbers(self.values)
            wrong += values
            depths = between(0, 1, self.values, slot.chance)
            needles += self._rewrites(thing, other, values, depths, evidence=False)
        decoys = {old[0]: "the first value", **dict.fromkeys(old[1:], "an earlier value")}
        return Item(
            family=self.name,
            index=slot.index,
            seed=slot.seed,
            needles=tuple(sorted(needles, key=lambda needle: needle.depth)),
            question=f"What is the {thing} for {asked} now, after all changes? {NUMBER_ONLY}",
            answers=(latest,),
            candidates=(*history, *wrong),
            decoys={**decoys, **dict.fromkeys(wrong, "value of another key")},
            chance=self.chance,
            depth=slot.depth,
        )

    @staticmethod
    def _rewrites(thing: str, key: str, values: list[str], depths: list[float], *, evidence: bool) -> list[Needle]:
        texts = [states(thing, key, values[0])]
        texts += [f"The {thing} for {key} was changed to {value}." for value in values[1:]]
        return [Needle(text=text, depth=depth, evidence=evidence) for text, depth in zip(texts, depths, strict=True)]
