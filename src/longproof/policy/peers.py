"""What the other gateways before the same engines have booked, as one value.

    own_use ──▶ each gateway says what it holds, in all ──▶ summed ──▶ on_peers: booked in every other one's ledger

Totals, never changes: one that is lost or told twice does no harm. What is on its way is bounded where it is booked
(`policy.ledger.Account.must_tell`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace


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
class TenantUse:
    """One tenant's KV budget, as a gateway has it. `spent_token_ms`: since that gateway began, so it only rises.
    `expected_token_ms`: what its requests there are still expected to use. `left_token_ms`: the balance."""

    spent_token_ms: int = 0
    expected_token_ms: int = 0
    left_token_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetUse:
    """What is booked in all. `short_age_ns`: how long ago a short request was sent; None = none was. `tenants`: those
    with a budget that had requests."""

    replicas: Mapping[str, ReplicaUse] = field(default_factory=dict[str, ReplicaUse])
    short_age_ns: int | None = None
    tenants: Mapping[str, TenantUse] = field(default_factory=dict[str, TenantUse])


def summed(uses: Iterable[FleetUse]) -> FleetUse:
    """Several gateways' together; of balances the least."""
    by_replica: dict[str, list[ReplicaUse]] = {}
    by_tenant: dict[str, list[TenantUse]] = {}
    ages: list[int] = []
    for use in uses:
        for name, tenant in use.tenants.items():
            by_tenant.setdefault(name, []).append(tenant)
        if use.short_age_ns is not None:
            ages.append(use.short_age_ns)
        for name, one in use.replicas.items():
            by_replica.setdefault(name, []).append(one)
    return FleetUse(
        replicas={name: _replica(ones) for name, ones in by_replica.items()},
        short_age_ns=min(ages, default=None),
        tenants={name: _tenant(ones) for name, ones in by_tenant.items()},
    )


class SpentElsewhere:
    """What other gateways have spent of each budget since this one began. It only rises: a gateway that leaves takes
    nothing back, and one that is met has spent nothing yet, as far as this one is concerned."""

    def __init__(self) -> None:
        self._heard: dict[str, Mapping[str, TenantUse]] = {}
        self._spent: dict[str, int] = {}

    def heard(self, gateway: str, use: FleetUse) -> None:
        """What a gateway says, the newest last. One that has long been silent is met anew."""
        before = self._heard.pop(gateway, use.tenants)
        self._heard[gateway] = use.tenants
        if len(self._heard) > _MOST_REMEMBERED:
            del self._heard[next(iter(self._heard))]
        for name, tenant in use.tenants.items():
            more = tenant.spent_token_ms - before.get(name, _UNSPENT).spent_token_ms
            self._spent[name] = self._spent.get(name, 0) + max(0, more)

    def put_into(self, use: FleetUse) -> FleetUse:
        """`use` of those who are there, with what all have spent."""
        tenants = {
            name: replace(use.tenants.get(name, _UNSPENT), spent_token_ms=spent) for name, spent in self._spent.items()
        }
        return replace(use, tenants=tenants)


_UNSPENT = TenantUse()
_MOST_REMEMBERED = 256


def _tenant(ones: list[TenantUse]) -> TenantUse:
    return TenantUse(
        spent_token_ms=sum(one.spent_token_ms for one in ones),
        expected_token_ms=sum(one.expected_token_ms for one in ones),
        left_token_ms=min((one.left_token_ms for one in ones if one.left_token_ms is not None), default=None),
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
