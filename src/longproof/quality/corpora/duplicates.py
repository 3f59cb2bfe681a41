"""Which lines and documents are dropped because they stood in the corpus before.

A unit is dropped when, with case, digits, punctuation and white space ignored, it equals an earlier one; a unit without
any letter is dropped as well. A document is dropped when at least 80 % of its characters stand in units that earlier
documents had.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

DOCUMENT_SHARE = 0.8
_NOT_LETTERS = re.compile(r"[\W\d_]+")


class Seen:
    """The keys of what stood before. Eight bytes each: a million units take about 100 MB less than their texts."""

    def __init__(self) -> None:
        self._keys: set[bytes] = set()

    def __contains__(self, key: bytes) -> bool:
        return key in self._keys

    def add(self, key: bytes) -> bool:
        """Adds a key; False when it was there."""
        before = len(self._keys)
        self._keys.add(key)
        return len(self._keys) > before


def key_of(unit: str) -> bytes | None:
    """What two near-duplicate units have in common; None for one without letters."""
    letters = _NOT_LETTERS.sub("", unit.casefold())
    return hashlib.blake2b(letters.encode("utf-8", "surrogatepass"), digest_size=8).digest() if letters else None


def keep_distinct(units: Sequence[str], seen: Seen) -> list[str] | None:
    """A document's units without repeats; None when the document as a whole is a repeat of earlier ones.

    `seen` grows by what is kept.
    """
    keyed = [(key, unit) for unit in units if (key := key_of(unit)) is not None]
    whole = sum(len(unit) for _, unit in keyed)
    before = sum(len(unit) for key, unit in keyed if key in seen)
    if whole and before >= DOCUMENT_SHARE * whole:
        return None
    return [unit for key, unit in keyed if seen.add(key)]
