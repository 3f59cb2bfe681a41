"""Prices per token: worked sums, and the laws they obey."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longproof.domain.measure import Measured, Unknown
from longproof.errors import UsageError
from longproof.hardware.catalogue import find_device
from longproof.plan.capacity import Layout
from longproof.plan.cost import Band, Fleet, Traffic, price_band, prices_by_band, token_prices
from longproof.plan.cost_keeping import keep_in_tier, keep_on_device
from longproof.plan.perf_estimate import IDEAL
from longproof.plan.perf_transfer import Tier, host_tier
from longproof.plan.perf_work import AttentionWork, LayerWork, ModelWork

H100 = find_device("h100-sxm")
# 1e9 multiply-adds and 2 GB of weights, 100,000 B of cache per token, no arithmetic in attention.
FLAT = ModelWork(
    name="flat",
    layers=(
        LayerWork(
            dense_elements=1_000_000_000, dense_bytes=2e9,
            attention=AttentionWork(query_heads=1, kv_heads=1, score_dim=0, value_dim=0, cached_bytes=100_000.0),
        ),
    ),
    hidden_size=1024,
)  # fmt: skip
THREE_SIXTY = Band(low=1.8, typical=3.6, high=7.2)  # $3.60 an hour is $0.001 a second


def fleet(**changes: object) -> Fleet:
    values = {"device": H100, "layout": Layout(), "usd_per_hour": THREE_SIXTY, "cache_bytes": 40e9} | changes
    return Fleet(**values)  # type: ignore[arg-type]


def test_cold_input_costs_its_compute_time() -> None:
    # 2e9 FLOP per token / 989.4e12 = 2.0214e-6 s; at $0.001 per second, $0.0020214 per million tokens
    prices = token_prices(FLAT, fleet(), Traffic(input_tokens=100_000, output_tokens=1), rates=IDEAL)
    assert prices.input_cold.typical == pytest.approx(2e9 / 989.4e12 * 1e-3 * 1e6)
    assert prices.input_cold.low == prices.input_cold.typical / 2
    assert prices.input_cold.high == prices.input_cold.typical * 2


def test_output_costs_its_share_of_the_memory_when_memory_limits_the_batch() -> None:
    # 100,000 tokens take 10 GB: 3 of them and a rest fit 40 GB (3 * 10.0001 GB). A step reads 2 GB + 3 * 10 GB at
    # 3.35 TB/s = 9.552 ms; each session holds 10.0001 / 40 of the memory, but a third of the batch is more.
    prices = token_prices(FLAT, fleet(), Traffic(input_tokens=100_000, output_tokens=1), rates=IDEAL)
    assert prices.sessions == 3
    assert prices.memory_bound
    step = (2e9 + 3 * 100_000.5 * 100_000) / 3.35e12
    assert prices.output.typical == pytest.approx(step / 3 * 1e-3 * 1e6)
    assert prices.residency_gigabyte_seconds == pytest.approx(10.0001 * step)


def test_output_costs_the_memory_it_blocks_when_the_batch_is_limited_elsewhere() -> None:
    # One sequence at a time by setting, a quarter of the memory each: the batch's place (1/1) is the larger
    prices = token_prices(FLAT, fleet(), Traffic(input_tokens=100_000, output_tokens=1), max_sequences=1, rates=IDEAL)
    assert not prices.memory_bound
    assert prices.output.typical == pytest.approx((2e9 + 100_000.5 * 100_000) / 3.35e12 * 1e-3 * 1e6)


def test_a_longer_context_costs_more_per_output_token() -> None:
    bands = prices_by_band(FLAT, fleet(cache_bytes=200e9), output_tokens=100)
    costs = [b.prices.value.output.typical for b in bands if isinstance(b.prices, Measured)]
    assert [b.name for b in bands] == ["≤32k", "128k", "1M"]
    # per session the step's own reads grow 32 → 128 → 1,000 and the weights are shared by fewer
    assert costs == sorted(costs)
    assert costs[-1] > 20 * costs[0]


def test_a_band_that_does_not_fit_says_what_it_would_take() -> None:
    # 1,000,100 tokens * 100,000 B = 100.01 GB
    last = prices_by_band(FLAT, fleet(), output_tokens=100)[-1]
    assert isinstance(last.prices, Unknown)
    assert "100.01 GB" in last.prices.reason
    assert "40.00 GB" in last.prices.reason


def test_idle_sessions_pay_for_their_place() -> None:
    # 10.0001 GB for 100 s at $0.001 / 40 GB·s = $0.025, on one output token
    busy, waiting = (
        token_prices(FLAT, fleet(), Traffic(input_tokens=100_000, output_tokens=1, idle_seconds=s), rates=IDEAL)
        for s in (0.0, 100.0)
    )
    assert waiting.request_usd.typical - busy.request_usd.typical == pytest.approx(10.0001 * 100 * 1e-3 / 40)


def test_cached_input_costs_the_fetch_and_never_the_compute() -> None:
    # 90,000 cached tokens = 9 GB at 9 GB/s: 1 s holding 9 of 40 GB: $0.000225, per million cached tokens $0.0025
    traffic = Traffic(input_tokens=100_000, output_tokens=1, cached_tokens=90_000)
    stayed = token_prices(FLAT, fleet(), traffic, rates=IDEAL)
    fetched = token_prices(FLAT, fleet(), traffic, tier=Tier(name="host", bytes_per_second=9e9), rates=IDEAL)
    assert stayed.input_cached.typical == 0
    assert fetched.input_cached.typical == pytest.approx(9 / 40 * 1e-3 * 1e6 / 90_000)


def test_idle_hours_are_spread_over_the_busy_ones() -> None:
    whole, half = (
        token_prices(FLAT, fleet(utilisation=u), Traffic(input_tokens=1_000, output_tokens=10)) for u in (1.0, 0.5)
    )
    assert half.request_usd.typical == pytest.approx(2 * whole.request_usd.typical)


@given(st.integers(1_000, 200_000), st.integers(1, 2_000), st.floats(0.0, 0.95))
def test_a_cached_prefix_never_makes_a_request_dearer(tokens: int, output: int, share: float) -> None:
    held = fleet(cache_bytes=100e9)
    cold = token_prices(FLAT, held, Traffic(input_tokens=tokens, output_tokens=output))
    warm = token_prices(
        FLAT, held, Traffic(input_tokens=tokens, output_tokens=output, cached_tokens=int(tokens * share))
    )
    assert warm.request_usd.typical <= cold.request_usd.typical * (1 + 1e-9)


def test_keeping_a_prefix_pays_until_its_place_costs_what_it_saves() -> None:
    # 100,000 tokens: prefill 2e14 / 989.4e12 = 0.2021 s = $0.0002021; holding 10 of 40 GB $0.00025 a second
    kept = keep_on_device(FLAT, fleet(), 100_000, rates=IDEAL)
    assert kept.saved_usd == pytest.approx(2e14 / 989.4e12 * 1e-3)
    assert kept.holding_usd_per_second == pytest.approx(0.00025)
    assert kept.break_even_seconds == pytest.approx(kept.saved_usd / 0.00025)
    assert kept.break_even_uses_per_hour == pytest.approx(3600 / (kept.saved_usd / 0.00025))


def test_a_free_tier_may_keep_for_ever_and_a_slow_one_not_at_all() -> None:
    free = keep_in_tier(FLAT, fleet(), 100_000, host_tier(H100), usd_per_gigabyte_hour=0.0, rates=IDEAL)
    assert free.break_even_seconds is None
    assert free.break_even_uses_per_hour == 0
    # fetching 10 GB at 1 GB/s holds a quarter of the device for 10 s: $0.0025 to save $0.0002
    slow = keep_in_tier(
        FLAT, fleet(), 100_000, Tier(name="slow", bytes_per_second=1e9), usd_per_gigabyte_hour=0.01, rates=IDEAL
    )
    assert slow.saved_usd < 0
    assert slow.break_even_seconds == 0
    assert slow.break_even_uses_per_hour is None


def test_devices_are_counted_once_under_dp_attention() -> None:
    assert fleet(layout=Layout(tp=8, pp=2)).devices == 16
    assert fleet(layout=Layout(tp=4, dp=2)).devices == 8
    assert fleet(layout=Layout(tp=8, dp=8, dp_attention=True)).devices == 8


def test_price_ranges_come_from_the_device_file_or_are_unknown() -> None:
    found = price_band(H100)
    assert isinstance(found, Measured)
    assert found.value == Band(low=1.99, typical=2.95, high=5.0)
    assert isinstance(price_band(find_device("gb300")), Unknown)
    # the RTX PRO 6000 has no highest listing: its typical price stands in
    open_ended = price_band(find_device("rtx-pro-6000"))
    assert isinstance(open_ended, Measured)
    assert open_ended.value.high == open_ended.value.typical


@pytest.mark.parametrize(
    "traffic",
    [
        Traffic(input_tokens=10, output_tokens=0),
        Traffic(input_tokens=10, output_tokens=1, cached_tokens=10),
    ],
)
def test_requests_that_are_none_are_refused(traffic: Traffic) -> None:
    with pytest.raises(UsageError, match="make no request"):
        token_prices(FLAT, fleet(), traffic)


def test_a_fleet_that_cannot_earn_is_refused() -> None:
    with pytest.raises(UsageError, match="utilisation"):
        fleet(utilisation=0.0)
    with pytest.raises(UsageError, match="no cache"):
        fleet(cache_bytes=0.0)
