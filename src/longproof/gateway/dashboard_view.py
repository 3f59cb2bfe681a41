"""What the dashboard shows, as one value per second: the controller's snapshot and what stands around it.

Times in a view are nanoseconds of the gateway's monotonic clock; the page turns them into ages with `fleet.at_ns`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import orjson

from longproof.domain.fleet import FleetSnapshot, ReplicaSnapshot
from longproof.gateway.meter import MeterState
from longproof.gateway.recent import RecentDecision
from longproof.gateway.sharing import SharingState

HISTORY_SAMPLES = 600
"""At one a second: ten minutes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexView:
    """The block index of one replica. `source`: events, or inferred from our own traffic. `degraded`: why its contents
    cannot be relied on, None = they can. `inferred`: why events that it publishes are not used, None = they are, or it
    publishes none. `blocks`: what it is thought to hold."""

    replica: str
    source: str
    blocks: int
    degraded: str | None = None
    inferred: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TroubleView:
    """What was last wrong with a replica, in words. `at_ns`: when a request failed of it; None = it is so now."""

    replica: str
    why: str
    at_ns: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PinnedView:
    """A pinned prefix: its length, where it is held, and how many of the requests since it was pinned had it cached."""

    name: str
    model: str
    tokens: int
    replicas: tuple[str, ...]
    requests: int
    hits: int
    problem: str | None = None


def _none() -> tuple[()]:
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Where a view is read from. Every call is cheap and made on the event loop. `problems`: sentences about the
    gateway itself that its operator should read."""

    fleet: Callable[[], FleetSnapshot]
    meter: Callable[[], MeterState] | None = None
    decisions: Callable[[], Sequence[RecentDecision]] = _none
    index: Callable[[], Sequence[IndexView]] = _none
    pinned: Callable[[], Sequence[PinnedView]] = _none
    problems: Callable[[], Sequence[str]] = _none
    troubles: Callable[[], Sequence[TroubleView]] = _none
    sharing: Callable[[], SharingState] | None = None
    name: str = "gateway"


@dataclass(slots=True)
class History:
    """The last ten minutes of the figures that are drawn over time; totals, from which the page takes rates."""

    _rows: deque[dict[str, object]] = field(default_factory=lambda: deque(maxlen=HISTORY_SAMPLES))

    def add(self, fleet: FleetSnapshot) -> dict[str, object]:
        """One more sample, which is returned."""
        counters = fleet.counters
        row: dict[str, object] = {
            "at_ns": fleet.at_ns,
            "running": fleet.running_count,
            "waiting": fleet.waiting_count,
            "oldest_ns": fleet.oldest_wait_ns,
            "dispatched": counters.dispatched,
            "refused": counters.refused,
            "refused_by": dict(counters.refused_by_code),
            "failed": counters.failed,
            "input": counters.input_tokens,
            "cached": counters.cached_tokens,
            "kv": {replica.name: _fullest(replica) for replica in fleet.replicas},
        }
        self._rows.append(row)
        return row

    def encoded(self) -> bytes:
        """All samples, oldest first, as JSON."""
        return orjson.dumps(list(self._rows))


def view(sources: Sources, sample: dict[str, object] | None, fleet: FleetSnapshot) -> bytes:
    """Everything, as JSON. `sample`: what goes on the page's history, None = nothing new."""
    body = {
        "name": sources.name,
        "fleet": fleet,
        "sample": sample,
        "meter": None if sources.meter is None else _meter(sources.meter()),
        "decisions": sources.decisions(),
        "index": sources.index(),
        "pinned": sources.pinned(),
        "problems": sources.problems(),
        "troubles": sources.troubles(),
        "sharing": None if sources.sharing is None else sources.sharing(),
    }
    return orjson.dumps(body, default=list)


def _fullest(replica: ReplicaSnapshot) -> float | None:
    """The share of the fullest stage that is held; None where none of them has a share."""
    return max((share for stage in replica.stages if (share := stage.held_share) is not None), default=None)


def _meter(state: MeterState) -> dict[str, object]:
    """The meter with its sums as rows: JSON has no key for "no SKU"."""
    takings = state.takings
    return {
        "ledger": state.ledger,
        "open": state.open_requests,
        "unwritten": state.unwritten,
        "journal_bytes": state.journal_bytes,
        "recovered": state.recovered,
        "problem": state.problem,
        "by_sku": [{"name": name, "sum": total} for name, total in takings.by_sku.items()],
        "by_tenant": [{"name": name, "sum": total} for name, total in takings.by_tenant.items()],
        "by_ending": takings.by_ending,
    }
