"""What the other gateways before the same engines have booked, as one value.

    own_use ──▶ each gateway says what it holds, in all ──▶ summed ──▶ on_peers: booked in every other one's ledger

Totals, never changes: one that is lost or told twice does no harm. What is on its way is bounded where it is booked
(`policy.ledger.Account.must_tell`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class StageUse:
    """What is booked of one stage: blocks, a shared prefix once per gateway, and the requests that hold them."""

    blocks: int = 0
    requests: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaUse:
    """What is booked at one replica. `recent_tokens`: uncached tokens sent there lately, as the router fades them."""

    stages: Mapping[str, StageUse] = field(default_factory=dict[str, StageUse])
    pending_prefill_tokens: int = 0
    pending_prefill_ns: int = 0
    prefilling: int = 0
    decoding: int = 0
    recent_tokens: float = 0.0


NOTHING = ReplicaUse()


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetUse:
    """What is booked in all. `short_age_ns`: how long ago a short request was sent; None = none was."""

    replicas: Mapping[str, ReplicaUse] = field(default_factory=dict[str, ReplicaUse])
    short_age_ns: int | None = None


def summed(uses: Iterable[FleetUse]) -> FleetUse:
    """Several gateways' together."""
    by_replica: dict[str, list[ReplicaUse]] = {}
    ages: list[int] = []
    for use in uses:
        if use.short_age_ns is not None:
            ages.append(use.short_age_ns)
        for name, one in use.replicas.items():
            by_replica.setdefault(name, []).append(one)
    return FleetUse(
        replicas={name: _replica(ones) for name, ones in by_replica.items()}, short_age_ns=min(ages, default=None)
    )


def _replica(ones: list[ReplicaUse]) -> ReplicaUse:
    stages: dict[str, StageUse] = {}
    for one in ones:
        for name, stage in one.stages.items():
            known = stages.get(name, StageUse())
            stages[name] = StageUse(blocks=known.blocks + stage.blocks, requests=known.requests + stage.requests)
    return ReplicaUse(
        stages=stages,
        pending_prefill_tokens=sum(one.pending_prefill_tokens for one in ones),
        pending_prefill_ns=sum(one.pending_prefill_ns for one in ones),
        prefilling=sum(one.prefilling for one in ones),
        decoding=sum(one.decoding for one in ones),
        recent_tokens=sum(one.recent_tokens for one in ones),
    )
