"""Rules that other routers use, before the same modelled replicas: each sends a request on at once.

round-robin     in turn
longest match   where most of it is cached, whatever the load
sticky          a session goes where it went before, a new one where the fewest sessions are (it needs session ids,
                which our router does not look at here)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from longproof.domain.kv_event import KvEvent
from longproof.policy.arrivals import Arrival
from longproof.policy.choice import Choice, ReplicaView, Score
from longproof.policy.peers import FleetUse
from longproof.policy.prefix import PrefixIndex


class Baseline:
    """Keeps an index of what replicas hold, as ours does, and places by `rule`: (arrival, view) → smaller is better."""

    def __init__(self, name: str) -> None:
        self._rule: Callable[[Arrival, ReplicaView], tuple[float, ...]] = getattr(self, f"_{name.replace(' ', '_')}")
        self._index = PrefixIndex()
        self._homes: dict[str, str] = {}
        self._sent: Counter[str] = Counter()

    def follow(self, replica: str, *, block_tokens: int, cache_blocks: int | None, events: bool) -> None:  # noqa: ARG002  as ours
        self._index.add(replica, capacity_blocks=None if events else cache_blocks)

    def choose(self, arrival: Arrival, views: Sequence[ReplicaView], now_ns: int) -> Choice:  # noqa: ARG002  as ours
        scores = tuple(self._score(arrival, view) for view in views)
        best = min(zip(views, scores, strict=True), key=lambda pair: self._rule(arrival, pair[0]))[1]
        return Choice(best.replica, best, scores, "")

    def on_dispatch(self, arrival: Arrival, replica: str, now_ns: int) -> None:  # noqa: ARG002  as ours
        self._index.use(arrival.id, replica, arrival.blocks)
        self._sent[replica] += 1
        if arrival.session is not None:
            self._homes.setdefault(arrival.session, replica)

    def on_end(
        self,
        arrival: Arrival,
        replica: str,  # noqa: ARG002  as ours
        cached_tokens: int | None,  # noqa: ARG002  as ours
        now_ns: int,  # noqa: ARG002  as ours
        *,
        kept: bool = True,
    ) -> None:
        self._index.unuse(arrival.id, kept=kept)

    def on_kv_event(self, replica: str, event: KvEvent, now_ns: int) -> None:  # noqa: ARG002  as ours
        self._index.apply(replica, event)

    def on_peers(self, use: FleetUse, now_ns: int) -> None:
        """There are none."""

    def forget(self, replica: str) -> None:
        self._index.add(replica)

    def _score(self, arrival: Arrival, view: ReplicaView) -> Score:
        cached = min(self._index.match(view.name, arrival.blocks).blocks * view.block_tokens, arrival.input_tokens - 1)
        return Score(view.name, 0, cached, arrival.input_tokens - cached, 0)

    def _round_robin(self, arrival: Arrival, view: ReplicaView) -> tuple[float, ...]:  # noqa: ARG002  one signature
        return (self._sent[view.name],)

    def _longest_match(self, arrival: Arrival, view: ReplicaView) -> tuple[float, ...]:
        return (
            -self._index.match(view.name, arrival.blocks).blocks,
            view.pending_prefill_tokens,
            self._sent[view.name],
        )

    def _sticky(self, arrival: Arrival, view: ReplicaView) -> tuple[float, ...]:
        home = self._homes.get(arrival.session or "")
        sessions = sum(1 for name in self._homes.values() if name == view.name)
        return (home is not None and home != view.name, sessions)
