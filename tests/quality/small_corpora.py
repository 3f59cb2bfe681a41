"""Corpora in memory: a little prose of our own, and some of the standard library that is on every machine."""

from __future__ import annotations

import sysconfig
from functools import cache
from pathlib import Path

from longproof.quality.corpora.corpus import Corpus, Document, Kind, TextCorpus
from longproof.quality.item import Family

_SUBJECTS = ("The warden", "The baker's apprentice", "The ferryman", "The night clerk", "The new surveyor")
_DEEDS = (
    "walked along the northern wall before the gates were opened",
    "counted the sacks twice because the ledger had been wet",
    "asked whether the lower road would be mended this year",
    "left the heavy keys with the widow at the corner house",
    "wrote a long complaint about the smoke from the brick kiln",
    "found the second barrel empty although nobody had touched it",
)
_REASONS = (
    "and nobody in the village ever learned the reason for it",
    "while the others waited in the rain under the chapel roof",
    "so the council put the matter off until after the harvest",
    "which surprised even the oldest people of the parish",
    "although the letter had promised something quite different",
)

_MODULES = """
argparse bdb calendar copy csv dis fnmatch getopt gettext glob gzip heapq locale ntpath os pathlib platform posixpath
pprint random shutil statistics string textwrap timeit tokenize traceback warnings weakref ctypes/__init__
email/_header_value_parser email/utils http/cookiejar inspect doctest tarfile
"""


@cache
def prose_corpus() -> TextCorpus:
    """Twelve documents of three paragraphs; no digits, no capitalised word but at the beginning of a sentence."""
    documents: list[Document] = []
    for number in range(12):
        paragraphs = [
            " ".join(
                f"{_SUBJECTS[(number + part) % 5]} {_DEEDS[(2 * number + place + part) % 6]} "
                f"{_REASONS[(number + 3 * place + part) % 5]} on day {_spelled(number, part, place)}."
                for place in range(2)
            )
            for part in range(3)
        ]
        documents.append(Document(name=f"chronicle/{number:02}.txt", text="\n\n".join(paragraphs)))
    return TextCorpus(name="chronicle", kind="prose", licence="ours", documents=documents)


@cache
def code_corpus() -> TextCorpus:
    """Some modules of the Python that runs the tests."""
    library = Path(sysconfig.get_paths()["stdlib"])
    files = [library / f"{name}.py" for name in _MODULES.split()]
    documents = [Document(name=str(file.relative_to(library)), text=file.read_text(encoding="utf-8")) for file in files]
    return TextCorpus(name="python", kind="code", licence="PSF-2.0", documents=documents)


def corpus_for(family: Family) -> Corpus:
    kinds: dict[Kind, TextCorpus] = {"prose": prose_corpus(), "code": code_corpus()}
    return kinds[family.needs]


def _spelled(number: int, part: int, place: int) -> str:
    """A word of its own for every sentence: near-duplicates would be dropped."""
    return "".join("bdfglmnprs"[digit] + "aeiou"[digit % 5] for digit in (number % 10, part, place, number // 10))
