"""The scrape: every metric defined once, read back by Prometheus' own parser."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from longproof.gateway.histogram import BOUNDS_S, Histogram
from longproof.gateway.lives import Life, Lives, WatchedMeter
from longproof.gateway.metric_names import METRICS, PREFIX, MetricKind
from longproof.gateway.metrics import GatewayMetrics
from longproof.gateway.ports import Admitted, Spent
from longproof.gateway.sharing import SharingState
from longproof.policy.actions import Dispatch, Refusal, Wait
from longproof.policy.arrivals import Arrival, EndKind
from longproof.testing.fleets import broken_fleet, busy_fleet, empty_fleet

MS = 1_000_000
S = 1_000_000_000


def scraped(metrics: GatewayMetrics) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    found: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
    for family in text_string_to_metric_families(metrics.text().decode()):
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in found, f"{key} stands twice"
            found[key] = sample.value
    return found


def value(found: dict[Any, float], name: str, **labels: str) -> float:
    return found[PREFIX + name, tuple(sorted(labels.items()))]


def asked(name: str = "r") -> Arrival:
    return Arrival(id=name, tenant="acme", model="m", input_tokens=1_000, exact=True, output_tokens=9)


def used(
    name: str = "r", ending: EndKind = EndKind.COMPLETED, at_ns: int = 9 * S, first_ns: int | None = 5 * S
) -> Spent:
    return Spent(
        id=name,
        ending=ending,
        status=200,
        input_tokens=1_000,
        cached_tokens=400,
        output_tokens=7,
        reported=True,
        at_ns=at_ns,
        first_token_ns=first_ns,
    )


def life(**changes: Any) -> Life:
    sent = Dispatch(id="r", replica="a", reason="", pool="long")
    base: dict[str, Any] = {"arrival": asked(), "arrived_ns": S, "dispatch": sent, "dispatched_ns": 2 * S}
    return Life(**{**base, "ended_ns": 9 * S, "spent": used(), **changes})


@pytest.mark.parametrize("make", [busy_fleet, empty_fleet, broken_fleet])
def test_a_scrape_has_every_metric_that_has_a_sample(make: Any) -> None:
    metrics = GatewayMetrics(make(lambda: 7 * S))
    names = {name.removeprefix(PREFIX) for name, _ in scraped(metrics) if name.startswith(PREFIX)}
    for suffix in ("_bucket", "_sum", "_count"):
        names = {name.removesuffix(suffix) for name in names}
    assert names <= set(METRICS)
    assert {"arrivals_total", "kv_held_blocks", "event_loop_lag_seconds"} <= names


def test_every_metric_has_a_sample_when_everything_happened() -> None:
    metrics = GatewayMetrics(busy_fleet(lambda: 7 * S))
    metrics.add(life())
    found = scraped(metrics)
    for metric in METRICS.values():
        name = metric.full_name + ("_count" if metric.kind is MetricKind.HISTOGRAM else "")
        assert any(key == name for key, _ in found), f"{name} has none"
        labels = next(labels for key, labels in found if key == name)
        assert {label for label, _ in labels} == set(metric.labels)


def test_the_figures_are_those_of_the_snapshot() -> None:
    found = scraped(GatewayMetrics(busy_fleet(lambda: 0)))
    assert value(found, "kv_capacity_blocks", replica="long-0", stage="kv") == 250_000
    assert value(found, "kv_held_blocks", replica="long-0", stage="kv", by="shared") == 88_000
    assert value(found, "kv_stopped", replica="long-0", stage="kv") == 1
    assert value(found, "kv_drift_blocks", replica="pair-0", stage="decode") == -3
    assert value(found, "replica_state", replica="chat-0", pool="short", state="up") == 1
    assert value(found, "usage_usd_total", sku="chat") == pytest.approx(22.31045)
    assert value(found, "usage_kv_token_seconds_total", sku="long-context") == 8_104_000_000
    assert value(found, "prefix_requests_total", prefix="contract-2026", cached="yes") == 1_177


def test_a_broken_fleet_shows_in_the_figures() -> None:
    found = scraped(GatewayMetrics(broken_fleet(lambda: 0)))
    assert value(found, "index_degraded", replica="c") == 1
    assert value(found, "replica_state", replica="a", pool="default", state="down") == 1
    assert value(found, "replica_thrashing", replica="c") == 1
    assert value(found, "meter_ok") == 0
    assert [v for (name, _), v in found.items() if name == PREFIX + "claim_holds"] == [0]


def test_ended_requests_are_counted_by_how_they_ended() -> None:
    metrics = GatewayMetrics(empty_fleet(lambda: 0))
    refused = Refusal(id="r", status=429, code="queue_full", reason="")
    never_sent = {"dispatch": None, "dispatched_ns": None, "spent": None}
    metrics.add(life())
    metrics.add(life(spent=used(ending=EndKind.CANCELLED, first_ns=None)))
    metrics.add(life(**never_sent, refusal=refused))
    metrics.add(life(**never_sent))  # left while it waited
    metrics.add(life(arrival=replace(asked(), streamed=False, model="whole")))  # its first token is its last
    metrics.add(
        life(spent=used(ending=EndKind.REJECTED, first_ns=None), refusal=refused)
    )  # no engine would, then we would not
    found = scraped(metrics)
    counts = {
        end: value(found, "requests_total", model="m", ending=end) for end in ("completed", "cancelled", "refused")
    }
    assert counts == {"completed": 1, "cancelled": 2, "refused": 2}
    # first token 5 s, arrival 1 s: 4 s; ended 9 s: 8 s; sent 2 s: waited 1 s, four times
    assert value(found, "ttft_seconds_sum", model="m", pool="long") == 4
    assert not any(name.endswith("ttft_seconds_sum") and ("model", "whole") in labels for name, labels in found)
    assert value(found, "request_seconds_sum", model="m", pool="long") == 8
    assert value(found, "queue_wait_seconds_sum", pool="long") == 4
    assert value(found, "input_tokens_total", model="m", cache="hit") == 800
    assert value(found, "input_tokens_total", model="m", cache="miss") == 1_200
    assert value(found, "output_tokens_total", model="m") == 14


def test_a_sample_counts_to_its_bound_when_it_is_equal_to_it() -> None:
    histogram = Histogram()
    for ns in (-5, MS, MS + 1, 700 * S):  # ≤ 1 ms: two; ≤ 2.5 ms: one more; beyond all: one
        histogram.add(ns)
    counts = dict(histogram.cumulative())
    assert (counts["0.001"], counts["0.0025"], counts[str(BOUNDS_S[-1])], counts["+Inf"]) == (2, 3, 3, 4)
    assert histogram.sum_ns == 2 * MS + 1 + 700 * S


async def test_the_loops_lag_is_seen_when_something_blocks_it() -> None:
    metrics = GatewayMetrics(empty_fleet(lambda: 0))
    metrics.start()
    await asyncio.sleep(0)
    time.sleep(0.3)  # noqa: ASYNC251 - that is the point
    async with asyncio.timeout(30):
        while value(scraped(metrics), "event_loop_lag_seconds_count") < 1:  # noqa: ASYNC110 - a figure, not an event
            await asyncio.sleep(0.01)
    metrics.close()
    # the timer was due 0.1 s in, and fires 0.3 s in at the earliest
    assert value(scraped(metrics), "event_loop_lag_seconds_sum") >= 0.18


class Books:
    """A meter that writes nothing."""

    def admitted(self, request: Admitted) -> None: ...
    def passed(self, request_id: str, output_tokens: int) -> None: ...
    def spent(self, request: Spent) -> None: ...


def test_a_life_is_told_once_with_all_that_happened() -> None:
    lives, told = Lives(), list[Life]()
    lives.listeners.append(told.append)
    meter = WatchedMeter(Books(), lives)
    to_send = Admitted(
        id="r", key="", tenant="", model="m", replica="b", input_tokens=1_000, output_tokens=9, at_ns=3 * S
    )
    lives.decided(Wait(id="r", reason="full"), asked(), S)
    lives.decided(Dispatch(id="r", replica="a", reason="", attempt=1), asked(), 2 * S)
    meter.admitted(to_send)
    lives.decided(Dispatch(id="r", replica="b", reason="", attempt=2), asked(), 3 * S)
    meter.admitted(to_send)
    lives.departed("r", 8 * S)
    assert told == []  # its usage is still to come
    meter.spent(used(at_ns=9 * S))
    meter.spent(used(at_ns=9 * S))
    (one,) = told
    assert one.dispatch is not None
    assert (one.dispatch.replica, one.waited_ns, one.ttft_ns, one.ending) == ("b", 2 * S, 4 * S, "completed")
    assert lives.open_lives == 0


def test_a_life_ends_when_a_client_leaves_the_queue_or_is_refused() -> None:
    lives, told = Lives(), list[Life]()
    lives.listeners.append(told.append)
    lives.decided(Wait(id="left", reason="full"), asked("left"), S)
    lives.departed("left", 4 * S)
    lives.decided(Refusal(id="no", status=429, code="queue_full", reason=""), asked("no"), S)
    lives.departed("no", S)
    lives.departed("never seen", S)
    assert [(one.ending, one.waited_ns) for one in told] == [("cancelled", 3 * S), ("refused", 0)]
    assert lives.open_lives == 0


def test_what_is_shared_is_counted_when_books_are_shared() -> None:
    alone = GatewayMetrics(broken_fleet(lambda: 0))
    assert not any("shared" in name and "kv" not in name for name, _ in scraped(alone))
    state = SharingState(
        problem="it is gone", gateways=3, exchanges=40, stores_told=5, stores_heard=6, untold_prompts=7
    )
    found = scraped(GatewayMetrics(replace(busy_fleet(lambda: 0), sharing=lambda: state)))
    assert value(found, "shared_ok") == 0
    assert value(found, "shared_gateways") == 3
    assert value(found, "shared_exchanges_total") == 40
    assert [value(found, "shared_prompts_total", how=how) for how in ("told", "heard", "untold")] == [5, 6, 7]


def test_a_prefill_rate_says_what_it_rests_on() -> None:
    busy, broken = (scraped(GatewayMetrics(fleet(lambda: 0))) for fleet in (busy_fleet, broken_fleet))
    assert value(busy, "replica_prefill_tokens_per_second", replica="chat-0", source="learned") == 11_840
    assert value(broken, "replica_prefill_tokens_per_second", replica="a", source="assumed") == 10_000
