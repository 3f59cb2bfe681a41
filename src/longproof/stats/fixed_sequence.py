"""From the shortest length to the longest, each at the full error level, until the first that cannot be certified.

Whatever the true effective length is, the first length beyond it is tested once, and everything longer only if that
test erred. So the chance of claiming a length that does not hold is the level of one test, without a correction for how
many lengths there are (Maurer, Hothorn and Lehmacher 1995; Westfall and Krishen 2001), and the dear long cells are run
only when they are earned.

Effective length means: every length up to it that was asked about holds. Between two neighbouring lengths nothing was
asked, and nothing is claimed about dips there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from longproof.stats.proportion import lower_bound, upper_bound


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthBracket:
    """What is proven about an effective length: it reaches `certified_tokens` and not `refuted_tokens`.

    None: no length was certified (refuted). In between is undecided.
    """

    certified_tokens: int | None
    refuted_tokens: int | None

    def __post_init__(self) -> None:
        low, high = self.certified_tokens, self.refuted_tokens
        if low is not None and high is not None and low >= high:
            raise ValueError(f"certified to {low:,} and refuted at {high:,} tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthCell:
    """`right` of `n` at one length, where n was fixed before the first answer."""

    length_tokens: int
    right: int
    n: int


def fixed_sequence(
    cells: Sequence[LengthCell], threshold: float, alpha: float = 0.05, alpha_refuted: float | None = None
) -> LengthBracket:
    """The bracket of cells whose n was fixed in advance, by one-sided Clopper-Pearson bounds.

    A length is certified where it and all shorter ones have a lower bound of at least `threshold`; the first of the
    others whose upper bound lies below is refuted, at `alpha_refuted` (default: alpha divided by the number of cells):
    any of them may come to be the one. Raises ValueError where lengths do not ascend.
    """
    _check_ascending([cell.length_tokens for cell in cells])
    certified: int | None = None
    climbing = True
    refuted = alpha / max(1, len(cells)) if alpha_refuted is None else alpha_refuted
    for cell in cells:
        climbing = climbing and lower_bound(cell.right, cell.n, 1 - alpha) >= threshold
        if climbing:
            certified = cell.length_tokens
        elif upper_bound(cell.right, cell.n, 1 - refuted) < threshold:
            return LengthBracket(certified_tokens=certified, refuted_tokens=cell.length_tokens)
    return LengthBracket(certified_tokens=certified, refuted_tokens=None)


def weakest(brackets: Iterable[LengthBracket]) -> LengthBracket:
    """What holds for every one of several families: the smallest certified and the smallest refuted length.

    Certified without a correction: claiming too much for the minimum takes an error in the family that is the minimum
    (intersection-union, Berger 1982). Refuted needs one: any family may err, so each must have been refuted at the
    error divided by the number of families. Raises ValueError without brackets.
    """
    every = list(brackets)
    if not every:
        raise ValueError("no families")
    certified = [b.certified_tokens for b in every]
    refuted = [b.refuted_tokens for b in every if b.refuted_tokens is not None]
    return LengthBracket(
        certified_tokens=None if None in certified else min(c for c in certified if c is not None),
        refuted_tokens=min(refuted, default=None),
    )


def point_rule(cells: Sequence[LengthCell], threshold: float) -> int | None:
    """The longest length up to which every share reaches the threshold, without an interval: the usual point rule.

    For comparison only: it claims too much in one run out of three or four at 10 to 20 answers a cell.
    """
    _check_ascending([cell.length_tokens for cell in cells])
    longest: int | None = None
    for cell in cells:
        if cell.right < threshold * cell.n:
            break
        longest = cell.length_tokens
    return longest


def _check_ascending(lengths_tokens: Sequence[int]) -> None:
    if any(low >= high for low, high in pairwise(lengths_tokens)):
        raise ValueError(f"lengths do not ascend: {lengths_tokens}")
