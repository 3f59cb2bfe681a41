"""Answers. What a gate says about one requirement: passed, failed, or undecided; never a fourth thing, and nothing
unmeasured passes. What admission says about one request: admit, queue, or reject."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """The evidence shows that the requirement holds. `sentence` gives the numbers; `statements` the ids it rests on."""

    requirement: str
    sentence: str
    statements: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fail:
    """The evidence shows that the requirement does not hold."""

    requirement: str
    sentence: str
    statements: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Undecided:
    """The evidence decides nothing: not measured, or not enough. `repeats_needed`: about how many samples would
    decide, None where more samples alone would not."""

    requirement: str
    sentence: str
    statements: tuple[str, ...] = ()
    repeats_needed: int | None = None


Verdict: TypeAlias = Pass | Fail | Undecided
"""The answer to one requirement."""


class Question(StrEnum):
    """The three questions about one request, in the order they are asked."""

    LIMIT = "limit"
    """Does it fit the configured sequence limit?"""
    CAPACITY = "capacity"
    """Could every stage hold it, were the server idle?"""
    LOAD = "load"
    """Can every stage take it now, beside what runs?"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One question at one place. `needed`, `available` and `margin` (available - needed) are in `unit`: tokens or
    blocks. `where`: the stage's name, "" for the configured limit."""

    question: Question
    where: str
    needed: int
    available: int
    unit: str

    @property
    def margin(self) -> int:
        """What is left over; negative when it does not fit."""
        return self.available - self.needed

    @property
    def fits(self) -> bool:
        """Whether it fits."""
        return self.margin >= 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """The one number that would turn a refusal round: set `name` from `current` to at least (or at most, when
    smaller) `wanted`."""

    name: str
    current: int
    wanted: int
    unit: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Admit:
    """The request may enter now. `binding` is the check with the least to spare; `checks` are all that were made."""

    binding: Check
    checks: tuple[Check, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """It fits the limit and an idle server, but not beside what runs now. `reason` names limit and actual; `change`
    is what would let it in."""

    binding: Check
    reason: str
    change: Change
    checks: tuple[Check, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reject:
    """It can never be served as asked: waiting does not help."""

    binding: Check
    reason: str
    change: Change
    checks: tuple[Check, ...]


AdmissionVerdict: TypeAlias = Admit | Queue | Reject
"""The answer to one request."""
