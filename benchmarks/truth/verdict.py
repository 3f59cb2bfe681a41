"""What a judge says about one case."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Outcome(StrEnum):
    """How a prediction stands to the report."""

    AGREES = "agrees"
    DISAGREES = "DISAGREES"
    MISLEADING = "misleading"
    """The engine's own figure is no capacity; `predicted` has the true one."""
    SHOWN = "shown"
    """Not a test: upper bounds, context."""
    UNKNOWN = "not computed"
    """The model or a needed setting is not known; `why` says which."""


@dataclass(frozen=True)
class Verdict:
    """`predicted` and `observed` are short texts; `assumed` names settings the report did not record; `why` explains
    a disagreement or an unknown."""

    outcome: Outcome
    predicted: str
    observed: str
    assumed: str = ""
    why: str = ""
