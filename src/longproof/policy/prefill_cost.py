"""How long a replica takes to prefill: the plan's or the probe's numbers as one formula.

    ns = fixed + uncached · (per_token + per_token_of_context · (cached + uncached / 2))

The last term is attention: every new token looks at all tokens before it, on average cached + uncached / 2. At 8k it
is noise, at 1M it is most of the time.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillCost:
    """Prefill time of one replica when it does nothing else. `ns_per_token_of_context` is per uncached token and token
    of context, in nanoseconds."""

    ns_per_token: float
    fixed_ns: int = 0
    ns_per_token_of_context: float = 0.0

    def __post_init__(self) -> None:
        if self.ns_per_token <= 0 or self.fixed_ns < 0 or self.ns_per_token_of_context < 0:
            raise ValueError(f"not a prefill cost: {self}")

    @classmethod
    def at_rate(cls, tokens_per_s: float) -> PrefillCost:
        """A constant rate. Raises ValueError for a rate that is not above 0."""
        if tokens_per_s <= 0:
            raise ValueError(f"{tokens_per_s} tokens per second")
        return cls(ns_per_token=1e9 / tokens_per_s)

    def ns(self, uncached_tokens: int, cached_tokens: int = 0) -> int:
        """Nanoseconds to prefill `uncached_tokens` behind `cached_tokens`."""
        attention = self.ns_per_token_of_context * (cached_tokens + uncached_tokens / 2)
        return self.fixed_ns + int(uncached_tokens * (self.ns_per_token + attention))
