"""Prompt times: the arithmetic at ideal rates, and what layouts add."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longproof.domain.measure import Unknown
from longproof.errors import UsageError
from longproof.hardware.catalogue import find_device
from longproof.plan.capacity import Layout
from longproof.plan.perf_estimate import IDEAL, Precision, rates_of
from longproof.plan.perf_prefill import Prompt, bubble_ratio, prefill_time
from longproof.plan.perf_ring import RingPass
from longproof.plan.perf_work import AttentionWork, LayerWork, ModelWork

H100 = find_device("h100-sxm")
TEN_LAYERS = ModelWork(
    name="ten layers",
    layers=(
        LayerWork(
            dense_elements=1_000_000_000, dense_bytes=2e9,
            attention=AttentionWork(query_heads=32, kv_heads=8, score_dim=128, value_dim=128, cached_bytes=4096.0),
        ),
    ) * 10,
    hidden_size=4096,
)  # fmt: skip


def test_the_time_is_flop_over_peak_when_every_peak_is_reached() -> None:
    # projections 2 * 1e4 * 1e10 = 2e14; attention 2 * 32 * 256 * (1e4^2 / 2) * 10 = 8.192e12; peak 989.4e12
    estimate = prefill_time(TEN_LAYERS, H100, Prompt(new_tokens=10_000), rates=IDEAL)
    assert estimate.part("projections") == pytest.approx(2e14 / 989.4e12)
    assert estimate.part("attention") == pytest.approx(8.192e12 / 989.4e12)
    assert estimate.band == 0


def test_a_short_prompt_is_bound_by_reading_the_weights() -> None:
    # 20 GB at 3.35 TB/s = 5.97 ms; the arithmetic of 10 tokens takes 0.2 ms
    estimate = prefill_time(TEN_LAYERS, H100, Prompt(new_tokens=10), rates=IDEAL)
    assert estimate.part("projections") == pytest.approx(20e9 / 3.35e12)


def test_a_cached_prefix_costs_attention_only() -> None:
    # 4 T (P + T/2) D L: T = 1,000, P = 100,000, D = 4,096, L = 10 = 1.6466e13
    estimate = prefill_time(TEN_LAYERS, H100, Prompt(new_tokens=1_000, cached_tokens=100_000), rates=IDEAL)
    assert estimate.part("attention") == pytest.approx(4 * 1_000 * 100_500 * 4_096 * 10 / 989.4e12)


def test_tensor_parallelism_splits_arithmetic_and_adds_all_reduces() -> None:
    estimate = prefill_time(TEN_LAYERS, H100, Prompt(new_tokens=10_000), layout=Layout(tp=8), rates=IDEAL)
    assert estimate.part("projections") == pytest.approx(2e14 / 989.4e12 / 8)
    # 20 all-reduces of 1e4 * 4096 * 2 B = 81.92 MB at 0.6 * 450 GB/s
    assert estimate.part("all-reduce") == pytest.approx(20 * 81.92e6 / 270e9)


def test_all_reduces_across_hosts_are_dearer() -> None:
    within, across = (
        prefill_time(TEN_LAYERS, H100, Prompt(new_tokens=10_000), layout=Layout(tp=tp)).part("all-reduce")
        for tp in (8, 16)
    )
    # each device carries an eighth of 81.92 MB over a 50 GB/s NIC at 0.52: 10.24 MB / 26 GB/s, 20 times, beside within
    assert across == pytest.approx(within + 20 * 10.24e6 / 26e9)


def test_a_pipeline_without_chunks_gains_nothing() -> None:
    prompt = Prompt(new_tokens=10_000, chunk_tokens=10_000)
    one = prefill_time(TEN_LAYERS, H100, prompt, rates=IDEAL).seconds
    four = prefill_time(TEN_LAYERS, H100, prompt, layout=Layout(pp=4), rates=IDEAL).seconds
    assert four == pytest.approx(one)


def test_a_pipeline_idles_p_minus_1_of_its_chunks() -> None:
    # 8 stages, 21.33 chunks of 6,144: 22 forward passes: 7/22 of the busy time
    prompt = Prompt(new_tokens=131_072)
    estimate = prefill_time(TEN_LAYERS, H100, prompt, layout=Layout(pp=8))
    busy = estimate.seconds - estimate.part("bubble")
    assert estimate.part("bubble") == pytest.approx(busy * 7 / 22)
    # as a share of the whole: (P-1) / (P-1+M)
    assert bubble_ratio(8, 22) / (1 + bubble_ratio(8, 22)) == pytest.approx(7 / 29)


def test_context_parallel_prefill_is_slower_than_ideal_by_what_the_ring_shows() -> None:
    cp4 = prefill_time(TEN_LAYERS, H100, Prompt(new_tokens=100_000), layout=Layout(tp=8, pcp=4))
    assert cp4.part("ring") > 0
    # forced to pass queries, the All2All cannot be hidden
    passed_q = prefill_time(TEN_LAYERS, H100, Prompt(new_tokens=100_000), layout=Layout(tp=8, pcp=4), ring=RingPass.Q)
    assert passed_q.part("ring") > cp4.part("ring")


@given(st.integers(1, 200_000), st.integers(1, 200_000), st.sampled_from([1, 2, 4, 8]))
def test_a_longer_prompt_never_takes_less_time(tokens: int, more: int, tp: int) -> None:
    layout = Layout(tp=tp)
    short = prefill_time(TEN_LAYERS, H100, Prompt(new_tokens=tokens), layout=layout)
    assert prefill_time(TEN_LAYERS, H100, Prompt(new_tokens=tokens + more), layout=layout).seconds >= short.seconds
    assert short.low <= short.seconds <= short.high


def test_an_unfitted_device_has_a_wide_band_and_says_so() -> None:
    estimate = prefill_time(TEN_LAYERS, find_device("mi300x"), Prompt(new_tokens=1_000))
    assert estimate.band == 0.40
    assert any("assumed" in note for note in estimate.notes)
    assert rates_of(H100).prefill_band == 0.10


def test_a_device_without_flops_is_refused_with_the_figure_that_lacks() -> None:
    with pytest.raises(UsageError, match="dense FLOP/s of A desktop CPU"):
        prefill_time(TEN_LAYERS, find_device("cpu"), Prompt(new_tokens=1_000))


def test_a_device_without_a_network_figure_is_refused_only_when_it_is_needed() -> None:
    lone = replace(H100, scale_out_bytes_per_second=Unknown(reason="no source was found"))
    assert prefill_time(TEN_LAYERS, lone, Prompt(new_tokens=1_000), layout=Layout(tp=8)).seconds > 0
    with pytest.raises(UsageError, match="network rate"):
        prefill_time(TEN_LAYERS, lone, Prompt(new_tokens=1_000), layout=Layout(tp=16))


def test_a_missing_dtype_falls_back_to_bf16() -> None:
    h20 = find_device("h20")
    fp8, bf16 = (
        prefill_time(TEN_LAYERS, h20, Prompt(new_tokens=10_000), precision=p).seconds
        for p in (Precision(weights="fp8", attention="fp8"), Precision())
    )
    assert fp8 == bf16


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(UsageError, match="no new tokens"):
        prefill_time(TEN_LAYERS, H100, Prompt(new_tokens=0))
