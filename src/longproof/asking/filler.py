"""Seeded pseudo-text of an exact predicted cost: sentences of one-token words, in paragraphs.

Same lexicon, number of tokens and chance → same text.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from longproof.asking.lexicon import Lexicon

FEWEST_TOKENS = 4
"""The smallest stretch of filler: an opener, a word or two, a period."""

_SENTENCE_TOKENS = (8, 18)
_SENTENCES_PER_PARAGRAPH = 6


def filler_text(tokens: int, *, lexicon: Lexicon, chance: Random, correction: int = 0) -> str:
    """Text predicted to cost `tokens` (≥ FEWEST_TOKENS) where a paragraph begins.

    `correction`: so many of them are words more (below 0: words fewer) at the end of what would be drawn without it.
    Drawn anew, the text would break elsewhere, and where breaks cost more or less than predicted the next correction
    would be off again.
    """
    drawn = tokens - correction
    words = chance.choices(lexicon.words, k=drawn)
    sentences = list(_sentences(drawn, lexicon, chance)) if drawn >= FEWEST_TOKENS else []
    if not sentences or sentences[-1][1] + correction <= sentences[-1][0]:  # its last sentence cannot give so many
        words = chance.choices(lexicon.words, k=tokens)
        sentences, correction = list(_sentences(tokens, lexicon, chance)), 0
    openers = chance.choices(lexicon.openers, k=len(sentences))
    words += chance.choices(lexicon.words, k=max(0, correction))
    begin, end, breaks = sentences[-1]
    sentences[-1] = (begin, end + correction, breaks)
    parts: list[str] = []
    for opener, (begin, end, breaks) in zip(openers, sentences, strict=True):
        if parts:
            parts.append("\n\n" if breaks else " ")
        parts.append(opener)
        parts.append(f" {' '.join(words[begin:end])}.")
    return "".join(parts)


def filler_ids(tokens: int, *, lexicon: Lexicon, chance: Random) -> list[int]:
    """`tokens` ids of plain words with a period at the end of each sentence; any number ≥ 0."""
    ids = chance.choices(lexicon.word_ids, k=tokens)
    if lexicon.period_id is not None:
        shortest, longest = _SENTENCE_TOKENS
        at = chance.randint(shortest, longest)
        while at < tokens:
            ids[at] = lexicon.period_id
            at += chance.randint(shortest, longest)
    return ids


def _sentences(tokens: int, lexicon: Lexicon, chance: Random) -> Iterator[tuple[int, int, bool]]:
    """(first word, end of words, new paragraph?) per sentence; costs add up to `tokens`.

    A sentence costs its opener, its words and its period; the one after a paragraph break costs `break_tokens` more.
    The last sentence takes what is left once that could not hold another whole one.
    """
    marks = 1 + lexicon.period_tokens
    shortest, longest = _SENTENCE_TOKENS
    spare = FEWEST_TOKENS + lexicon.break_tokens
    left, at, breaks = tokens, 0, False
    while left > 0:
        left -= lexicon.break_tokens if breaks else 0
        size = chance.randint(shortest, longest)
        if left - size < spare:
            size = left
        words = size - marks
        yield at, at + words, breaks
        at += words
        left -= size
        breaks = chance.randrange(_SENTENCES_PER_PARAGRAPH) == 0
