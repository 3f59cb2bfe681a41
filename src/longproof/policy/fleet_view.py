"""The controller's state as a value for people and metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from longproof.domain.fleet import (
    ClaimSnapshot,
    Counters,
    FleetSnapshot,
    ReplicaSnapshot,
    ReplicaState,
    StageSnapshot,
    TenantSnapshot,
    WaitingSnapshot,
)
from longproof.domain.units import NS_PER_S
from longproof.policy.choice import Router
from longproof.policy.controller_config import ControllerConfig
from longproof.policy.placing import Group
from longproof.policy.replica import Replica
from longproof.policy.request_state import Phase, Request
from longproof.policy.tenants import Tenants

_MOST_WAITING_SHOWN = 200


@dataclass(frozen=True, slots=True)
class FleetView:
    """Reads everything, changes nothing."""

    config: ControllerConfig
    replicas: Mapping[str, Replica]
    groups: Sequence[Group]
    tenants: Tenants
    requests: Mapping[str, Request]
    router: Router

    def at(self, now_ns: int, counters: Counters, lengths: Mapping[str, int]) -> FleetSnapshot:
        """The snapshot. `lengths`: tokens by request that are in a cache by now."""
        waiting = [r for r in self.requests.values() if r.phase is Phase.WAITING]
        return FleetSnapshot(
            at_ns=now_ns,
            replicas=tuple(self._replica(r, lengths, now_ns) for r in self.replicas.values()),
            waiting=tuple(self._waiting(r, now_ns) for r in islice(waiting, _MOST_WAITING_SHOWN)),
            waiting_count=len(waiting),
            counting_count=sum(r.phase is Phase.COUNTING for r in self.requests.values()),
            running_count=sum(r.on_engine for r in self.requests.values()),
            oldest_wait_ns=max((now_ns - r.ticket.arrived_ns for r in waiting), default=0),
            tenants=self._tenants(now_ns),
            claims=tuple(
                ClaimSnapshot(
                    model=model,
                    claim=limits.claim,
                    admitted_tokens=limits.admitted_tokens,
                    effective_tokens=limits.effective_tokens,
                    on_excess=limits.on_excess.value,
                    problem=limits.problem,
                )
                for model, limits in self.config.proven.items()
            ),
            counters=counters,
        )

    def _replica(self, replica: Replica, lengths: Mapping[str, int], now_ns: int) -> ReplicaSnapshot:
        sample, state = replica.sample, replica.state
        paused = state is ReplicaState.UP and now_ns < replica.not_before_ns
        used = replica.ledger.used_blocks(lengths)
        stages: list[StageSnapshot] = []
        cached = self.router.cached_blocks(replica.name)
        for name, account in replica.ledger.accounts.items():
            pool = account.pool
            evictable = None
            if cached is not None:  # cached and not in use, but no more than is free: an index may believe too much
                evictable = max(0, min(account.free_blocks, account.span_blocks(0, cached) - account.shared_blocks))
            stages.append(
                StageSnapshot(
                    stage=pool.stage,
                    block_tokens=pool.need.block_tokens,
                    capacity_blocks=pool.capacity_blocks,
                    held_blocks=account.held_blocks,
                    used_blocks=used[name],
                    private_blocks=account.own_blocks,
                    shared_blocks=account.shared_blocks,
                    foreign_blocks=account.foreign_blocks,
                    peer_blocks=account.peer_blocks,
                    stop_blocks=max(0, pool.stop_blocks - account.caution_blocks),
                    resume_blocks=pool.stop_blocks if pool.resume_blocks is None else pool.resume_blocks,
                    stopped=account.stopped,
                    requests=account.requests,
                    evictable_blocks=evictable,
                    drift_blocks=replica.drift_blocks(name),
                )
            )
        return ReplicaSnapshot(
            name=replica.name,
            pool=replica.pool,
            models=replica.rule.models,
            state=ReplicaState.BROKEN if paused and not replica.refused_busy else state,
            stages=tuple(stages),
            prefilling=replica.prefilling,
            decoding=replica.decoding,
            pending_prefill_tokens=replica.pending_prefill_tokens,
            available_at_ns=replica.not_before_ns if paused else None,
            drain_blocks_per_s=replica.drain.blocks_per_s(replica.held_blocks, now_ns, 0)
            if replica.drain.known
            else None,
            engine_running=None if sample is None else sample.running,
            engine_waiting=None if sample is None else sample.waiting,
            preemptions=replica.preemptions,
            thrashing=replica.caution.alarmed(now_ns),
            prefill_tokens_per_s=NS_PER_S / replica.prefill.ns_per_token,
            prefill_source=replica.prefill_source,
            emptying_for=replica.emptying_for,
            most_streams=None if replica.streams is None else replica.streams.most,
        )

    def _waiting(self, request: Request, now_ns: int) -> WaitingSnapshot:
        return WaitingSnapshot(
            id=request.arrival.id,
            tenant=request.arrival.tenant,
            model=request.arrival.model,
            input_tokens=request.arrival.input_tokens,
            uncached_tokens=request.uncached_tokens,
            exact=request.arrival.exact,
            waited_ns=now_ns - request.ticket.arrived_ns,
            priority=request.arrival.priority,
            overdue=now_ns - request.ticket.arrived_ns >= self.config.queue.age_bound_ns,
            reason=request.reason,
        )

    def _tenants(self, now_ns: int) -> tuple[TenantSnapshot, ...]:
        known = self.tenants.all()
        least = min((t.virtual_ns for t in known.values() if t.here), default=0.0)
        found: list[TenantSnapshot] = []
        for name, tenant in known.items():
            left, budget = tenant.left_token_ns(now_ns), tenant.rule.budget
            found.append(
                TenantSnapshot(
                    name=name,
                    weight=tenant.rule.weight,
                    running=tenant.running,
                    waiting=tenant.waiting,
                    held_tokens=tenant.held_tokens,
                    served_ns=tenant.served_ns,
                    lead_ns=max(0, int(tenant.virtual_ns - least)),
                    balance_token_seconds=None if left is None else left / NS_PER_S,
                    budget_token_seconds=None if budget is None else budget.burst_token_seconds,
                )
            )
        return tuple(found)
