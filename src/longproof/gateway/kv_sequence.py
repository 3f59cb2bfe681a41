"""A publisher's sequence numbers: what is next, what was lost, who began anew. Pure.

number   0 1 2 3 │ 7        lost 4, 5, 6: asked for again where there is a replay, else a gap
         0 1 2 3 │ 0 1      a new life: it holds nothing
         0 1 2 5 │ 3        late or twice: dropped, unless its time is later than all that came, which only a new
                            life can be whose beginning was lost
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Place(StrEnum):
    """Where a message stands."""

    FIRST = "first"
    """The first that was ever seen."""
    NEXT = "next"
    AFTER_GAP = "after a gap"
    NEW_LIFE = "a new life"
    OLD = "old"


_RUN = 3
"""So many old numbers one after the other are no accident: TCP keeps the order of what it delivers."""


@dataclass(slots=True)
class Sequence:
    """Follows one publisher. `last`: the number that was taken last; `missed`: messages that never came."""

    last: int | None = None
    last_s: float = float("-inf")
    missed: int = 0
    _old: tuple[int, int] = (-1, 0)
    """The last old number, and how many came before it without a break."""

    def place(self, number: int, at_s: float) -> Place:
        """Where a message would stand; changes nothing. `at_s`: the publisher's own time."""
        if self.last is None:
            return Place.FIRST
        if number == self.last + 1:
            return Place.NEXT
        if number > self.last:
            return Place.AFTER_GAP
        before, run = self._old
        in_a_row = number == before + 1 and run + 1 >= _RUN
        return Place.NEW_LIFE if at_s > self.last_s or in_a_row else Place.OLD

    def take(self, number: int, at_s: float) -> Place:
        """Takes a message; an old one is only remembered as such. Counts what is missing before it."""
        place = self.place(number, at_s)
        if place is Place.OLD:
            before, run = self._old
            self._old = (number, run + 1 if number == before + 1 else 1)
            return place
        self._old = (-1, 0)
        if place is Place.AFTER_GAP:
            self.missed += number - (self.last or 0) - 1
        if place is Place.NEW_LIFE:
            self.missed += number
            self.last_s = at_s
        self.last, self.last_s = number, max(at_s, self.last_s)
        return place
