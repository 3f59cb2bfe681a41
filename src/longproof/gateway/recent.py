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
    """A ring of the newest."""

    def __init__(self, kept: int = KEPT) -> None:
        self._ring: deque[RecentDecision] = deque(maxlen=kept)

    def add(self, decision: Decision, arrival: Arrival, now_ns: int) -> None:
        """One more, about `arrival`."""
        match decision:
            case Dispatch():
                verdict, detail, waited_ns = "sent", decision.replica, decision.waited_ns
            case Wait():
                verdict, detail, waited_ns = "waits", f"{decision.ahead} ahead", 0
            case _:
                verdict, detail, waited_ns = "refused", f"{decision.status} {decision.code}", 0
        self._ring.append(
            RecentDecision(
                at_ns=now_ns,
                id=decision.id,
                tenant=arrival.tenant,
                model=arrival.model,
                verdict=verdict,
                detail=detail,
                reason=decision.reason,
                waited_ns=waited_ns,
                scores=decision.scores,
            )
        )

    def newest_first(self) -> Sequence[RecentDecision]:
        """All that are kept."""
        return tuple(reversed(self._ring))
