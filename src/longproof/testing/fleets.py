"""Fleets to look at: what the dashboard and the metrics see of a busy gateway, an empty one and a broken one.

Made by hand, not by a controller: they show every state at once, which no real moment does. Each is a function of time,
so that a page that follows one has something to follow.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from longproof.domain.fleet import (
    ClaimSnapshot,
    Counters,
    FleetSnapshot,
    PrefillSource,
    ReplicaSnapshot,
    ReplicaState,
    StageSnapshot,
    TenantSnapshot,
    WaitingSnapshot,
)
from longproof.gateway.dashboard_view import IndexView, PinnedView, Sources
from longproof.gateway.meter import MeterState
from longproof.gateway.sharing import SharingState
from longproof.gateway.takings import Sum, TakingsView
from longproof.testing.fleet_traffic import TENANTS, busy_decisions, busy_meter

S = 1_000_000_000
Now = Callable[[], int]


def empty_fleet(now_ns: Now) -> Sources:
    """One idle replica; nobody has asked yet."""

    def fleet() -> FleetSnapshot:
        stage = _stage("kv", 4_096, 0, shared=0)
        return _snapshot(now_ns(), (_replica("embedded", "default", (stage,)),))

    return Sources(fleet=fleet, name="laptop")


def busy_fleet(now_ns: Now) -> Sources:
    """Two pools and a prefill/decode pair under load; a queue, refusals, budgets, prefixes and money."""
    decisions = busy_decisions(now_ns())

    def fleet() -> FleetSnapshot:
        at_ns = now_ns()
        wave = math.sin(at_ns / S / 40)
        replicas = (
            _replica(
                "chat-0", "short", (_stage("kv", 62_500, round(36_000 + 9_000 * wave)),), decoding=41, prefilling=2
            ),
            _replica(
                "chat-1", "short", (_stage("kv", 62_500, round(33_000 - 7_000 * wave)),), decoding=38, prefilling=1
            ),
            _replica(
                "long-0",
                "long",
                (_stage("kv", 250_000, 239_100, shared=88_000, stopped=True, evictable=4_200),),
                decoding=5,
                prefilling=1,
                pending=184_320,
                emptying_for="req-7c1f00aa",
            ),
            _replica(
                "pair-0",
                "long",
                (_stage("prefill", 125_000, 31_000, foreign=6_500), _stage("decode", 125_000, 88_000, drift=-3)),
                decoding=3,
                prefilling=1,
                pending=62_000,
            ),
        )
        tick = at_ns // S
        counters = Counters(
            arrived=18_400 + 9 * tick,
            dispatched=17_905 + 8 * tick,
            completed=17_700 + 8 * tick,
            cancelled=112,
            failed=3,
            rejected=1,
            refused=470 + tick,
            engine_refusals=6,
            refused_by_code=(("ttft_slo", 214), ("queue_full", 130 + tick), ("beyond_effective_context", 126)),
            input_tokens=148_000_000 + 90_000 * tick,
            cached_tokens=101_300_000 + 64_000 * tick,
        )
        waiting = tuple(_waiting(number) for number in range(9))
        claims = (
            ClaimSnapshot(
                model="llama-3.3-70b",
                claim="claims/llama-3.3-70b.json, 2026-11-20",
                admitted_tokens=131_072,
                effective_tokens=65_536,
                on_excess="route",
            ),
        )
        return _snapshot(at_ns, replicas, counters, waiting, TENANTS, claims)

    return Sources(
        fleet=fleet,
        meter=busy_meter,
        sharing=lambda: SharingState(
            problem=None, gateways=2, exchanges=40_512, stores_told=911, stores_heard=873, untold_prompts=0
        ),
        decisions=decisions.newest_first,
        index=lambda: tuple(
            IndexView(replica=name, source=source, blocks=blocks)
            for name, source, blocks in (
                ("chat-0", "events", 60_412),
                ("chat-1", "events", 58_973),
                ("long-0", "events", 243_300),
                ("pair-0", "own traffic", 97_000),
            )
        ),
        pinned=lambda: (
            PinnedView(
                name="contract-2026",
                model="llama-3.3-70b",
                tokens=84_213,
                replicas=("long-0", "pair-0"),
                requests=1_204,
                hits=1_177,
            ),
            PinnedView(
                name="system", model="llama-3.3-70b", tokens=1_024, replicas=("chat-0",), requests=9_300, hits=9_295
            ),
        ),
        name="eu-1",
    )


def broken_fleet(now_ns: Now) -> Sources:
    """Everything that can be wrong at once, with names as long and as hostile as they come."""
    hostile = "<img src=x onerror=alert(1)>" + "x" * 120

    def fleet() -> FleetSnapshot:
        at_ns = now_ns()
        stage = _stage("kv", 1_000, 0, shared=0)
        full = _stage("kv", 1_000, 1_040, shared=400, stopped=True, drift=38)
        replicas = (
            _replica("a", "default", (stage,), state=ReplicaState.DOWN),
            _replica("b", "default", (stage,), state=ReplicaState.BROKEN, available_at_ns=at_ns + 12 * S),
            _replica("c", "default", (full,), preemptions=37, thrashing=True, decoding=9),
            _replica(hostile, "default", (stage,), state=ReplicaState.DRAINING),
        )
        claims = (
            ClaimSnapshot(
                model=hostile,
                claim="claim.json",
                admitted_tokens=None,
                effective_tokens=8_192,
                on_excess="warn",
                problem="made of vLLM 0.31, this is vLLM 0.32",
            ),
        )
        waiting = (
            WaitingSnapshot(
                id=hostile,
                tenant=hostile,
                model=hostile,
                input_tokens=1_000_000,
                uncached_tokens=1_000_000,
                exact=False,
                waited_ns=599 * S,
                priority=0,
                overdue=True,
                reason="1,000,000 tokens do not fit stage c/kv now: 62,500 blocks needed, 0 free above the watermark",
            ),
        )
        counters = Counters(arrived=50, dispatched=20, failed=20, refused=29, refused_by_code=((hostile, 29),))
        return _snapshot(at_ns, replicas, counters, waiting, (), claims)

    return Sources(
        fleet=fleet,
        meter=lambda: MeterState(
            ledger="postgresql://ledger:5432/usage",
            open_requests=0,
            unwritten=3,
            journal_bytes=1_200,
            recovered=4,
            problem="/var/lib/longproof: No space left on device",
            takings=TakingsView(
                by_sku={None: Sum(requests=9, unpriced=9, output_tokens=12)}, by_tenant={}, by_ending={}
            ),
        ),
        index=lambda: (
            IndexView(
                replica="c",
                source="events",
                blocks=0,
                degraded="no event came for a prompt that was just prefilled: topic 'kv-events' is expected, nothing"
                " was ever received",
            ),
        ),
        pinned=lambda: (
            PinnedView(
                name="system",
                model="m",
                tokens=4_000,
                replicas=(),
                requests=0,
                hits=0,
                problem="no replica holds it: a is down",
            ),
        ),
        problems=lambda: (hostile,),
        name=hostile,
    )


def _stage(
    name: str,
    capacity: int,
    held: int,
    *,
    shared: int | None = None,
    foreign: int = 0,
    stopped: bool = False,
    evictable: int | None = None,
    drift: int | None = None,
) -> StageSnapshot:
    shared = held // 3 if shared is None else shared
    return StageSnapshot(
        stage=name,
        block_tokens=16,
        capacity_blocks=capacity,
        held_blocks=held,
        used_blocks=shared + (held - shared - foreign) * 4 // 5,
        private_blocks=held - shared - foreign,
        shared_blocks=shared,
        foreign_blocks=foreign,
        stop_blocks=capacity * 95 // 100,
        resume_blocks=capacity * 90 // 100,
        stopped=stopped,
        requests=0 if not held else 1 + held // 1_500,
        evictable_blocks=(capacity - held) * 2 // 3 if evictable is None and held else evictable,
        drift_blocks=drift,
    )


def _replica(
    name: str,
    pool: str,
    stages: tuple[StageSnapshot, ...],
    *,
    state: ReplicaState = ReplicaState.UP,
    decoding: int = 0,
    prefilling: int = 0,
    pending: int = 0,
    available_at_ns: int | None = None,
    preemptions: int = 0,
    thrashing: bool = False,
    emptying_for: str | None = None,
) -> ReplicaSnapshot:
    return ReplicaSnapshot(
        name=name,
        pool=pool,
        models=("llama-3.3-70b",),
        state=state,
        stages=stages,
        prefilling=prefilling,
        decoding=decoding,
        pending_prefill_tokens=pending,
        available_at_ns=available_at_ns,
        drain_blocks_per_s=412.5 if decoding else None,
        prefill_tokens_per_s=11_840.0 if decoding else 10_000.0,
        prefill_source=PrefillSource.LEARNED if decoding else PrefillSource.ASSUMED,
        engine_running=decoding + prefilling,
        engine_waiting=0,
        preemptions=preemptions,
        thrashing=thrashing,
        emptying_for=emptying_for,
        most_streams=24 if decoding else None,
    )


def _snapshot(
    at_ns: int,
    replicas: tuple[ReplicaSnapshot, ...],
    counters: Counters | None = None,
    waiting: tuple[WaitingSnapshot, ...] = (),
    tenants: tuple[TenantSnapshot, ...] = (),
    claims: tuple[ClaimSnapshot, ...] = (),
) -> FleetSnapshot:
    return FleetSnapshot(
        at_ns=at_ns,
        replicas=replicas,
        waiting=waiting,
        waiting_count=len(waiting),
        counting_count=min(2, len(waiting)),
        running_count=sum(replica.decoding + replica.prefilling for replica in replicas),
        oldest_wait_ns=max((one.waited_ns for one in waiting), default=0),
        tenants=tenants,
        claims=claims,
        counters=counters or Counters(),
    )


def _waiting(number: int) -> WaitingSnapshot:
    giant = number % 3 == 0
    tokens = 118_000 - 1_000 * number if giant else 900 + 40 * number
    return WaitingSnapshot(
        id=f"req-7c1f00a{number:x}" if number else "req-7c1f00aa",
        tenant=("acme", "globex", "initech")[number % 3],
        model="llama-3.3-70b",
        input_tokens=tokens,
        uncached_tokens=tokens if giant else tokens // 4,
        exact=number != 4,
        waited_ns=(44 - 5 * number) * S,
        priority=0,
        overdue=number == 0,
        reason="long-0/kv is above its watermark: nothing new until it is down to 225,000 blocks"
        if giant
        else "its tenant has had more than its share; 3 are served before it",
    )
