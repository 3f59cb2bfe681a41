"""Several names for each name of a longer block, made when they are looked at.

    names of text blocks           a              b              …
    names of the ledger's blocks   a  a+1  a+2    b  b+1  b+2    …      each text block being three of them

A ledger looks at a few dozen of a prompt's names; a prompt of a million tokens has 62,500.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload


class SpreadNames(Sequence[int]):
    """`each` names for every one of `names`, of which the first `length` count (None = all)."""

    __slots__ = ("_each", "_length", "_names")

    def __init__(self, names: Sequence[int], each: int, length: int | None = None) -> None:
        whole = len(names) * each
        self._names, self._each, self._length = names, each, whole if length is None else min(length, whole)

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, at: int) -> int: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[int]: ...
    def __getitem__(self, at: int | slice) -> int | Sequence[int]:
        if isinstance(at, slice):
            start, stop, step = at.indices(self._length)
            if start == 0 and step == 1:
                return SpreadNames(self._names, self._each, stop)
            return [self[one] for one in range(start, stop, step)]
        place = at + self._length if at < 0 else at
        if not 0 <= place < self._length:
            raise IndexError(f"{at} of {self._length} names")
        block, part = divmod(place, self._each)
        return self._names[block] + part
