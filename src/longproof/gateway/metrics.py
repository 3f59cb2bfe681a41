"""`GET /metrics`: the fleet as its snapshot shows it, ended requests as they were counted, in Prometheus' text form."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from aiohttp.web import BaseRequest, Response, StreamResponse
from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from longproof.clock import NS_PER_S, SystemClock
from longproof.domain.fleet import FleetSnapshot, ReplicaSnapshot, ReplicaState, StageSnapshot
from longproof.gateway.dashboard_view import Sources
from longproof.gateway.histogram import Histogram
from longproof.gateway.lives import Life
from longproof.gateway.meter import MeterState
from longproof.gateway.metric_names import METRICS, MetricKind
from longproof.gateway.sharing import SharingState

_LAG_EVERY_S = 0.02
_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Sample = tuple[str, tuple[str, ...], float]
"""A metric's name without its prefix, the values of its labels, and its value."""


@dataclass(slots=True)
class Tallies:
    """What is counted of ended requests."""

    ended: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])
    tokens: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])
    output: dict[str, int] = field(default_factory=dict[str, int])
    waits: dict[tuple[str, ...], Histogram] = field(default_factory=dict[tuple[str, ...], Histogram])
    ttft: dict[tuple[str, ...], Histogram] = field(default_factory=dict[tuple[str, ...], Histogram])
    whole: dict[tuple[str, ...], Histogram] = field(default_factory=dict[tuple[str, ...], Histogram])

    def add(self, life: Life) -> None:
        """One more ended request."""
        model, ending = life.arrival.model, life.ending
        self.ended[model, ending] = self.ended.get((model, ending), 0) + 1
        if life.dispatch is not None:
            pool = life.dispatch.pool
            _of(self.waits, (pool,)).add(life.waited_ns)
            if life.ttft_ns is not None:
                _of(self.ttft, (model, pool)).add(life.ttft_ns)
            if ending == "completed":
                _of(self.whole, (model, pool)).add(life.ended_ns - life.arrived_ns)
        spent = life.spent
        if spent is not None and ending in ("completed", "cancelled", "failed"):
            cached = min(spent.cached_tokens or 0, spent.input_tokens)
            self.tokens[model, "hit"] = self.tokens.get((model, "hit"), 0) + cached
            self.tokens[model, "miss"] = self.tokens.get((model, "miss"), 0) + spent.input_tokens - cached
            self.output[model] = self.output.get(model, 0) + spent.output_tokens


class GatewayMetrics(Collector):
    """All of them. `start` measures how late the event loop is; `add` is told of every ended request."""

    def __init__(self, sources: Sources, dropped: Callable[[], int] = lambda: 0) -> None:
        self._sources, self._dropped = sources, dropped
        self._tallies, self._lag = Tallies(), Histogram()
        self._task: asyncio.Task[None] | None = None
        self._registry = CollectorRegistry()
        self._registry.register(self)
        for standard in (ProcessCollector, PlatformCollector, GCCollector):
            standard(registry=self._registry)

    def add(self, life: Life) -> None:
        """One more ended request."""
        self._tallies.add(life)

    def start(self) -> None:
        """Begins to measure the loop."""
        self._task = asyncio.create_task(self._watch_loop(), name="event-loop-lag")

    def close(self) -> None:
        """Ends it."""
        if self._task is not None:
            self._task.cancel()

    async def answer(self, _: BaseRequest) -> StreamResponse:
        """GET /metrics."""
        return Response(body=self.text(), headers={"Content-Type": _CONTENT_TYPE})

    def text(self) -> bytes:
        """The scrape."""
        return generate_latest(self._registry)

    def describe(self) -> Iterable[Metric]:
        """Nothing at registration: a snapshot is not to be taken for that."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Every metric that has a sample now."""
        fleet = self._sources.fleet()
        found: dict[str, list[Sample]] = {}
        for sample in self._samples(fleet):
            found.setdefault(sample[0], []).append(sample)
        histograms = {
            "queue_wait_seconds": self._tallies.waits,
            "ttft_seconds": self._tallies.ttft,
            "request_seconds": self._tallies.whole,
            "event_loop_lag_seconds": {(): self._lag},
        }
        for name, metric in METRICS.items():
            if metric.kind is MetricKind.HISTOGRAM:
                yield _histogram(name, histograms[name])
            elif name in found:
                yield _family(name, found[name])

    def _samples(self, fleet: FleetSnapshot) -> Iterator[Sample]:
        yield from _requests(fleet, self._tallies)
        for replica in fleet.replicas:
            yield from _replica(replica)
        for index in self._sources.index():
            yield "index_degraded", (index.replica,), float(index.degraded is not None)
            yield "index_blocks", (index.replica, index.source), float(index.blocks)
        for pinned in self._sources.pinned():
            yield "prefix_requests_total", (pinned.name, "yes"), float(pinned.hits)
            yield "prefix_requests_total", (pinned.name, "no"), float(pinned.requests - pinned.hits)
            yield "prefix_replicas", (pinned.name,), float(len(pinned.replicas))
        for claim in fleet.claims:
            yield "claim_holds", (claim.model,), float(claim.problem is None)
        for tenant in fleet.tenants:
            yield "tenant_running", (tenant.name,), float(tenant.running)
            yield "tenant_waiting", (tenant.name,), float(tenant.waiting)
            yield "tenant_held_tokens", (tenant.name,), float(tenant.held_tokens)
            if tenant.balance_token_seconds is not None:
                yield "tenant_budget_token_seconds", (tenant.name,), tenant.balance_token_seconds
        if self._sources.meter is not None:
            yield from _usage(self._sources.meter())
        if self._sources.sharing is not None:
            yield from _sharing(self._sources.sharing())
        yield "decisions_dropped_total", (), float(self._dropped())

    async def _watch_loop(self) -> None:
        clock = SystemClock()
        while True:
            due_ns = clock.now_ns() + int(_LAG_EVERY_S * NS_PER_S)
            await asyncio.sleep(_LAG_EVERY_S)
            self._lag.add(clock.now_ns() - due_ns)


def _requests(fleet: FleetSnapshot, tallies: Tallies) -> Iterator[Sample]:
    counters = fleet.counters
    yield "arrivals_total", (), float(counters.arrived)
    yield "dispatches_total", (), float(counters.dispatched)
    yield "engine_refusals_total", (), float(counters.engine_refusals)
    yield "growth_shortages_total", (), float(counters.growth_shortages)
    for code, count in counters.refused_by_code:
        yield "refusals_total", (code,), float(count)
    yield "running_requests", (), float(fleet.running_count)
    yield "waiting_requests", (), float(fleet.waiting_count)
    yield "counting_requests", (), float(fleet.counting_count)
    yield "oldest_wait_seconds", (), fleet.oldest_wait_ns / NS_PER_S
    for labels, count in tallies.ended.items():
        yield "requests_total", labels, float(count)
    for labels, count in tallies.tokens.items():
        yield "input_tokens_total", labels, float(count)
    for model, count in tallies.output.items():
        yield "output_tokens_total", (model,), float(count)


def _replica(replica: ReplicaSnapshot) -> Iterator[Sample]:
    name = (replica.name,)
    for state in ReplicaState:
        if state is not ReplicaState.RESTARTED:  # news, not a state
            yield "replica_state", (replica.name, replica.pool, state.value), float(replica.state is state)
    yield "replica_prefilling", name, float(replica.prefilling)
    yield "replica_decoding", name, float(replica.decoding)
    yield "replica_pending_prefill_tokens", name, float(replica.pending_prefill_tokens)
    yield "replica_engine_preemptions", name, float(replica.preemptions)
    yield "replica_thrashing", name, float(replica.thrashing)
    if replica.prefill_tokens_per_s is not None:
        yield "replica_prefill_tokens_per_second", (*name, replica.prefill_source.value), replica.prefill_tokens_per_s
    if replica.most_streams is not None:
        yield "replica_most_streams", name, float(replica.most_streams)
    if replica.drain_blocks_per_s is not None:
        yield "replica_drain_blocks_per_second", name, replica.drain_blocks_per_s
    for stage in replica.stages:
        yield from _stage(stage, replica.name)


def _stage(stage: StageSnapshot, replica: str) -> Iterator[Sample]:
    labels = (replica, stage.stage)
    yield "kv_capacity_blocks", labels, float(stage.capacity_blocks)
    yield "kv_held_blocks", (*labels, "private"), float(stage.private_blocks)
    yield "kv_held_blocks", (*labels, "shared"), float(stage.shared_blocks)
    yield "kv_held_blocks", (*labels, "foreign"), float(stage.foreign_blocks)
    yield "kv_held_blocks", (*labels, "peers"), float(stage.peer_blocks)
    yield "kv_stop_blocks", labels, float(stage.stop_blocks)
    yield "kv_stopped", labels, float(stage.stopped)
    if stage.used_blocks is not None:
        yield "kv_used_blocks", labels, float(stage.used_blocks)
    if stage.evictable_blocks is not None:
        yield "kv_evictable_blocks", labels, float(stage.evictable_blocks)
    if stage.drift_blocks is not None:
        yield "kv_drift_blocks", labels, float(stage.drift_blocks)


def _usage(state: MeterState) -> Iterator[Sample]:
    yield "meter_ok", (), float(state.problem is None)
    yield "meter_journal_bytes", (), float(state.journal_bytes)
    yield "meter_unwritten_requests", (), float(state.unwritten)
    yield "meter_recovered_total", (), float(state.recovered)
    for sku, total in state.takings.by_sku.items():
        name = sku or ""
        yield "usage_requests_total", (name,), float(total.requests)
        yield "usage_tokens_total", (name, "input_cold"), float(total.input_cold_tokens)
        yield "usage_tokens_total", (name, "input_cached"), float(total.input_cached_tokens)
        yield "usage_tokens_total", (name, "output"), float(total.output_tokens)
        yield "usage_kv_token_seconds_total", (name,), total.kv_token_ms / 1e3
        yield "usage_usd_total", (name,), total.nano_usd / 1e9
        yield "usage_unpriced_requests_total", (name,), float(total.unpriced)


def _sharing(state: SharingState) -> Iterator[Sample]:
    yield "shared_ok", (), float(state.problem is None)
    yield "shared_gateways", (), float(state.gateways)
    yield "shared_exchanges_total", (), float(state.exchanges)
    yield "shared_prompts_total", ("told",), float(state.stores_told)
    yield "shared_prompts_total", ("heard",), float(state.stores_heard)
    yield "shared_prompts_total", ("untold",), float(state.untold_prompts)


def _of(histograms: dict[tuple[str, ...], Histogram], labels: tuple[str, ...]) -> Histogram:
    found = histograms.get(labels)
    if found is None:
        found = histograms[labels] = Histogram()
    return found


def _family(name: str, samples: Sequence[Sample]) -> Metric:
    metric = METRICS[name]
    kind = CounterMetricFamily if metric.kind is MetricKind.COUNTER else GaugeMetricFamily
    family = kind(metric.full_name, metric.help, labels=metric.labels)
    for _, labels, value in samples:
        family.add_metric(labels, value)
    return family


def _histogram(name: str, histograms: dict[tuple[str, ...], Histogram]) -> Metric:
    metric = METRICS[name]
    family = HistogramMetricFamily(metric.full_name, metric.help, labels=metric.labels)
    for labels, histogram in histograms.items():
        family.add_metric(labels, histogram.cumulative(), histogram.sum_ns / NS_PER_S)
    return family
