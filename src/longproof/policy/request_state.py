"""One request while the controller knows it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

from longproof.policy.arrivals import Arrival
from longproof.policy.claim_gate import GateAnswer
from longproof.policy.prefill_pace import Stretch
from longproof.policy.queue import Ticket
from longproof.policy.spread_names import SpreadNames
from longproof.policy.tenants import Tenant


class Phase(Enum):
    """Where a request is.

    DECIDING ──▶ COUNTING ──▶ DECIDING ──▶ WAITING ──▶ PREFILLING ──▶ DECODING
                                  │                      ▲   │
                                  └──────────────────────┘   └──▶ DECIDING: the engine refused it

    Any of them ends by cancel, refusal or finish.
    """

    DECIDING = auto()
    """In no account: between two of the others, never after a call has returned."""

    COUNTING = auto()
    """Its exact length is awaited; its upper bound is held in the ledger, if it has a replica."""
    WAITING = auto()
    PREFILLING = auto()
    DECODING = auto()
    LOST = auto()
    """Its replica has a new life: it holds nothing, and ends when its connection does."""


@dataclass(slots=True, eq=False)
class Request:
    """Mutable; only the controller's modules touch it.

    `counted` False: it is not sent before its exact length is known. `near`: only the exact length tells what its claim
    makes of it. `held_tokens`: input and output so far, while it
    has a place at a replica; `sent_to`: where it was sent last, whether or not it still holds anything there.
    `output_at_ns`: when its output was last heard of, its first token included. `charged_tokens`: what the ledger was
    asked for there; `booked_tokens`, `prefill_ns`: what its prefill counts for there, and `prefilled_by_ns` when that
    should be done. `reported_ns`, `foreseen_ns`: what its output took so far, and what that was foreseen to take.
    `stretch`: where its prefill was counted, if anything is learned from it.
    """

    arrival: Arrival
    tenant: Tenant
    ticket: Ticket
    gate: GateAnswer
    phase: Phase = Phase.DECIDING
    replica: str | None = None
    sent_to: str | None = None
    counted: bool = True
    near: bool = False
    charged_tokens: int = 0
    output_tokens: int = 0
    output_at_ns: int = 0
    cached_tokens: int = 0
    uncached_tokens: int = 0
    booked_tokens: int = 0
    booked_ns: int = 0
    prefill_ns: int = 0
    dispatched_ns: int = 0
    prefilled_by_ns: int = 0
    attempts: int = 0
    service_ns: int = 0
    expected_token_ns: int = 0
    used_token_ns: int = 0
    held_tokens: int = 0
    held_since_ns: int = 0
    reported_ns: int = 0
    foreseen_ns: float = 0.0
    watched: bool = False
    stretch: Stretch | None = None
    reason: str = ""

    @property
    def names(self) -> Sequence[int]:
        """A name for each block of the replica, as the ledger has it: one that names text stands for several."""
        arrival = self.arrival
        return arrival.blocks if arrival.by_text <= 1 else SpreadNames(arrival.blocks, arrival.by_text)

    @property
    def on_engine(self) -> bool:
        """Sent to a replica and not ended."""
        return self.phase in (Phase.PREFILLING, Phase.DECODING, Phase.LOST)

    @property
    def may_refuse(self) -> bool:
        """Whether its length is known well enough to refuse it for that."""
        return self.counted and (self.arrival.exact or not self.arrival.by_text)

    def occupied_token_ns(self, now_ns: int) -> int:
        """KV token-nanoseconds it has used so far."""
        return self.used_token_ns + self.held_tokens * max(0, now_ns - self.held_since_ns)

    def hold(self, tokens: int, now_ns: int) -> None:
        """From now on it holds `tokens`; its tenant's account moves with it."""
        if now_ns > self.held_since_ns:
            self.used_token_ns += self.held_tokens * (now_ns - self.held_since_ns)
            self.held_since_ns = now_ns
        self.tenant.hold(tokens - self.held_tokens, now_ns)
        self.held_tokens = tokens
