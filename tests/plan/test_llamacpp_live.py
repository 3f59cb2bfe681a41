"""The plan of a llama.cpp launch is made before the server starts; then a real one starts and its log is compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFReader, GGUFValueType, GGUFWriter

from longproof.domain.measure import Measured
from longproof.engines.embedded_log import CacheKind, LlamaCppLogFacts, parse_llamacpp_log
from longproof.geometry.gguf import read_gguf
from longproof.plan.capacity import Capacity, Launch, LlamacppOptions, PlanEngine
from longproof.plan.llamacpp_rules import plan_llamacpp

pytestmark = pytest.mark.engine

_LOGGED_BYTES = 5_243
"""Half of the last digit of a logged size: 0.005 MiB."""
_POOLS = {CacheKind.FULL: "kv", CacheKind.SLIDING: "swa"}


def planned(model: Path, context: int, slots: int, kv_dtype: str, unified: bool, micro_batch: int = 512) -> Capacity:
    """`context` tokens for each slot, or for all together when the cache is unified."""
    launch = Launch(
        engine=PlanEngine.LLAMACPP,
        kv_dtype=kv_dtype,
        max_model_len_tokens=context if unified else context * slots,
        max_num_seqs=slots,
        llamacpp=LlamacppOptions(unified=unified, micro_batch_tokens=micro_batch),
    )
    return plan_llamacpp(read_gguf(model), launch)


def assert_same(plan: Capacity, facts: LlamaCppLogFacts) -> None:
    pools = {pool.name: pool for pool in plan.stages[0].pools}
    caches = [cache for cache in facts.kv_caches if cache.layers > 0]
    assert {_POOLS[cache.kind] for cache in caches} == set(pools)
    for cache in caches:
        pool = pools[_POOLS[cache.kind]]
        assert (pool.units, pool.layers) == (cache.cells, cache.layers)
        assert abs(pool.total_bytes - cache.size_bytes) <= _LOGGED_BYTES
    assert plan.need.request_tokens == facts.slot_tokens
    assert isinstance(plan.tokens, Measured)
    assert plan.tokens.value == facts.kv_capacity_tokens


@pytest.mark.parametrize(
    ("context", "slots", "kv_dtype", "unified"),
    [(1024, 1, "f16", False), (512, 3, "q8_0", False), (700, 3, "f16", True)],
)
async def test_cache_is_as_planned_when_the_demo_model_starts(
    demo_model: Path, embedded_engine: Any, tmp_path: Path, context: int, slots: int, kv_dtype: str, unified: bool
) -> None:
    plan = planned(demo_model, context, slots, kv_dtype, unified)
    await embedded_engine(context_tokens=context, slots=slots, k_type=kv_dtype, v_type=kv_dtype, kv_unified=unified)
    assert_same(plan, parse_llamacpp_log((tmp_path / "engine-0.log").read_text()))


@pytest.mark.parametrize(("slots", "unified"), [(2, False), (2, True)])
async def test_windows_are_as_planned_when_a_sliding_window_model_starts(
    demo_model: Path, embedded_engine: Any, tmp_path: Path, slots: int, unified: bool
) -> None:
    model = tmp_path / "windows.gguf"
    write_sliding_model(model, demo_model)
    plan = planned(model, 2048, slots, "f16", unified, micro_batch=128)
    swa = next(pool for pool in plan.stages[0].pools if pool.name == "swa")
    # window 300: one stream of pad256(2 x 300 + 128) = 768 cells, or two of pad256(300 + 128) = 512
    assert swa.units == (768 if unified else 1024)
    await embedded_engine(
        model=model, context_tokens=2048, slots=slots, kv_unified=unified, ubatch_tokens=128, batch_tokens=128
    )
    assert_same(plan, parse_llamacpp_log((tmp_path / "engine-0.log").read_text()))


def write_sliding_model(path: Path, donor: Path) -> None:
    """A Gemma-3 of random weights: 6 layers, every sixth full, window 300, the donor's tokenizer."""
    layers, width, inner, heads, kv_heads, head = 6, 64, 128, 4, 2, 32
    writer = GGUFWriter(path, "gemma3")
    writer.add_block_count(layers)
    writer.add_context_length(4096)
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(head)
    writer.add_value_length(head)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(1e6)
    writer.add_sliding_window(300)
    reader = GGUFReader(donor)
    for field in reader.fields.values():
        if field.name.startswith("tokenizer."):
            kind = field.types[0]
            item = field.types[1] if kind is GGUFValueType.ARRAY else None
            writer.add_key_value(field.name, field.contents(), kind, item)
    rng = np.random.default_rng(0)
    vocabulary = len(reader.fields["tokenizer.ggml.tokens"].data)

    def add(name: str, *shape: int) -> None:
        kind = np.float32 if len(shape) == 1 else np.float16
        writer.add_tensor(f"{name}.weight", (rng.standard_normal(shape) * 0.02).astype(kind))

    add("token_embd", vocabulary, width)
    add("output_norm", width)
    for index in range(layers):
        layer = f"blk.{index}"
        for norm in ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"):
            add(f"{layer}.{norm}", width)
        add(f"{layer}.attn_q_norm", head)
        add(f"{layer}.attn_k_norm", head)
        add(f"{layer}.attn_q", heads * head, width)
        add(f"{layer}.attn_k", kv_heads * head, width)
        add(f"{layer}.attn_v", kv_heads * head, width)
        add(f"{layer}.attn_output", width, heads * head)
        add(f"{layer}.ffn_gate", inner, width)
        add(f"{layer}.ffn_up", inner, width)
        add(f"{layer}.ffn_down", width, inner)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
