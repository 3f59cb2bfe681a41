"""What a gate says about one requirement: passed, failed, or undecided. Never a fourth thing, and nothing unmeasured
passes."""

from __future__ import annotations

from dataclasses import dataclass
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
