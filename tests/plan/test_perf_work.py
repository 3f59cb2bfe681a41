"""Multiply-adds and bytes of layers, against sums worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longproof.errors import UsageError
from longproof.geometry.dtypes import KvDtype
from longproof.geometry.hf import read_hf
from longproof.geometry.kinds import GroupedAttention
from longproof.hardware.catalogue import find_device
from longproof.plan.perf_estimate import Precision
from longproof.plan.perf_model import WeightBytes, precision_of, weight_bytes_of, work_of
from longproof.plan.perf_work import AttentionWork, LayerWork

LLAMA_8B = {
    "model_type": "llama", "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
    "head_dim": 128, "hidden_size": 4096, "vocab_size": 128256, "intermediate_size": 14336,
    "tie_word_embeddings": False, "max_position_embeddings": 131072, "torch_dtype": "bfloat16",
}  # fmt: skip


def attention(**changes: object) -> AttentionWork:
    values = {"query_heads": 4, "kv_heads": 2, "score_dim": 8, "value_dim": 8, "cached_bytes": 64.0} | changes
    return AttentionWork(**values)  # type: ignore[arg-type]


def test_attention_counts_the_causal_half_when_nothing_is_cached() -> None:
    # pairs = 10 * 10 / 2 = 50; 2 * 4 heads * (8 + 8) * 50 = 6,400
    assert attention().pairs(10, 0) == 50
    assert attention().flops(10, 0) == 6_400


def test_attention_counts_the_whole_prefix_when_it_is_cached() -> None:
    # 10 new on 90 cached: 10 * 90 + 50 = 950
    assert attention().pairs(10, 90) == 950


def test_a_window_limits_pairs_and_reads() -> None:
    # window 4: tokens 1 to 4 rise (4 * 4 / 2 = 8), the other 6 see 4 keys each: 8 + 24 = 32
    windowed = attention(window=4)
    assert windowed.pairs(10, 0) == 32
    assert windowed.pairs(10, 100) == 40
    assert windowed.read_bytes(1_000) == 4 * 64
    assert not windowed.grows


def test_a_sparse_layer_reads_its_picks_and_every_index_key() -> None:
    # top 100 of 1,000 keys: 100 * 64 B, and 1,000 index keys of 132 B
    sparse = attention(top_k=100, index_dim=256, index_bytes=132.0)
    assert sparse.read_bytes(1_000) == 100 * 64 + 1_000 * 132
    # main pairs are capped at 100: 100^2/2 + 900 * 100 = 95,000; the indexer sees 1,000^2/2 = 500,000
    assert sparse.flops(1_000, 0) == 2 * 4 * 16 * 95_000 + 2 * 256 * 500_000


def test_a_compressed_layer_reads_its_window_and_every_nth_entry() -> None:
    # window 128 and one entry per 4 tokens: 128 + 4,096 / 4 = 1,152 keys
    assert attention(window=128, stride=4).keys(4_096) == 1_152
    assert attention(window=128, stride=4).grows


@given(st.integers(1, 5_000), st.integers(0, 5_000), st.integers(1, 3_000))
def test_pairs_of_a_prompt_in_two_chunks_are_those_of_one(new: int, cached: int, window: int) -> None:
    for a in (attention(), attention(window=window), attention(top_k=window)):
        half = new // 2
        both = a.pairs(half, cached) + a.pairs(new - half, cached + half) if half else a.pairs(new, cached)
        assert both == pytest.approx(a.pairs(new, cached))


def test_experts_touched_rise_with_the_batch() -> None:
    # 8 of 256: one token touches 8/256; 16 tokens 1 - (1 - 1/32)^16 = 0.398
    layer = LayerWork(dense_elements=0, dense_bytes=0, expert_elements=256, experts=256, experts_per_token=8)
    assert layer.touched_share(1) == pytest.approx(1 / 32)
    assert layer.touched_share(16) == pytest.approx(0.3983, abs=1e-4)
    assert layer.active_expert_elements == 8


def test_llama_8b_asks_what_its_card_says() -> None:
    work = work_of(read_hf(LLAMA_8B, name="8b"))
    # 8 KV heads * (128 + 128) * 2 B * 32 layers = 131,072 B per token
    assert work.cached_token_bytes() == 131_072
    # per layer 4096*(4096 + 2*1024 + 4096) + 3*4096*14336 = 218,103,808; * 32 + norms; head 128256 * 4096
    matrices = 32 * (4096 * (4096 + 2 * 1024 + 4096) + 3 * 4096 * 14336)
    assert work.weight_flops(1_000) == pytest.approx(2 * 1_000 * matrices, rel=1e-3)
    assert work.weight_bytes(1) == pytest.approx(2 * (matrices + 128_256 * 4_096), rel=1e-3)
    # 2 T^2 D L with D = 4096: 2 * 1e6 * 4096 * 32
    assert work.attention_flops(1_000) == 2 * 1_000**2 * 4_096 * 32


def test_an_fp8_cache_halves_the_bytes_and_given_weights_count() -> None:
    work = work_of(read_hf(LLAMA_8B, name="8b"), KvDtype.FP8, WeightBytes.same(1.0))
    assert work.cached_token_bytes() == 65_536
    assert work.weight_bytes(1) == pytest.approx(7.5e9, rel=0.01)


def test_quantised_checkpoints_weigh_their_bits() -> None:
    mxfp4 = LLAMA_8B | {"quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["self_attn"]}}
    each = weight_bytes_of(read_hf(mxfp4, name="mx"))
    # MXFP4: 4 bits and one scale byte per 32 weights = 4.25 bits, experts only
    assert each.experts == pytest.approx(4.25 / 8)
    assert each.attention == 2.0


def test_weight_only_formats_multiply_in_bf16() -> None:
    assert precision_of("awq", find_device("h100")) == Precision()
    assert precision_of("fp8", find_device("h100")) == Precision(weights="fp8", attention="fp8")
    assert precision_of("nvfp4", find_device("b200")).weights == "fp4"
    assert precision_of("nvfp4", find_device("rtx-pro-6000")) == Precision()


def test_a_layer_without_known_weights_or_query_heads_is_refused() -> None:
    geometry = read_hf(LLAMA_8B, name="8b")
    first = geometry.layers[0]
    assert isinstance(first.attention, GroupedAttention)
    for broken in (replace(first, weights=None), replace(first, attention=replace(first.attention, query_heads=None))):
        with pytest.raises(UsageError, match="its speed cannot be predicted"):
            work_of(replace(geometry, layers=(broken,)))
