"""Time in a queue by an engine's own clock: what a histogram's growth can say of one request, and what it cannot."""

from __future__ import annotations

from dataclasses import replace

import pytest
from loads import MS, timeline, view, window

from longproof.claim.queue_clock import Queued, queue_times, quickest_before_slot
from longproof.claim.view import Window
from longproof.domain.events import EngineSample, RequestTimeline

VLLM = "vllm:request_queue_time_seconds"
SGLANG = "sglang:queue_time_seconds"
LONG = timeline(1000, ttft_ms=500, tokens=10, prompt=6000)
"""Sent at 1.0 s, its token at 1.5 s, over at 1.591 s."""
SHORT = timeline(1300, ttft_ms=100, tokens=10)
"""Sent at 1.3 s, its token at 1.4 s, over at 1.491 s."""


def sample(at_ms: float, name: str, count: int, seconds: float) -> EngineSample:
    return EngineSample(at_ns=round(at_ms * MS), values={f"{name}_count": float(count), f"{name}_sum": seconds})


def seen(items: list[tuple[str, RequestTimeline]], samples: list[EngineSample]) -> Window:
    entries = window("busy/x", "busy", {}, {}, items, start_ms=1000, end_ms=3000, samples=samples)
    return view(entries).windows("busy")[0]


def of_long(found: Window) -> Queued | None:
    return next((queued for key, queued in queue_times(found, {}).items() if "/long/" in key), None)


@pytest.mark.parametrize("name", [VLLM, SGLANG])
def test_it_is_told_exactly_when_nobody_else_was_counted(name: str) -> None:
    found = seen([("long", LONG)], [sample(900, name, 7, 1.0), sample(2000, name, 8, 1.3)])
    assert of_long(found) == Queued(least_ns=300 * MS, most_ns=300 * MS)


@pytest.mark.parametrize("name", [VLLM, SGLANG])
def test_it_has_bounds_when_others_were_counted_beside_it(name: str) -> None:
    """0.3 s for both. The short one had no token for 0.1 s: it waited no longer, so the long one waited 0.2 s at
    least."""
    both = [("long", LONG), ("short", SHORT)]
    found = seen(both, [sample(900, name, 7, 1.0), sample(2000, name, 9, 1.3)])
    assert of_long(found) == Queued(least_ns=200 * MS, most_ns=300 * MS)


def test_it_entered_at_once_when_the_sum_did_not_grow() -> None:
    both = [("long", LONG), ("short", SHORT)]
    found = seen(both, [sample(900, VLLM, 7, 1.0), sample(2000, VLLM, 9, 1.001)])
    assert of_long(found) == Queued(least_ns=0, most_ns=1 * MS)


@pytest.mark.parametrize("count", [8, 10])
def test_nothing_is_told_when_the_count_does_not_fit_our_requests(count: int) -> None:
    """Two of ours were counted for certain: one less is impossible, one more is somebody else's."""
    both = [("long", LONG), ("short", SHORT)]
    assert of_long(seen(both, [sample(900, VLLM, 7, 1.0), sample(2000, VLLM, count, 1.3)])) is None


def test_nothing_is_told_when_no_sample_comes_after_it() -> None:
    assert of_long(seen([("long", LONG)], [sample(900, VLLM, 7, 1.0), sample(1500, VLLM, 7, 1.0)])) is None


def test_what_passed_before_a_slot_is_the_wait_when_the_engine_times_the_prompt() -> None:
    """0.5 s to the first token, 0.35 s of them in a slot; alone a prompt of that length is outside for 0.02 s."""
    busy = replace(LONG, engine_timings={"prompt_ms": 350.0})
    idle = replace(timeline(20_000, ttft_ms=400, prompt=6000), engine_timings={"prompt_ms": 380.0})
    quickest = quickest_before_slot([busy, idle, SHORT])
    assert quickest == {6000: 20 * MS}
    found = queue_times(seen([("long", busy)], []), quickest)
    assert list(found.values()) == [Queued(least_ns=130 * MS, most_ns=150 * MS)]


def test_ten_thousand_requests_are_read_quickly_when_all_are_counted() -> None:
    """Hundreds of requests between two samples: each interval is worked out once. Each waited 1 ms; of one alone the
    sums say no more than that it waited no longer than it had no token."""
    items = [("short", timeline(1000 + i, ttft_ms=20, tokens=2)) for i in range(10_000)]
    samples = [sample(at, VLLM, max(0, at - 1031), max(0, at - 1031) * 0.001) for at in range(900, 12_000, 250)]
    found = queue_times(seen(items, samples), {})
    assert len(found) > 9_000
    assert max(queued.most_ns for queued in found.values()) == 20 * MS
