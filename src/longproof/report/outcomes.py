"""How outcomes are named and drawn: every one has a word, a kind, a colour and a shape."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from longproof.domain.outcome import Outcome
from longproof.report.theme import Role


class Kind(StrEnum):
    """What an outcome means to the person who sent the request."""

    COMPLETED = "completed"
    CLAMPED = "clamped"
    REFUSED = "refused"
    FAILED = "failed"
    STOPPED = "stopped by us"


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """Colour role and matplotlib marker of a kind; `filled` tells hollow from solid where colour is not seen."""

    role: Role
    marker: str
    filled: bool
    glyph: str


LOOKS: dict[Kind, Look] = {
    Kind.COMPLETED: Look(role=Role.GOOD, marker="o", filled=True, glyph="●"),
    Kind.CLAMPED: Look(role=Role.CAUTION, marker="^", filled=True, glyph="▲"),
    Kind.REFUSED: Look(role=Role.REFUSED, marker="s", filled=False, glyph="□"),
    Kind.FAILED: Look(role=Role.BAD, marker="X", filled=True, glyph="✕"),
    Kind.STOPPED: Look(role=Role.MUTED, marker="_", filled=False, glyph="–"),
}

_WORDS: dict[Outcome, tuple[Kind, str]] = {
    Outcome.COMPLETED: (Kind.COMPLETED, "completed"),
    Outcome.SHORT: (Kind.CLAMPED, "output clamped"),
    Outcome.EMPTY: (Kind.FAILED, "no token in a 200"),
    Outcome.REFUSED_LENGTH: (Kind.REFUSED, "refused: length"),
    Outcome.REFUSED_BUSY: (Kind.REFUSED, "refused: busy"),
    Outcome.REFUSED_OTHER: (Kind.REFUSED, "refused: other"),
    Outcome.SERVER_ERROR: (Kind.FAILED, "server error"),
    Outcome.ERROR_IN_STREAM: (Kind.FAILED, "error in a 200 stream"),
    Outcome.CUT: (Kind.FAILED, "stream cut"),
    Outcome.ABORTED: (Kind.FAILED, "aborted by server"),
    Outcome.HUNG: (Kind.FAILED, "hung, no token"),
    Outcome.TIMED_OUT: (Kind.FAILED, "too slow to finish"),
    Outcome.CANCELLED: (Kind.STOPPED, "cancelled by us"),
    Outcome.UNREACHABLE: (Kind.FAILED, "unreachable"),
    Outcome.NOT_A_STREAM: (Kind.FAILED, "a 200 that is no stream"),
}


def word(outcome: Outcome) -> str:
    """The outcome in two or three words."""
    return _WORDS[outcome][1]


def kind(outcome: Outcome) -> Kind:
    """The kind an outcome belongs to."""
    return _WORDS[outcome][0]


def look(outcome: Outcome) -> Look:
    """Colour and shape of an outcome."""
    return LOOKS[kind(outcome)]
