"""Controllers to try: a router that knows no prefixes, and short ways to say what matters in a test."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from longproof.domain.kv_event import KvEvent
from longproof.policy.admission import UPFRONT, AdmissionRule, Reservation
from longproof.policy.arrivals import Arrival
from longproof.policy.choice import Choice, ReplicaView, Router, Score
from longproof.policy.controller import Controller
from longproof.policy.controller_config import ControllerConfig, ReplicaRule, WatermarkRule
from longproof.policy.ledger import Pool
from longproof.policy.need import BlockNeed
from longproof.policy.peers import FleetUse
from longproof.policy.prefill_cost import PrefillCost

MS = 1_000_000
S = 1_000_000_000


class LeastBacklog:
    """Least (room + backlog + own prefill); everything is uncached. `told` keeps what it was told, in order."""

    def __init__(self) -> None:
        self.told: list[tuple[object, ...]] = []

    def choose(self, arrival: Arrival, views: Sequence[ReplicaView], now_ns: int) -> Choice:
        """By load alone."""
        scores: list[Score] = []
        for view in views:
            room_ns, prefill_ns = view.room_in_ns or 0, view.prefill.ns(arrival.input_tokens)
            ttft_ns = max(room_ns, view.busy_until_ns - now_ns, 0) + prefill_ns
            cost_ns = ttft_ns if view.room_in_ns is not None else ttft_ns + 10**15
            scores.append(
                Score(view.name, cost_ns, 0, arrival.input_tokens, ttft_ns, ttft_ns - prefill_ns, room_ns=room_ns)
            )
        best = min(scores, key=lambda score: score.cost_ns)
        return Choice(best.replica, best, tuple(scores), "least backlog")

    def on_dispatch(self, arrival: Arrival, replica: str, now_ns: int) -> None:
        """Noted."""
        self.told.append(("dispatch", arrival.id, replica, now_ns))

    def on_end(
        self, arrival: Arrival, replica: str, cached_tokens: int | None, now_ns: int, *, kept: bool = True
    ) -> None:
        """Noted."""
        self.told.append(("end", arrival.id, replica, cached_tokens, kept, now_ns))

    def on_kv_event(self, replica: str, event: KvEvent, now_ns: int) -> None:
        """Noted."""
        self.told.append(("event", replica, event, now_ns))

    def on_peers(self, use: FleetUse, now_ns: int) -> None:
        """Noted."""
        self.told.append(("peers", use, now_ns))

    def cached_blocks(self, replica: str) -> int | None:  # noqa: ARG002  nothing is known of any
        """Nothing is known."""
        return None

    def forget(self, replica: str) -> None:
        """Noted."""
        self.told.append(("forget", replica))


def replica_rule(
    name: str = "r0",
    *,
    capacity_blocks: int = 100,
    block_tokens: int = 1,
    limit_tokens: int | None = None,
    reservation: Reservation = UPFRONT,
    tokens_per_s: float = 1_000,
    pool: str = "default",
    models: tuple[str, ...] = ("m",),
    prefill_window_tokens: int | None = None,
    slots: int | None = None,
    learn_prefill: bool = False,
) -> ReplicaRule:
    """One replica with one pool of KV blocks and, with `slots`, a second one of places."""
    pools = [Pool(stage="kv", capacity_blocks=capacity_blocks, need=BlockNeed(block_tokens=block_tokens))]
    if slots is not None:
        pools.append(Pool(stage="slots", capacity_blocks=slots, need=BlockNeed(full_groups=0, fixed_blocks=1)))
    return ReplicaRule(
        name=name,
        models=models,
        pools=tuple(pools),
        admission=AdmissionRule(limit_tokens=limit_tokens, reservation=reservation),
        prefill=PrefillCost.at_rate(tokens_per_s),
        decode_ns_per_token=10 * MS,
        block_tokens=block_tokens,
        pool=pool,
        prefill_window_tokens=prefill_window_tokens,
        learn_prefill=learn_prefill,
    )


def arrival(
    id: str,  # noqa: A002  the field's own name
    input_tokens: int = 10,
    output_tokens: int = 0,
    *,
    tenant: str = "t",
    model: str = "m",
    exact: bool = True,
    blocks: tuple[int, ...] = (),
    priority: int = 0,
    deadline_ns: int | None = None,
    streamed: bool = True,
) -> Arrival:
    """A request of tenant t to model m."""
    return Arrival(
        id=id,
        tenant=tenant,
        model=model,
        input_tokens=input_tokens,
        exact=exact,
        output_tokens=output_tokens,
        blocks=blocks,
        priority=priority,
        deadline_ns=deadline_ns,
        streamed=streamed,
    )


def controller_of(*replicas: ReplicaRule, router: Router | None = None, **rules: Any) -> Controller:
    """A controller of these replicas (one of 100 blocks when none is given) without watermarks, unless `rules` (fields
    of ControllerConfig) say otherwise."""
    given: dict[str, Any] = {"watermark": WatermarkRule(stop=1.0, resume=1.0), **rules}
    return Controller(ControllerConfig(replicas=replicas or (replica_rule(),), **given), router or LeastBacklog())


def held_blocks(controller: Controller) -> int:
    """What the first stage of its first replica holds."""
    return controller.snapshot(0).replicas[0].stages[0].held_blocks
