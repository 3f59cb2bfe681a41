"""Everything that watches, hung onto desk and meter from the outside: the data path knows of none of it."""

from __future__ import annotations

from dataclasses import dataclass

from longproof.gateway.dashboard_view import IndexView, Sources
from longproof.gateway.deciding import Deciding
from longproof.gateway.desk import Desk
from longproof.gateway.index_health import IndexState
from longproof.gateway.lives import Lives, WatchedMeter
from longproof.gateway.meter import UsageMeter
from longproof.gateway.metrics import GatewayMetrics
from longproof.gateway.ports import Meter
from longproof.gateway.recent import RecentDecisions
from longproof.gateway.watch import Watch
from longproof.policy.routing import PrefixRouter


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """`sources`: what the dashboard reads. `meter`: the one that the data path is given."""

    sources: Sources
    metrics: GatewayMetrics
    meter: Meter
    lives: Lives


def sight_of(name: str, desk: Desk, meter: UsageMeter, deciding: Deciding, watch: Watch) -> Sight:
    """Watches `desk` and `meter` from now on."""
    recent, lives = RecentDecisions(), Lives()
    sources = Sources(
        fleet=deciding.snapshot,
        meter=meter.state,
        decisions=recent.newest_first,
        index=lambda: _index(watch, deciding.router),
        name=name,
    )
    metrics = GatewayMetrics(sources, deciding.records_dropped)
    desk.watchers += [recent.add, lives.decided]
    desk.departures.append(lives.departed)
    lives.listeners.append(metrics.add)
    return Sight(sources=sources, metrics=metrics, meter=WatchedMeter(meter, lives), lives=lives)


def _index(watch: Watch, router: PrefixRouter) -> list[IndexView]:
    """What is thought to be cached where, and how much that is worth."""
    return [
        IndexView(
            replica=health.replica,
            source="inferred" if health.state is IndexState.GUESSED else "events",
            blocks=router.cached_blocks(health.replica) or 0,
            degraded=health.reason or None,
        )
        for health in watch.index_health()
    ]
