"""Calibration recovers what made the points, and its band covers them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from longproof.errors import UsageError
from longproof.hardware.catalogue import find_device
from longproof.plan.capacity import Layout
from longproof.plan.perf_calibrate import TimedPoint, calibrate
from longproof.plan.perf_decode import Batch, decode_time
from longproof.plan.perf_estimate import rates_of
from longproof.plan.perf_prefill import Prompt, prefill_time
from longproof.plan.perf_work import AttentionWork, LayerWork, ModelWork

H100 = find_device("h100-sxm")
WORK = ModelWork(
    name="eight",
    layers=(
        LayerWork(
            dense_elements=218_000_000, dense_bytes=436e6,
            attention=AttentionWork(query_heads=32, kv_heads=8, score_dim=128, value_dim=128, cached_bytes=4096.0),
        ),
    ) * 32,
    hidden_size=4096,
)  # fmt: skip


def test_prefill_points_give_back_the_rate_that_made_them() -> None:
    truth = replace(rates_of(H100), prefill=0.47)
    layout = Layout(tp=2)

    def took(tokens: int) -> float:
        return prefill_time(WORK, H100, Prompt(new_tokens=tokens), layout=layout, rates=truth).seconds

    points = [TimedPoint(tokens=n, seconds=took(n)) for n in (2_000, 20_000, 100_000)]
    found = calibrate(WORK, H100, prefill=points, layout=layout)
    assert found.rates.prefill == pytest.approx(0.47, rel=1e-3)
    assert found.rates.prefill_band == 0.02
    assert found.rates.decode == rates_of(H100).decode


def test_decode_points_give_back_bandwidth_and_overhead() -> None:
    truth = replace(rates_of(H100), decode=0.6, layer_seconds=200e-6)
    points = [
        TimedPoint(tokens=n, seconds=decode_time(WORK, H100, Batch(sequences=1, context_tokens=n), rates=truth).seconds)
        for n in (1_000, 30_000, 120_000)
    ]
    found = calibrate(WORK, H100, decode=points)
    assert found.rates.decode == pytest.approx(0.6, rel=1e-6)
    assert found.rates.layer_seconds == pytest.approx(200e-6, rel=1e-6)


def test_the_published_times_of_8b_give_a_rate_near_the_shipped_one() -> None:
    # vLLM blog 2026-01-08, read from the plot: 10k 260, 50k 2,289, 100k 6,845 ms
    points = [TimedPoint(tokens=n, seconds=s) for n, s in ((10_000, 0.260), (50_000, 2.289), (100_000, 6.845))]
    found = calibrate(WORK, H100, prefill=points)
    assert found.rates.prefill == pytest.approx(rates_of(H100).prefill, rel=0.05)
    assert max(abs(e) for e in found.prefill_errors) <= found.rates.prefill_band
    assert found.rates.notes == ("calibrated on 3 prefill and 0 decode points of eight",)


def test_one_decode_point_moves_the_overhead_alone() -> None:
    found = calibrate(WORK, H100, decode=[TimedPoint(tokens=10_000, seconds=0.02)])
    assert found.rates.decode == rates_of(H100).decode
    assert found.decode_errors == (pytest.approx(0.0),)


@pytest.mark.parametrize("point", [TimedPoint(tokens=0, seconds=1.0), TimedPoint(tokens=10, seconds=0.0)])
def test_a_point_without_tokens_or_time_is_refused(point: TimedPoint) -> None:
    with pytest.raises(UsageError, match="cannot be fitted"):
        calibrate(WORK, H100, prefill=[point])
