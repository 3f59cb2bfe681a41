"""A number with where it came from, or the reason why there is none.

`Unknown` is a value: nothing in longproof uses -1, 0, NaN or an empty string for "not measured".
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeAlias, TypeVar

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Provenance(StrEnum):
    """Where a value came from, strongest first."""

    MEASURED = "measured"
    """We observed it ourselves."""
    REPORTED = "reported"
    """The server said so."""
    DERIVED = "derived"
    """Computed from other values; the source says from which."""
    GIVEN = "given"
    """The user said so."""
    ASSUMED = "assumed"
    """A default nobody confirmed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """An interval estimate. `confidence` is two-sided, e.g. 0.95; `method` names the construction."""

    low: float
    high: float
    confidence: float
    method: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured(Generic[T_co]):
    """A value and its provenance. `source` says where exactly: ``GET /props n_ctx``, ``engine log line 12``."""

    value: T_co
    provenance: Provenance
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknown:
    """No value, and why: ``the server does not report it``, ``n=1``."""

    reason: str


Reading: TypeAlias = Measured[T] | Unknown
"""Either a value with provenance or the reason why it is missing."""


def reported(value: T, source: str) -> Measured[T]:
    """A value as the server reports it."""
    return Measured(value=value, provenance=Provenance.REPORTED, source=source)


def derived(value: T, source: str) -> Measured[T]:
    """A value computed from others; `source` gives the formula."""
    return Measured(value=value, provenance=Provenance.DERIVED, source=source)


def given(value: T, source: str) -> Measured[T]:
    """A value the user stated."""
    return Measured(value=value, provenance=Provenance.GIVEN, source=source)


def value_or_none(reading: Measured[T] | Unknown) -> T | None:
    """The bare value, or None when unknown. For arithmetic that handles the None at once; never for storage."""
    return reading.value if isinstance(reading, Measured) else None
