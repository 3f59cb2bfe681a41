"""Which words cost exactly one token on this server, learned from the server itself.

A word costs at least one token. So when a text of n words after a fixed beginning costs n tokens more than that
beginning, every one of the n words is a single token: one call judges hundreds of words, and a batch that fails is
halved until the guilty word is alone. The same argument covers sentence openers. What the server counts of a whole
prompt is still asked for every prompt.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from longproof.asking.words import OPENERS, WORDS

TextCost: TypeAlias = Callable[[str], Awaitable[int]]
"""Tokens of a text, up to a constant that is the same for every text."""

FEWEST_WORDS = 32
ENOUGH_WORDS = 128
_ANCHOR = "So it began"
_PERIODS = 16
_MOST_PER_SENTENCE = 8


class NoPlainWords(Exception):  # noqa: N818 - not an error: the builder turns it into LengthUnproven
    """This tokenizer gives no stock of one-token words to build from; the text says what was seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lexicon:
    """One-token words and what the marks between them cost.

    `words` follow a space; `openers` begin a sentence after ``". "`` and, at `break_tokens` more than there, after a
    paragraph break. `period_tokens` is what ``.`` adds (0 where it melts into the word). The ids (same order as the
    words) are there only when the server was asked for ids.
    """

    words: tuple[str, ...]
    openers: tuple[str, ...]
    period_tokens: int
    break_tokens: int
    word_ids: tuple[int, ...] = ()
    period_id: int | None = None


async def learn_lexicon(cost: TextCost, *, most_words: int = len(WORDS)) -> Lexicon:
    """Asks the server which of the plain words are single tokens. `most_words` bounds the work where each answer is
    dear.

    Raises NoPlainWords when fewer than `FEWEST_WORDS` are, or when no opener behaves.
    """
    base = await cost(_ANCHOR)
    enough = min(ENOUGH_WORDS, most_words // 2)
    words = await _cheapest(cost, WORDS[:most_words], before=_ANCHOR, unit=" {}", base=base, each=1, enough=enough)
    if len(words) < FEWEST_WORDS:
        raise NoPlainWords(f"only {len(words)} of {most_words} plain words are one token each")
    word = words[0]
    period = _per_unit(await cost(_ANCHOR + f" {word}." * _PERIODS) - base, _PERIODS) - 1
    openers = await _cheapest(cost, OPENERS, before=_ANCHOR, unit=f" {word}. {{}}", base=base, each=2 + period)
    if not openers:
        raise NoPlainWords("no capitalised word is one token at the beginning of a sentence")
    broken = f" {word}.\n\n{{}}"
    extra = _per_unit(await cost(_ANCHOR + broken.format(openers[0]) * _PERIODS) - base, _PERIODS) - 2 - period
    openers = await _cheapest(cost, openers, before=_ANCHOR, unit=broken, base=base, each=2 + period + extra)
    return Lexicon(words=tuple(words), openers=tuple(openers), period_tokens=period, break_tokens=extra)


async def learn_ids(tokenize: Callable[[str], Awaitable[list[int]]], lexicon: Lexicon) -> tuple[tuple[int, ...], int]:
    """Ids of the lexicon's words, in order, and of the period: what plain text becomes, so never special tokens."""
    start = len(await tokenize(_ANCHOR))
    ids = await tokenize(_ANCHOR + "".join(f" {word}" for word in lexicon.words))
    if len(ids) != start + len(lexicon.words):
        raise NoPlainWords("the server gave another number of ids for the same words")
    ended = await tokenize(f"{_ANCHOR} {lexicon.words[0]}.")
    return tuple(ids[start:]), ended[-1]


async def _cheapest(
    cost: TextCost,
    candidates: Sequence[str],
    *,
    before: str,
    unit: str,
    base: int,
    each: int,
    enough: int = len(OPENERS),
) -> list[str]:
    """Candidates that cost exactly `each` tokens when written as `unit`, in order, found by halving. Stops once there
    are `enough`: a tokenizer that splits most words would be asked a thousand times."""
    found: list[str] = []
    batches = [list(candidates)]
    while batches and len(found) < enough:
        batch = batches.pop()
        text = before + "".join(unit.format(candidate) for candidate in batch)
        if await cost(text) - base == each * len(batch):
            found.extend(batch)
        elif len(batch) > 1:
            half = len(batch) // 2
            batches += [batch[half:], batch[:half]]
    return found


def _per_unit(tokens: int, units: int) -> int:
    each, rest = divmod(tokens, units)
    if rest or not 1 <= each <= _MOST_PER_SENTENCE:
        raise NoPlainWords(f"{units} equal sentences cost {tokens} tokens: costs do not add up on this tokenizer")
    return each
