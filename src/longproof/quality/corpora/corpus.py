"""What a haystack is made of: documents, the units they fall into, and a hash over all of it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Protocol, TypeAlias

from longproof.errors import CorpusError
from longproof.quality.corpora.duplicates import Seen, keep_distinct
from longproof.quality.corpora.occurrences import TextIndex
from longproof.quality.corpora.units import split_units

Kind: TypeAlias = Literal["prose", "code"]
SEPARATORS: dict[Kind, str] = {"prose": "\n", "code": "\n\n"}
"""What stands after a unit of filler. Units never begin with white space, so a token never spans a border."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """One document: `name` is its path within the corpus (with ``/``), `text` what was read of it."""

    name: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """Something that stands in a corpus's place but is not part of it, and why."""

    name: str
    why: str


class Corpus(Protocol):
    """A source of filler. Same name, seed and files → same documents and units, in the same order."""

    @property
    def name(self) -> str: ...

    @property
    def kind(self) -> Kind: ...

    @property
    def licence(self) -> str: ...

    @property
    def manifest_sha256(self) -> str:
        """sha256 over the sorted names and sha256 sums of its files; see `manifest_of`."""
        ...

    @property
    def separator(self) -> str:
        """What stands after each unit when they are written one after another."""
        ...

    def documents(self) -> Sequence[Document]:
        """Its documents, near-duplicates dropped, in a stable order."""
        ...

    def units(self) -> Sequence[str]:
        """The smallest pieces that filler is made of (lines of prose, blocks of code), near-duplicates dropped."""
        ...

    def holds(self, value: str) -> bool:
        """Whether a value or key occurs in any document as whole words, whatever its case."""
        ...


class TextCorpus:
    """A corpus in memory. Everything derived from the documents is computed at its first use and kept.

    `manifest_sha256` defaults to that of the documents' texts in UTF-8. Raises CorpusError when nothing is left to
    build from.
    """

    def __init__(
        self,
        *,
        name: str,
        kind: Kind,
        licence: str,
        documents: Iterable[Document],
        manifest_sha256: str | None = None,
        skipped: Sequence[Skipped] = (),
    ) -> None:
        self.name = name
        self.kind: Kind = kind
        self.licence = licence
        self.separator = SEPARATORS[kind]
        self.skipped = tuple(skipped)
        self._given = tuple(documents)
        self.manifest_sha256 = manifest_sha256 or manifest_of(
            (document.name, hashlib.sha256(document.text.encode("utf-8", "surrogatepass")).hexdigest())
            for document in self._given
        )

    def documents(self) -> tuple[Document, ...]:
        return self._distinct[0]

    def units(self) -> tuple[str, ...]:
        return self._distinct[1]

    @property
    def dropped(self) -> tuple[int, int]:
        """(documents, units) that were left out as near-duplicates."""
        return self._distinct[2]

    def holds(self, value: str) -> bool:
        return bool(self._index.places(value))

    @cached_property
    def _index(self) -> TextIndex:
        return TextIndex("\n".join(document.text for document in self.documents()))

    @cached_property
    def _distinct(self) -> tuple[tuple[Document, ...], tuple[str, ...], tuple[int, int]]:
        seen = Seen()
        documents: list[Document] = []
        units: list[str] = []
        repeats = 0
        for document in self._given:
            split = split_units(document.name, document.text, self.kind)
            kept = keep_distinct(split, seen)
            if kept is None:
                continue
            documents.append(document)
            units.extend(kept)
            repeats += len(split) - len(kept)
        if not units:
            raise CorpusError(
                f"corpus {self.name}: no {self.kind} to build from in {len(self._given)} documents",
                advice=f"name a folder that holds {self.kind}, or use the corpus 'generated' or 'python'",
            )
        return tuple(documents), tuple(units), (len(self._given) - len(documents), repeats)


def manifest_of(files: Iterable[tuple[str, str]]) -> str:
    """sha256 over ``SHA256  NAME`` lines in the order of the names: what ``sha256sum`` prints for them, hashed."""
    lines = (f"{sha256}  {name}\n" for name, sha256 in sorted(files))
    return hashlib.sha256("".join(lines).encode("utf-8", "surrogateescape")).hexdigest()
