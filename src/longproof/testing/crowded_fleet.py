"""A fleet to look at on a bad day: twenty replicas, most of them with the same trouble, hundreds of requests that wait,
names and numbers as long and as small as they come."""

from __future__ import annotations

from longproof.domain.fleet import (
    Counters,
    FleetSnapshot,
    ReplicaSnapshot,
    ReplicaState,
    StageSnapshot,
    WaitingSnapshot,
)
from longproof.gateway.dashboard_view import IndexView, PinnedView, Sources, TroubleView
from longproof.gateway.meter import MeterState
from longproof.gateway.takings import Sum, TakingsView
from longproof.testing.fleets import Now

S = 1_000_000_000
NAMES = (
    *(f"chat-{number:02d}" for number in range(15)),
    "chat-15.eu-central-1.compute.internal:8000-behind-a-name-that-nobody-can-remember",
    *(f"long-{number}" for number in range(4)),
)
_DOWN, _BROKEN = "chat-04", "long-3"


def crowded_fleet(now_ns: Now) -> Sources:
    """See the module. 412 wait, one replica is down, one broken, twelve indexes are degraded for one reason."""

    def fleet() -> FleetSnapshot:
        at_ns = now_ns()
        tick = at_ns // S
        waiting = tuple(_waiting(number) for number in range(200))
        return FleetSnapshot(
            at_ns=at_ns,
            replicas=tuple(_replica(number, name, at_ns) for number, name in enumerate(NAMES)),
            waiting=waiting,
            waiting_count=412,
            counting_count=3,
            running_count=1_021,
            oldest_wait_ns=max(one.waited_ns for one in waiting),
            tenants=(),
            claims=(),
            counters=Counters(
                arrived=9_812_345_678 + 30 * tick,
                dispatched=9_712_345_678 + 20 * tick,
                completed=9_700_000_000 + 19 * tick,
                failed=12_345_678 + tick,
                refused=100_000_000 + 10 * tick,
                refused_by_code=(
                    ("queue_full", 99_000_000 + 8 * tick),
                    ("context_length_exceeded", 1_000_000 + 2 * tick),
                ),
                input_tokens=987_654_321_012_345,
                cached_tokens=123_456,
            ),
        )

    return Sources(
        fleet=fleet,
        meter=lambda: MeterState(
            ledger="postgresql://longproof:***@db.internal/usage",
            open_requests=1_021,
            unwritten=0,
            journal_bytes=1_234_567_890,
            recovered=0,
            problem=None,
            takings=TakingsView(
                by_sku={
                    "long context": Sum(
                        requests=9_000_000_000, input_cold_tokens=987_654_321_012_345, nano_usd=123_456_789_012_345_678
                    ),
                    "chat": Sum(requests=1, input_cold_tokens=3, output_tokens=1, nano_usd=7),
                },
                by_tenant={},
                by_ending={},
            ),
        ),
        index=lambda: tuple(_index(number, name) for number, name in enumerate(NAMES)),
        troubles=lambda: (
            TroubleView(replica=_DOWN, why="Connection refused"),
            TroubleView(
                replica=_BROKEN, why="it answered 500: CUDA error: an illegal memory access", at_ns=now_ns() - 3 * S
            ),
        ),
        pinned=lambda: (
            PinnedView(name="system", model="m" * 90, tokens=1_024, replicas=NAMES, requests=10**12, hits=1),
        ),
        name="eu-central-1",
    )


def _replica(number: int, name: str, at_ns: int) -> ReplicaSnapshot:
    state = {_DOWN: ReplicaState.DOWN, _BROKEN: ReplicaState.BROKEN}.get(name, ReplicaState.UP)
    full = state is ReplicaState.UP and number % 3 != 0
    held = 0 if state is not ReplicaState.UP else 62_000 if full else 58_000
    kv = StageSnapshot(
        stage="kv",
        block_tokens=16,
        capacity_blocks=62_500,
        held_blocks=held,
        private_blocks=held // 2,
        shared_blocks=held - held // 2,
        foreign_blocks=0,
        stop_blocks=59_375,
        resume_blocks=56_250,
        stopped=full,
        requests=held // 1_000,
        used_blocks=held * 3 // 4,
        drift_blocks=0,
    )
    slots = StageSnapshot(
        stage="slots",
        block_tokens=1,
        capacity_blocks=64,
        held_blocks=held // 1_000,
        private_blocks=held // 1_000,
        shared_blocks=0,
        foreign_blocks=0,
        stop_blocks=64,
        resume_blocks=64,
        stopped=False,
        requests=held // 1_000,
    )
    return ReplicaSnapshot(
        name=name,
        pool=name.partition("-")[0],
        models=("llama-3.3-70b",),
        state=state,
        stages=(kv, slots),
        prefilling=2 if held else 0,
        decoding=held // 1_000 - 2 if held else 0,
        pending_prefill_tokens=123_456_789 if held else 0,
        available_at_ns=at_ns + 40 * S if state is ReplicaState.BROKEN else None,
        drain_blocks_per_s=0.004,
        engine_running=held // 1_000,
        engine_waiting=number if full else 0,
        prefill_tokens_per_s=9_876.5,
    )


def _index(number: int, name: str) -> IndexView:
    if number % 5 in (1, 2, 3):
        why = "tokenizer.json is not the engine's tokenizer: we counted 38 tokens, the engine 50"
        return IndexView(replica=name, source="inferred", blocks=5, degraded=why)
    if name == "chat-00":
        return IndexView(
            replica=name, source="inferred", blocks=5, inferred="no tokenizer of the model is here (set tokenizer)"
        )
    return IndexView(replica=name, source="events", blocks=60_000)


def _waiting(number: int) -> WaitingSnapshot:
    if number % 4 == 0:
        reason = f"no replica has room for it; there is likely to be in {number / 10:.1f} s"
    elif number % 4 == 1:
        reason = f"it waits for room at chat-{number % 15:02d}: most of it is cached there"
    else:
        reason = "its tenant has had more than its share; 3 are served before it"
    return WaitingSnapshot(
        id=f"lp-18085e13-{number}",
        tenant="a-department-of-a-company-with-a-name-of-many-words" if number % 7 == 0 else "acme",
        model="llama-3.3-70b",
        input_tokens=1_000_000 if number == 3 else 900 + number,
        uncached_tokens=1 if number == 5 else 900,
        exact=number % 5 > 0,
        waited_ns=(7_300 - 30 * number) * S if number < 3 else max(1, 40 - number) * S,
        priority=0,
        overdue=number < 11,
        reason=reason,
    )
