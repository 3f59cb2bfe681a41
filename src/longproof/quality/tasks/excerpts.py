"""Paragraphs of the corpus' documents, shown as documents of their own under names that stand nowhere in the corpus."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from longproof.errors import CorpusError
from longproof.quality.corpora.corpus import Corpus

_SENTENCE_WORDS = range(8, 31)
_PARAGRAPH_WORDS = range(25, 121)
_WORD = re.compile(r"[A-Za-z][A-Za-z'-]*")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z])")
_MOST_ALIKE = 0.5
"""Share of words two sentences may have in common (Jaccard) before they count as near-duplicates."""
_ENOUGH_PER_ITEM = 4
_FEWEST_LETTERS = 0.7
"""Of a paragraph's characters: leaves out tables, signatures and lists of options."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Excerpt:
    """One paragraph of a document. `sentences`: those that say enough to be recognised."""

    document: str
    text: str
    sentences: tuple[str, ...]


def excerpts(corpus: Corpus, label: str, *, each: int, items: int) -> list[Excerpt]:
    """One paragraph of each of enough documents for so many items of `each` documents, chosen by `label`; no two share
    a near-duplicate sentence.

    Raises CorpusError when fewer than `each` documents have a paragraph of plain sentences.
    """
    enough = max(_ENOUGH_PER_ITEM * items, each)
    documents = list(corpus.documents())
    chance = Random(label)
    chance.shuffle(documents)
    found: list[Excerpt] = []
    seen: list[frozenset[str]] = []
    for document in documents:
        paragraphs = list(_paragraphs(document.text))
        chance.shuffle(paragraphs)
        for paragraph in paragraphs:
            sentences = _sentences(paragraph)
            bags = [word_bag(sentence) for sentence in sentences]
            if sentences and not any(alike(bag, old) for bag in bags for old in seen):
                seen += bags
                found.append(Excerpt(document=document.name, text=paragraph, sentences=sentences))
                break
        if len(found) == enough:
            break
    if len(found) < each:
        raise CorpusError(
            f"corpus {corpus.name} has {len(found)} documents with a paragraph of plain sentences, of "
            f"{len(documents)}; {each} are needed",
            advice="name a folder with more prose documents",
        )
    return found


def as_document(name: str, text: str) -> str:
    return f"Document {name} begins here.\n{text}\nDocument {name} ends here."


def word_bag(sentence: str) -> frozenset[str]:
    return frozenset(word.lower() for word in _WORD.findall(sentence))


def alike(one: frozenset[str], other: frozenset[str]) -> bool:
    return len(one & other) > _MOST_ALIKE * len(one | other)


def _paragraphs(text: str) -> Iterator[str]:
    for block in re.split(r"\n\s*\n", text):
        paragraph = " ".join(block.split())
        letters = sum(letter.isalpha() or letter == " " for letter in paragraph)
        if len(paragraph.split()) in _PARAGRAPH_WORDS and letters >= _FEWEST_LETTERS * len(paragraph):
            yield paragraph


def _sentences(paragraph: str) -> tuple[str, ...]:
    """Whole sentences without quotes or brackets, which a question could not repeat cleanly."""
    return tuple(
        sentence
        for sentence in _SENTENCE_END.split(paragraph)
        if len(sentence.split()) in _SENTENCE_WORDS and re.fullmatch(r"[A-Z][^\"“”()\[\]{}_|\\]*\.", sentence)
    )
