"""Every metric of the gateway, defined once: the scrape and the documentation's table are made from these.

Names follow Prometheus: base units (seconds, bytes), ``_total`` for counters. Labels never hold what a client chose
freely: models, tenants, replicas and prefixes are those of the configuration.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

PREFIX = "longproof_"


class MetricKind(StrEnum):
    """Prometheus' types."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayMetric:
    """One metric. `name` without the prefix; `help` says what it is, and when it has no sample."""

    name: str
    kind: MetricKind
    help: str
    labels: tuple[str, ...] = ()

    @property
    def full_name(self) -> str:
        """As scraped."""
        return PREFIX + self.name


def _metric(kind: MetricKind, name: str, text: str, *labels: str) -> GatewayMetric:
    return GatewayMetric(name=name, kind=kind, help=text, labels=labels)


_C, _G, _H = MetricKind.COUNTER, MetricKind.GAUGE, MetricKind.HISTOGRAM

METRICS: dict[str, GatewayMetric] = {
    metric.name: metric
    for metric in (
        # requests
        _metric(_C, "arrivals_total", "Requests that reached the controller."),
        _metric(_C, "dispatches_total", "Requests sent to a replica; one that is sent again counts again."),
        _metric(
            _C,
            "requests_total",
            "Requests that ended, by how: completed, cancelled (the client left), failed, rejected (by the engine),"
            " refused (by the controller).",
            "model",
            "ending",
        ),
        _metric(_C, "refusals_total", "Requests the controller refused, by the code of the answer.", "code"),
        _metric(
            _C,
            "engine_refusals_total",
            "Times an engine would not begin (429, 503, unreachable) and another was asked.",
        ),
        _metric(_G, "running_requests", "Requests on a replica."),
        _metric(_G, "waiting_requests", "Requests in the queue."),
        _metric(_G, "counting_requests", "Requests whose exact length is being counted."),
        _metric(_G, "oldest_wait_seconds", "How long the request that waits longest has waited; 0 when nobody waits."),
        _metric(_H, "queue_wait_seconds", "From arrival to dispatch, of requests that were sent.", "pool"),
        _metric(
            _H,
            "ttft_seconds",
            "From arrival to the first output token, waiting included; of requests that got one.",
            "model",
            "pool",
        ),
        _metric(_H, "request_seconds", "From arrival to the end, of requests that completed.", "model", "pool"),
        _metric(
            _C,
            "input_tokens_total",
            "Input tokens of ended requests, by whether they came from a prefix cache.",
            "model",
            "cache",
        ),
        _metric(_C, "output_tokens_total", "Output tokens of ended requests.", "model"),
        # replicas
        _metric(_G, "replica_state", "1 for the state a replica is in, 0 for the others.", "replica", "pool", "state"),
        _metric(_G, "kv_capacity_blocks", "Blocks of a stage.", "replica", "stage"),
        _metric(
            _G,
            "kv_held_blocks",
            "Blocks held: private (one request's), shared (prefixes in use, counted once), foreign (somebody else's),"
            " peers (booked by other gateways).",
            "replica",
            "stage",
            "by",
        ),
        _metric(
            _G, "kv_used_blocks", "Of the blocks our requests hold, those that are filled by now.", "replica", "stage"
        ),
        _metric(
            _G,
            "kv_evictable_blocks",
            "Cached blocks that nobody uses. No sample where nothing tells.",
            "replica",
            "stage",
        ),
        _metric(_G, "kv_stop_blocks", "The high watermark: nothing new is let in above it.", "replica", "stage"),
        _metric(
            _G,
            "kv_stopped",
            "1 while a stage is above its high watermark and not yet down to the low one.",
            "replica",
            "stage",
        ),
        _metric(
            _G,
            "kv_drift_blocks",
            "The engine's own figure less the ledger's. No sample before the engine's first.",
            "replica",
            "stage",
        ),
        _metric(_G, "replica_prefilling", "Requests in prefill on a replica.", "replica"),
        _metric(_G, "replica_decoding", "Requests that stream from a replica.", "replica"),
        _metric(
            _G,
            "replica_pending_prefill_tokens",
            "Uncached input sent to a replica whose first token has not come.",
            "replica",
        ),
        _metric(
            _G,
            "replica_prefill_tokens_per_second",
            "The rate that predictions for a replica rest on, by its source: given (prefill_rate), assumed (nothing"
            " seen yet) or learned (from first tokens).",
            "replica",
            "source",
        ),
        _metric(
            _G,
            "replica_most_streams",
            "Requests that may run together on a replica by the promised time per token. No sample without a promise.",
            "replica",
        ),
        _metric(
            _G,
            "replica_drain_blocks_per_second",
            "How fast a replica's ledger empties. No sample before anything was released.",
            "replica",
        ),
        _metric(
            _G,
            "replica_engine_preemptions",
            "Preemptions since the engine was first asked, as its own counter says.",
            "replica",
        ),
        _metric(_G, "replica_thrashing", "1 while an engine preempts although the ledger holds back.", "replica"),
        _metric(_C, "growth_shortages_total", "Times a running request grew beyond what its stage had free."),
        # index, prefixes, claims, tenants
        _metric(
            _G,
            "index_degraded",
            "1 while a replica's block index cannot be relied on; the dashboard says why.",
            "replica",
        ),
        _metric(_G, "index_blocks", "Blocks a replica is thought to hold.", "replica", "source"),
        _metric(
            _C,
            "prefix_requests_total",
            "Requests that began with a pinned prefix, by whether it was cached where they went.",
            "prefix",
            "cached",
        ),
        _metric(_G, "prefix_replicas", "Replicas that hold a pinned prefix.", "prefix"),
        _metric(
            _G,
            "claim_holds",
            "1 when a model's claim can be relied on, 0 when it is expired or made of another configuration.",
            "model",
        ),
        _metric(_G, "tenant_running", "Requests of a tenant on replicas.", "tenant"),
        _metric(_G, "tenant_waiting", "Requests of a tenant in the queue.", "tenant"),
        _metric(_G, "tenant_held_tokens", "KV tokens a tenant's requests hold.", "tenant"),
        _metric(
            _G,
            "tenant_budget_token_seconds",
            "What is left of a tenant's KV budget. No sample where it has none.",
            "tenant",
        ),
        # usage and money
        _metric(_C, "usage_requests_total", "Requests on the books since this gateway started, by SKU.", "sku"),
        _metric(_C, "usage_tokens_total", "Tokens on the books: input_cold, input_cached, output.", "sku", "kind"),
        _metric(_C, "usage_kv_token_seconds_total", "KV cache occupied, integrated over time.", "sku"),
        _metric(_C, "usage_usd_total", "Amounts charged, in USD. Requests without a price are not in it.", "sku"),
        _metric(_C, "usage_unpriced_requests_total", "Charged requests for which no price is set.", "sku"),
        _metric(_G, "meter_ok", "1 while usage can be written down; at 0 nothing new is served."),
        _metric(_G, "meter_journal_bytes", "Usage on the disk that is not in the ledger yet."),
        _metric(_G, "meter_unwritten_requests", "Ended requests that wait in memory for room on the disk."),
        _metric(
            _C,
            "meter_recovered_total",
            "Requests an earlier gateway left behind when it was killed, settled at this one's start.",
        ),
        # other gateways
        _metric(_G, "shared_ok", "1 while books are shared with other gateways. No sample without [shared]."),
        _metric(_G, "shared_gateways", "Gateways whose books are known, this one included."),
        _metric(_C, "shared_exchanges_total", "Times this gateway told the store what it has booked."),
        _metric(
            _C,
            "shared_prompts_total",
            "Cached prompts of replicas without events: told, heard, or untold (the store was lost or too slow).",
            "how",
        ),
        # the process
        _metric(
            _H, "event_loop_lag_seconds", "How late a timer of the event loop fires: what every request has to add."
        ),
        _metric(
            _C,
            "decisions_dropped_total",
            "Records that did not get into the decision log because the disk was too slow or full.",
        ),
    )
}
"""By name, in the order of the documentation."""
