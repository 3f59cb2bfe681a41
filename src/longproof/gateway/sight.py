"""Everything that watches, hung onto desk and meter from the outside: the data path knows of none of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from longproof.gateway.config import GatewaySection
from longproof.gateway.dashboard_view import IndexView, Sources, TroubleView
from longproof.gateway.deciding import Deciding
from longproof.gateway.desk import Desk
from longproof.gateway.fleet import Fleet
from longproof.gateway.index_health import IndexState
from longproof.gateway.kept_prefixes import KeptPrefixes
from longproof.gateway.lives import Lives, WatchedMeter
from longproof.gateway.meter import UsageMeter
from longproof.gateway.metrics import GatewayMetrics
from longproof.gateway.ports import Meter
from longproof.gateway.recent import RecentDecisions
from longproof.gateway.sharing import Sharing
from longproof.gateway.tracing import TraceRule, Tracing
from longproof.gateway.watch import Watch
from longproof.policy.routing import PrefixRouter


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """`sources`: what the dashboard reads. `meter`: the one the data path is given. `tracing` None = not wanted."""

    sources: Sources
    metrics: GatewayMetrics
    meter: Meter
    lives: Lives
    tracing: Tracing | None = None

    def trace_headers(self, request_id: str, given: Mapping[str, str]) -> Mapping[str, str]:
        """What goes upstream of a request's trace: the client's own headers where nothing is traced here."""
        return given if self.tracing is None else self.tracing.begin(request_id, given)

    def close(self) -> None:
        """Sends the traces that are left; blocks meanwhile."""
        if self.tracing is not None:
            self.tracing.close()


def sight_of(
    section: GatewaySection,
    desk: Desk,
    meter: UsageMeter,
    deciding: Deciding,
    watch: Watch,
    prefixes: KeptPrefixes,
    fleet: Fleet,
    sharing: Sharing | None = None,
    problems: Callable[[], Sequence[str]] = tuple,
) -> Sight:
    """Watches `desk` and `meter` from now on. UserError where traces are wanted and their packages are missing.
    `problems`: what else the operator should read."""
    recent, lives = RecentDecisions(), Lives()
    sources = Sources(
        fleet=deciding.snapshot,
        meter=meter.state,
        decisions=recent.newest_first,
        index=lambda: _index(watch, deciding.router),
        pinned=prefixes.views,
        problems=problems if sharing is None else lambda: [*problems(), *sharing.problems()],
        troubles=lambda: _troubles(watch, fleet),
        sharing=None if sharing is None else lambda: sharing.state,
        name=section.name,
    )
    metrics = GatewayMetrics(sources, deciding.records_dropped)
    desk.watchers += [recent.add, lives.decided]
    desk.departures.append(lives.departed)
    lives.listeners.append(metrics.add)
    tracing = None
    if section.traces is not None:
        rule = TraceRule(endpoint=section.traces, share=section.trace_share, service=section.name)
        tracing = Tracing(rule, deciding.clock)
        lives.listeners.append(tracing.end)
    watched = WatchedMeter(meter, lives)
    return Sight(sources=sources, metrics=metrics, meter=watched, lives=lives, tracing=tracing)


def _index(watch: Watch, router: PrefixRouter) -> list[IndexView]:
    """What is thought to be cached where, and how much that is worth."""
    return [
        IndexView(
            replica=health.replica,
            source="events" if health.state is IndexState.OK else "inferred",
            blocks=router.cached_blocks(health.replica) or 0,
            degraded=health.reason if health.state is IndexState.DEGRADED else None,
            inferred=health.reason or None if health.state is IndexState.INFERRED else None,
        )
        for health in watch.index_health()
    ]


def _troubles(watch: Watch, fleet: Fleet) -> list[TroubleView]:
    """Why a replica is down, else what the last request that failed of it met there."""
    found: list[TroubleView] = []
    for replica in fleet.replicas:
        why, failure = watch.why_down(replica.name), fleet.failures.get(replica.name)
        if why:
            found.append(TroubleView(replica=replica.name, why=why))
        elif failure is not None:
            found.append(TroubleView(replica=replica.name, why=failure.why, at_ns=failure.at_ns))
    return found
