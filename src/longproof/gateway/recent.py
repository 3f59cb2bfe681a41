"""The last decisions, for people who watch. The decision log has all of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from longproof.policy.actions import Decision, Dispatch, Wait
from longproof.policy.arrivals import Arrival
from longproof.policy.choice import Score

KEPT = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class RecentDecision:
    """One decision. `verdict`: sent, waits or refused; `detail`: the replica, or the refusal's code."""

    at_ns: int
    id: str
    tenant: str
    model: str
    verdict: str
    detail: str
    reason: str
    waited_ns: int
    scores: tuple[Score, ...]


class RecentDecisions:
    """A ring of the newest, kept as they come: few of them are ever looked at."""

    def __init__(self, kept: int = KEPT) -> None:
        self._ring: deque[tuple[Decision, str, str, int]] = deque(maxlen=kept)

    def add(self, decision: Decision, arrival: Arrival, now_ns: int) -> None:
        """One more, about `arrival`."""
        self._ring.append((decision, arrival.tenant, arrival.model, now_ns))

    def newest_first(self) -> Sequence[RecentDecision]:
        """All that are kept."""
        return tuple(_shown(*kept) for kept in reversed(self._ring))


def _shown(decision: Decision, tenant: str, model: str, now_ns: int) -> RecentDecision:
    match decision:
        case Dispatch():
            verdict, detail, waited_ns = "sent", decision.replica, decision.waited_ns
        case Wait():
            verdict, detail, waited_ns = "waits", f"{decision.ahead} ahead", 0
        case _:
            verdict, detail, waited_ns = "refused", f"{decision.status} {decision.code}", 0
    return RecentDecision(
        at_ns=now_ns,
        id=decision.id,
        tenant=tenant,
        model=model,
        verdict=verdict,
        detail=detail,
        reason=decision.reason,
        waited_ns=waited_ns,
        scores=decision.scores,
    )
