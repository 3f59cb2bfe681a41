"""Long prefills away from short requests, without idle machines.

A request is long for a replica when it would have to prefill `long_from_tokens` or more there; the same prompt is short
where its beginning is cached. One long prefill at a time per replica, and never on all of them:

    replicas          r1        r2        r3        r4
    long in prefill   ■         ■         –         –         a third long: r3 may be lent, r4 is kept for the short
                                                              a fourth long: waits until one of the prefills is done

With a pool of their own (`long_pool`) longs go there first, and are lent replicas of the others only while they are
idle. Shorts are kept out of nowhere unless `spill` is off: where a long is in prefill, the backlog alone sends them
away. While no short request was seen for `short_memory_ns`, nothing is kept for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from longproof.policy.choice import ReplicaView


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolRule:
    """How long and short requests share replicas. `long_from_tokens` None: no request is long.

    `keep_replicas`: replicas outside the long pool on which no long prefill may run, as long as there are others.
    `idle_tokens`: a replica is idle enough to be lent when it has no more than this left to prefill.
    """

    long_from_tokens: int | None = 32_768
    long_pool: str | None = None
    keep_replicas: int = 1
    idle_tokens: int = 8_192
    spill: bool = True
    short_memory_ns: int = 60_000_000_000

    def __post_init__(self) -> None:
        if self.long_from_tokens is not None and self.long_from_tokens < 1:
            raise ValueError(f"long from {self.long_from_tokens} tokens")
        if self.keep_replicas < 0 or self.idle_tokens < 0 or self.short_memory_ns < 0:
            raise ValueError(f"not a rule for pools: {self}")

    def is_long(self, uncached_tokens: int) -> bool:
        """Whether that much to prefill is kept away from short requests."""
        return self.long_from_tokens is not None and uncached_tokens >= self.long_from_tokens


@dataclass(frozen=True, slots=True)
class Lending:
    """What the pools allow at one moment: worked out once per request, then asked per replica."""

    rule: PoolRule
    lendable: bool
    any_long_pool: bool

    def refusal(self, view: ReplicaView, uncached_tokens: int, cached_tokens: int) -> str:
        """Why the request may not go there now; "" = it may."""
        rule = self.rule
        of_long_pool = view.pool == rule.long_pool
        if not rule.is_long(uncached_tokens):
            if of_long_pool and not rule.spill and cached_tokens < uncached_tokens:
                return f"pool {rule.long_pool} is for long requests"
            return ""
        if rule.is_long(view.pending_prefill_tokens):
            return "a long prefill is running there"
        if of_long_pool:
            return ""
        if not self.lendable:
            return "kept for short requests"
        if self.any_long_pool and view.pending_prefill_tokens > rule.idle_tokens:
            return "not idle enough to be lent"
        return ""


def lending(rule: PoolRule, views: Sequence[ReplicaView], *, shorts_about: bool) -> Lending:
    """What may be lent among `views`. `shorts_about`: short requests were seen lately.

    A single replica is always lendable: there is nothing else to serve a long request.
    """
    others = [view for view in views if view.pool != rule.long_pool]
    lent = sum(1 for view in others if rule.is_long(view.pending_prefill_tokens))
    any_long_pool = len(others) < len(views)
    keep = rule.keep_replicas if shorts_about else 0
    if not any_long_pool:
        keep = min(keep, len(others) - 1)
    return Lending(rule, lent < len(others) - keep, any_long_pool)
