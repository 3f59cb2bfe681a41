"""What has happened so far, in numbers."""

from __future__ import annotations

from dataclasses import dataclass, field

from longproof.domain.fleet import Counters
from longproof.policy.actions import Refusal
from longproof.policy.arrivals import EndKind
from longproof.policy.request_state import Request


@dataclass(slots=True)
class Tally:
    """Counts of everything that ended, and how."""

    arrived: int = 0
    dispatched: int = 0
    engine_refusals: int = 0
    growth_shortages: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    _ended: dict[EndKind, int] = field(default_factory=lambda: dict.fromkeys(EndKind, 0))
    _refused: dict[str, int] = field(default_factory=dict[str, int])

    def refuse(self, refusal: Refusal) -> Refusal:
        """It was refused."""
        self._refused[refusal.code] = self._refused.get(refusal.code, 0) + 1
        return refusal

    def end(self, kind: EndKind, request: Request) -> None:
        """It ended so."""
        self._ended[kind] += 1
        if request.on_engine:
            self.input_tokens += request.arrival.input_tokens
            self.cached_tokens += request.cached_tokens

    def counters(self) -> Counters:
        """As a value."""
        return Counters(
            arrived=self.arrived,
            dispatched=self.dispatched,
            completed=self._ended[EndKind.COMPLETED],
            cancelled=self._ended[EndKind.CANCELLED],
            failed=self._ended[EndKind.FAILED],
            rejected=self._ended[EndKind.REJECTED],
            refused=sum(self._refused.values()),
            engine_refusals=self.engine_refusals,
            refused_by_code=tuple(sorted(self._refused.items())),
            input_tokens=self.input_tokens,
            cached_tokens=self.cached_tokens,
            growth_shortages=self.growth_shortages,
        )
