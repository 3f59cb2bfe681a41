"""What is proven of a model, and what becomes of a request that goes beyond it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class OnExcess(StrEnum):
    """What happens to a request beyond the proven limits."""

    REJECT = "reject"
    WARN = "warn"
    """Served, with a header that says what is not proven."""
    ROUTE = "route"
    """Served by the proven pool alone; rejected when that is not proven for it either."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvenLimits:
    """What a claim says about one model.

    `admitted_tokens`: the longest input + output that was shown to be admitted and completed. `effective_tokens`: the
    longest input up to which quality was shown. None = the claim says nothing about it, and nothing is enforced.
    `problem`: why the claim cannot be relied on (expired, made of another configuration); the limits are applied all
    the same, and every answer says so. `pool`: where OnExcess.ROUTE sends what exceeds the effective context.
    """

    model: str
    claim: str = ""
    admitted_tokens: int | None = None
    effective_tokens: int | None = None
    on_excess: OnExcess = OnExcess.REJECT
    pool: str | None = None
    problem: str | None = None
