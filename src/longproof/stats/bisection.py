"""Finding where yes turns into no on the integers: what is known so far, and the next number to ask about."""

from __future__ import annotations

from dataclasses import dataclass, replace


def next_question(low: int, high: int, resolution: int = 1) -> int | None:
    """The number to ask next between a good `low` and a bad `high`; None when they are `resolution` or less apart.

    Takes ceil(log2((high - low) / resolution)) questions at most. Raises ValueError unless low < high and resolution
    >= 1.
    """
    if low >= high:
        raise ValueError(f"good {low} is not below bad {high}")
    if resolution < 1:
        raise ValueError(f"resolution {resolution} is less than 1")
    return None if high - low <= resolution else (low + high) // 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Bracket:
    """The largest number known to be good and the smallest known to be bad; None = none known.

    Servers need not be monotone: when a good number lies above a bad one, `contradictory` is true and the search is
    over.
    """

    good: int | None = None
    bad: int | None = None

    @property
    def contradictory(self) -> bool:
        """Whether a larger number was good than one that was bad."""
        return self.good is not None and self.bad is not None and self.good >= self.bad

    def answered(self, number: int, *, good: bool) -> Bracket:
        """What is known after one more answer."""
        if good:
            return replace(self, good=number if self.good is None else max(self.good, number))
        return replace(self, bad=number if self.bad is None else min(self.bad, number))

    def next_question(self, low: int, high: int, resolution: int = 1) -> int | None:
        """The next number to ask within [low, high]: the top first (most servers keep their word), then the bottom,
        then halves. None when the answer is known to `resolution`, or contradicts itself."""
        if low > high:
            raise ValueError(f"nothing lies between {low} and {high}")
        if self.contradictory or (self.good is not None and self.good >= high):
            return None
        if self.bad is None or self.bad > high:
            return high
        if self.good is None or self.good < low:
            return low if self.bad > low else None
        return next_question(self.good, self.bad, resolution)
