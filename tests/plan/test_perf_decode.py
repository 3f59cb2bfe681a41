"""Decode steps: O(n) reads, repetition under TP, what DCP trades, drafts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longproof.errors import UsageError
from longproof.geometry.hf import read_hf
from longproof.hardware.catalogue import find_device
from longproof.plan.capacity import Layout
from longproof.plan.perf_decode import Batch, cache_read_bytes, cache_replication, decode_time
from longproof.plan.perf_estimate import IDEAL
from longproof.plan.perf_model import work_of
from longproof.plan.perf_speculative import Draft, accepted_per_step, speculative_gain
from longproof.plan.perf_work import AttentionWork, LayerWork, ModelWork

H100 = find_device("h100-sxm")
LLAMA_8B = work_of(
    read_hf(
        {
            "model_type": "llama", "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
            "head_dim": 128, "hidden_size": 4096, "vocab_size": 128256, "intermediate_size": 14336,
            "tie_word_embeddings": False, "max_position_embeddings": 131072, "torch_dtype": "bfloat16",
        },
        name="Llama-3.1-8B",
    )
)  # fmt: skip


def layers(count: int, **attention: object) -> ModelWork:
    values = {"query_heads": 64, "kv_heads": 1, "score_dim": 192, "value_dim": 128, "cached_bytes": 1152.0} | attention
    layer = LayerWork(dense_elements=1000, dense_bytes=2000.0, attention=AttentionWork(**values))  # type: ignore[arg-type]
    return ModelWork(name="layers", layers=(layer,) * count, hidden_size=1024)


def test_the_roofline_is_weights_plus_cache_over_bandwidth() -> None:
    # weights 15.01 GB, 8 sequences of 20,000 tokens of 131,072 B = 20.97 GB; 3.35 TB/s
    step = decode_time(LLAMA_8B, H100, Batch(sequences=8, context_tokens=20_000), rates=IDEAL)
    assert step.part("weights") == pytest.approx(15.01e9 / 3.35e12, rel=1e-3)
    assert step.part("cache") == pytest.approx(8 * 20_000 * 131_072 / 3.35e12)


def test_large_batches_are_bound_by_arithmetic() -> None:
    # 2 * 7.5e9 * 4,096 / 989.4e12 = 62 ms, against 4.5 ms of reading
    step = decode_time(LLAMA_8B, H100, Batch(sequences=4_096, context_tokens=1), rates=IDEAL)
    assert step.part("weights") == pytest.approx(2 * 7.505e9 * 4_096 / 989.4e12, rel=1e-3)


def test_the_published_fits_of_8b_come_out_within_5_percent() -> None:
    # vLLM blog 2026-04-22: 6.44 ms + 4.37e-5 ms per cached token on H100, bf16
    empty = decode_time(LLAMA_8B, H100, Batch(sequences=1, context_tokens=0)).seconds
    full = decode_time(LLAMA_8B, H100, Batch(sequences=1, context_tokens=100_000)).seconds
    assert empty * 1e3 == pytest.approx(6.44, rel=0.05)
    assert (full - empty) / 100_000 * 1e3 == pytest.approx(4.37e-5, rel=0.05)


def test_windowed_layers_stop_growing() -> None:
    windowed = layers(4, window=128)
    reads = [cache_read_bytes(windowed, Batch(sequences=1, context_tokens=n), Layout()) for n in (128, 100_000)]
    assert reads == [4 * 128 * 1152.0] * 2


def test_a_latent_is_repeated_on_every_rank_and_dcp_splits_it() -> None:
    latent = layers(10, shared_by_heads=True)
    one = cache_read_bytes(latent, Batch(sequences=1, context_tokens=1_000), Layout())
    assert cache_read_bytes(latent, Batch(sequences=1, context_tokens=1_000), Layout(tp=8)) == one
    assert cache_read_bytes(latent, Batch(sequences=1, context_tokens=1_000), Layout(tp=8, dcp=8)) == one / 8
    assert cache_replication(latent, Layout(tp=8)) == 8
    assert cache_replication(latent, Layout(tp=8, dcp=8)) == 1
    assert cache_replication(latent, Layout(tp=8, dp=8, dp_attention=True)) == 1


def test_kv_heads_are_repeated_when_ranks_outnumber_them() -> None:
    # 8 KV heads on 16 ranks: each rank one head, the cache is stored twice
    grouped = layers(2, kv_heads=8)
    assert cache_replication(grouped, Layout(tp=8)) == 1
    assert cache_replication(grouped, Layout(tp=16)) == 2


def test_dcp_costs_latency_when_contexts_are_short_and_wins_when_reads_dominate() -> None:
    dense = layers(60, shared_by_heads=True, cached_bytes=1152.0)
    times = {
        (dcp, context): decode_time(
            dense, H100, Batch(sequences=8, context_tokens=context), layout=Layout(tp=8, dcp=dcp)
        ).seconds
        for dcp in (1, 8)
        for context in (1_000, 1_000_000)
    }
    assert times[8, 1_000] > times[1, 1_000]
    assert times[8, 1_000_000] < times[1, 1_000_000]


def test_context_parallel_decode_is_slower_for_one_sequence() -> None:
    # arXiv:2411.01783 Table 7: 46.3, 60.2, 71.3 ms for CP 1, 2, 4
    work = layers(126, kv_heads=8, query_heads=128, cached_bytes=4096.0)
    one, two, four = (
        decode_time(work, H100, Batch(sequences=1, context_tokens=128_000), layout=Layout(tp=8, pcp=n)).seconds
        for n in (1, 2, 4)
    )
    assert one < two < four


@given(st.integers(1, 64), st.integers(0, 500_000), st.integers(1, 500_000), st.sampled_from([1, 2, 4, 8]))
def test_a_step_never_gets_shorter_with_context(sequences: int, context: int, more: int, tp: int) -> None:
    layout = Layout(tp=tp)
    near = decode_time(LLAMA_8B, H100, Batch(sequences=sequences, context_tokens=context), layout=layout)
    far = decode_time(LLAMA_8B, H100, Batch(sequences=sequences, context_tokens=context + more), layout=layout)
    assert far.seconds >= near.seconds


def test_no_sequences_are_refused() -> None:
    with pytest.raises(UsageError, match="no sequences"):
        decode_time(LLAMA_8B, H100, Batch(sequences=0, context_tokens=1))


def test_accepted_tokens_are_the_geometric_sum() -> None:
    # 1 + 0.5 + 0.25 + 0.125
    assert accepted_per_step(0.5, 3) == 1.875
    assert accepted_per_step(1.0, 4) == 5
    assert accepted_per_step(0.0, 4) == 1
    with pytest.raises(UsageError, match="no probability"):
        accepted_per_step(1.5, 3)


def test_a_windowed_draft_gains_more_as_the_context_grows_and_a_full_one_does_not() -> None:
    def small(**attention: object) -> ModelWork:
        values = {"query_heads": 16, "kv_heads": 8, "score_dim": 128, "value_dim": 128, "cached_bytes": 4096.0}
        layer = LayerWork(
            dense_elements=20_000_000, dense_bytes=4e7,
            attention=AttentionWork(**(values | attention)),  # type: ignore[arg-type]
        )  # fmt: skip
        return ModelWork(name="draft", layers=(layer,) * 4, hidden_size=1024)

    def gain(draft: ModelWork, context: int) -> float:
        proposed = Draft(work=draft, tokens=3, acceptance=0.7)
        return speculative_gain(LLAMA_8B, proposed, H100, Batch(sequences=8, context_tokens=context)).gain

    windowed = [gain(small(window=1_024), n) for n in (1_000, 30_000, 120_000)]
    assert windowed == sorted(windowed)
    assert gain(small(cached_bytes=32 * 4096.0), 120_000) < gain(small(window=1_024), 120_000)


def test_a_draft_brings_its_own_prefill_and_cache() -> None:
    draft = layers(2, kv_heads=8, cached_bytes=4096.0)
    found = speculative_gain(
        LLAMA_8B, Draft(work=draft, tokens=2, acceptance=0.8), H100, Batch(sequences=1, context_tokens=10_000)
    )
    assert found.draft_cache_bytes == 2 * 4096.0 * 10_000
    assert found.draft_prefill.seconds > 0
    assert found.accepted_per_step == pytest.approx(1 + 0.8 + 0.64)
    assert found.gain > 1
    assert found.pays_back_tokens is not None
    assert found.pays_back_tokens * (found.plain.seconds - found.seconds_per_token) == pytest.approx(
        found.draft_prefill.seconds
    )
