"""A model whose effective context is known, because it was made up: right as often as a curve says, wrong otherwise.

    items = items_of(("literal",), seed=0, longest_tokens=4096)
    engine = lying_engine(HONEST.but(answers=Solver(items, Ability(half_tokens=2000.0))))

It finds the item by the question at the prompt's end and by the needles that stand in the text, and answers right with

    p = chance + (1 - chance - lapse) x logistic((log2 half - log2 tokens) / width + tail_preference x (depth - 1/2))

where `depth` is where the evidence really stands in what was read. The same item at the same length always gets the
same answer, so a run that is killed and goes on sees the same model.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from random import Random

from longproof.quality.corpora.opening import open_corpus
from longproof.quality.item import Item, closed_book_chance
from longproof.quality.question_form import ANSWER, QUESTION
from longproof.quality.tasks import FAMILIES
from longproof.testing.answers import Asked
from longproof.testing.fake_tokenizer import TURN_END, TURN_START, tokenizer

DOES_NOT_KNOW = "I do not know."
_WARM_SHARE = 0.5
"""From this share of cached tokens on a prompt counts as warm: all prompts share the few tokens of the template."""
_ITEMS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Ability:
    """What the model can do. The defaults: everything.

    `half_tokens`: the length at which half of its ability is left (None: none is lost), `width`: octaves per unit of
    log odds. `lapse`: share that is wrong at any length. `chance` None: the item's own. `tail_preference`: log odds
    from head to tail. `reads_last_tokens`: evidence that begins farther from the end is lost. `warm_loss`: share of
    right answers that turn wrong when most of the prompt comes from the cache.
    """

    half_tokens: float | None = None
    width: float = 0.3
    lapse: float = 0.0
    chance: float | None = None
    tail_preference: float = 0.0
    reads_last_tokens: int | None = None
    warm_loss: float = 0.0
    seed: int = 0

    def accuracy(self, tokens: int, *, depth: float = 0.5, chance: float = 0.0) -> float:
        """The true share of right answers to cold prompts of that length with their evidence at that depth (0 head, 1
        tail)."""
        guess = chance if self.chance is None else self.chance
        if self.reads_last_tokens is not None and (1 - depth) * tokens > self.reads_last_tokens:
            return guess
        odds = self.tail_preference * (depth - 0.5)
        if self.half_tokens is not None:
            odds += (math.log2(self.half_tokens) - math.log2(tokens)) / self.width
        elif not self.tail_preference:
            odds = math.inf
        return guess + max(1 - guess - self.lapse, 0.0) * (1 + math.tanh(odds / 2)) / 2


class Solver:
    """Answers for `Behaviour.answers`. None for what is no question of one of its items."""

    def __init__(self, items: Iterable[Item], ability: Ability | None = None) -> None:
        self.ability = Ability() if ability is None else ability
        self._by_last_line: dict[str, list[Item]] = {}
        for item in items:
            self._by_last_line.setdefault(_last_line(item.question), []).append(item)

    def __call__(self, asked: Asked) -> str | None:
        text = _without_template(asked.text)
        item = self._item(text)
        if item is None:
            return None
        chance = Random(f"{self.ability.seed}/{item.seed}/{asked.tokens}")
        evidence = [needle.text for needle in item.needles]
        if not all(needle in text for needle in evidence):
            return _guess(item, chance)
        depth = _depth(item, text)
        if self.ability.reads_last_tokens is not None:
            depth = 1 - _distance(item, asked.text) / asked.tokens
        right = chance.random() < self.ability.accuracy(asked.tokens, depth=depth, chance=item.chance)
        if asked.cached_tokens > _WARM_SHARE * asked.tokens and chance.random() < self.ability.warm_loss:
            right = False
        return ", ".join(item.answers) if right else _wrong(item, chance)

    def _item(self, text: str) -> Item | None:
        """Twins share their question: the one with more of its needles in the text is meant."""
        asked = [item for item in self._by_last_line.get(_last_line(text), ()) if text.endswith(item.question)]
        return max(asked, key=lambda item: sum(needle.text in text for needle in item.needles), default=None)


def items_of(
    families: Sequence[str],
    *,
    seed: int,
    longest_tokens: int,
    corpus: str | None = None,
    code_corpus: str | None = None,
    lengths: Sequence[int] = (),
    n: int = _ITEMS,
) -> tuple[Item, ...]:
    """The items that a run with that seed asks, drawn again: the first `n` of each family, and of dense families those
    of every length. Families built from documents spread their items over these: there `n` must be the run's own."""
    found: dict[str, Item] = {}
    for name in families:
        family = FAMILIES[name]
        source = corpus if family.needs == "prose" else code_corpus or corpus
        opened = open_corpus(source, kind=family.needs, seed=seed, tokens=longest_tokens)
        for length in lengths or (None,):
            for item in family.items(seed=seed, n=n, corpus=opened, target_tokens=length):
                found[f"{item.seed}/{length if name.endswith('-dense') else 0}"] = item
    return tuple(found.values())


def _without_template(text: str) -> str:
    """Up to the end of the last turn that a user had, or of the question in a completion."""
    end, start = (tokenizer().decode((token,)) for token in (TURN_END, TURN_START))
    head, found, tail = text.rpartition(end)
    asked = (head if found and tail.strip().startswith(start) else text).rstrip()
    return asked.removesuffix(ANSWER).rstrip()


def _last_line(text: str) -> str:
    return text.rstrip().rpartition("\n")[2].removeprefix(QUESTION)


def _depth(item: Item, text: str) -> float:
    """Where the first of the evidence begins: what reads only the end must reach that far."""
    begins = [text.rfind(needle.text) for needle in item.needles if needle.evidence]
    return min(begins) / len(text) if begins else 1.0


def _distance(item: Item, text: str) -> int:
    """Tokens from there to the very end: what reads only so many is as exact as its tokenizer."""
    begins = [text.rfind(needle.text) for needle in item.needles if needle.evidence]
    return len(tokenizer().encode(text[min(begins) :])) if begins else 0


def _guess(item: Item, chance: Random) -> str:
    """What can be said without the evidence: a word that anybody could say, as often right as chance has it."""
    luck = closed_book_chance(item)
    if not luck:
        return DOES_NOT_KNOW
    return ", ".join(item.answers) if chance.random() < luck else _wrong(item, chance)


def _wrong(item: Item, chance: Random) -> str:
    others = [value for value in item.candidates if value not in item.answers]
    return chance.choice(others) if others else DOES_NOT_KNOW
