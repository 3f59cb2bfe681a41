"""The fleet at one moment: what the dashboard, the metrics and the simulator see of the controller."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

UNBOUNDED_BLOCKS = 1 << 40
"""A capacity beyond this stands for one that nobody knows: a share of it says nothing."""


class ReplicaState(StrEnum):
    """What may be sent to a replica."""

    UP = "up"
    DRAINING = "draining"
    """Finishes what it has, takes nothing new."""
    BROKEN = "broken"
    """Failed too often: not asked again before its time is up."""
    DOWN = "down"
    RESTARTED = "restarted"
    """News only: it is up again and has lost all it held. A snapshot shows it as up."""


class PrefillSource(StrEnum):
    """What a replica's prefill rate rests on."""

    GIVEN = "given"
    """The configuration, which took it from a plan or a probe."""
    ASSUMED = "assumed"
    """Nothing yet."""
    LEARNED = "learned"
    """The first tokens of our own traffic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSnapshot:
    """One pool of KV blocks: capacity = held + free. `held_blocks` = `private_blocks` + `shared_blocks` (prefixes in
    use, each counted once) + `foreign_blocks` (used by somebody else, as the engine's metrics show) + `peer_blocks`
    (booked by other gateways before the same engine). `used_blocks`: of what our requests hold, the part that is filled
    by now; the rest is reserved for what they will produce.

    `stop_blocks`: nothing new is let in above it; `resume_blocks`: once stopped, not before it is down to this.
    `evictable_blocks`: cached and not in use, part of the free ones; None = not known. `drift_blocks`: the engine's own
    figure less ours, None = no sample yet.
    """

    stage: str
    block_tokens: int
    capacity_blocks: int
    held_blocks: int
    private_blocks: int
    shared_blocks: int
    foreign_blocks: int
    stop_blocks: int
    resume_blocks: int
    stopped: bool
    requests: int
    evictable_blocks: int | None = None
    drift_blocks: int | None = None
    used_blocks: int | None = None
    peer_blocks: int = 0

    @property
    def held_share(self) -> float | None:
        """Of its KV, 0 to 1. None for a stage without a known capacity, and for one that counts sequences ("slots",
        "prefill slots"), which are no KV."""
        if self.stage.endswith("slots") or not 0 < self.capacity_blocks < UNBOUNDED_BLOCKS:
            return None
        return self.held_blocks / self.capacity_blocks

    @property
    def free_blocks(self) -> int:
        """Blocks that nobody holds, evictable ones and those above the watermark included."""
        return self.capacity_blocks - self.held_blocks


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSnapshot:
    """One replica. `available_at_ns`: nothing is sent before (circuit breaker, or its own Retry-After), None = now.
    `drain_blocks_per_s`: how fast its ledger empties, None = nothing was released yet. `thrashing`: the engine preempts
    although we hold back. `emptying_for`: the request that has waited so long that the replica is being emptied for
    it. `prefill_tokens_per_s`: what predictions go by, for a short prompt alone. `most_streams`: as many may run
    together by what was promised per token; None = nothing was."""

    name: str
    pool: str
    models: tuple[str, ...]
    state: ReplicaState
    stages: tuple[StageSnapshot, ...]
    prefilling: int
    decoding: int
    pending_prefill_tokens: int
    available_at_ns: int | None = None
    drain_blocks_per_s: float | None = None
    engine_running: int | None = None
    engine_waiting: int | None = None
    preemptions: int = 0
    thrashing: bool = False
    emptying_for: str | None = None
    prefill_tokens_per_s: float | None = None
    prefill_source: PrefillSource = PrefillSource.GIVEN
    most_streams: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingSnapshot:
    """One request that waits. `uncached_tokens`: the work it would be; `exact` False: an upper bound. `overdue`: it
    has waited longer than the age bound."""

    id: str
    tenant: str
    model: str
    input_tokens: int
    uncached_tokens: int
    exact: bool
    waited_ns: int
    priority: int
    overdue: bool
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantSnapshot:
    """One tenant. `balance_token_seconds`: what is left of its KV budget, None = it has none set. `lead_ns`: how much
    more service (per weight) it had than the tenant that had least."""

    name: str
    weight: float
    running: int
    waiting: int
    held_tokens: int
    served_ns: int
    lead_ns: int
    balance_token_seconds: float | None = None
    budget_token_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimSnapshot:
    """What is proven of one model, as the gate applies it. `problem`: why the claim does not hold as it stands
    (expired, another configuration), None = it does."""

    model: str
    claim: str
    admitted_tokens: int | None
    effective_tokens: int | None
    on_excess: str
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """Totals since the start. Every arrival ends in exactly one of completed, cancelled, failed, rejected (by the
    engine), refused (by us), or is still waiting or running.

    `refused_by_code` sums to `refused`.
    """

    arrived: int = 0
    dispatched: int = 0
    completed: int = 0
    cancelled: int = 0
    failed: int = 0
    rejected: int = 0
    refused: int = 0
    engine_refusals: int = 0
    refused_by_code: tuple[tuple[str, int], ...] = ()
    input_tokens: int = 0
    cached_tokens: int = 0
    growth_shortages: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSnapshot:
    """Everything, at `at_ns`. `waiting` has the first of the queue in the order of arrival (at most 200);
    `waiting_count` all of them."""

    at_ns: int
    replicas: tuple[ReplicaSnapshot, ...]
    waiting: tuple[WaitingSnapshot, ...]
    waiting_count: int
    counting_count: int
    running_count: int
    oldest_wait_ns: int
    tenants: tuple[TenantSnapshot, ...]
    claims: tuple[ClaimSnapshot, ...]
    counters: Counters
