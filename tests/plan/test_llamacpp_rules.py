"""llama.cpp's caches, against the buffer lines real servers printed (MiB with two decimals)."""

from __future__ import annotations

import pytest

from longproof.domain.measure import Measured, Unknown
from longproof.errors import UsageError
from longproof.geometry.model import Layer, ModelGeometry
from longproof.plan.capacity import (
    Capacity,
    Launch,
    Layout,
    LlamacppOptions,
    PlanEngine,
    RankBudget,
    Speculation,
    same_budget,
)
from longproof.plan.llamacpp_rules import cut_cells, plan_llamacpp
from longproof.testing import geometries as models

MIB = 2**20


def launch(**fields: object) -> Launch:
    return Launch(engine=PlanEngine.LLAMACPP, **fields)  # type: ignore[arg-type]


def mib(capacity: Capacity, name: str) -> float:
    return round(sum(p.total_bytes for s in capacity.stages for p in s.pools if p.name == name) / MIB, 2)


def units(capacity: Capacity, name: str) -> int:
    return next(p.units for p in capacity.stages[0].pools if p.name == name)


@pytest.mark.parametrize(
    ("model", "context", "kv_dtype", "logged"),
    [
        (models.uniform(32, 8, 128), 32_768, "f16", 4096.0),  # Mistral-7B
        (models.uniform(94, 4, 128), 16_384, "q8_0", 1598.0),  # Qwen3-235B: 34 B per 32 elements
        (models.uniform(32, 32, 96), 4096, "f16", 1536.0),  # Phi-3-mini, all heads
        (models.deepseek_r1(), 32_768, "q8_0", 1166.62),  # one vector of 576, no V: 612 B
        (models.uniform(30, 3, 64), 8192, "f16", 180.0),  # SmolLM2-135M
        (models.uniform(30, 3, 64), 8192, "q8_0", 95.62),
    ],
)
def test_cache_is_cells_times_rows_when_every_layer_is_full(
    model: ModelGeometry, context: int, kv_dtype: str, logged: float
) -> None:
    plan = plan_llamacpp(model, launch(max_model_len_tokens=context, max_num_seqs=1, kv_dtype=kv_dtype))
    assert mib(plan, "kv") == pytest.approx(logged, abs=0.005001)


def test_layers_split_over_devices_when_a_partition_is_given() -> None:
    one = launch(
        max_model_len_tokens=4096, max_num_seqs=1, layout=Layout(pp=2, partition=(41, 39))
    )  # Llama-70B: 656 + 624 MiB
    plan = plan_llamacpp(models.uniform(80, 8, 128), one)
    assert [stage.pools[0].total_bytes / MIB for stage in plan.stages] == [656.0, 624.0]


@pytest.mark.parametrize(
    ("micro_batch", "context", "kv_dtype", "full", "cells", "swa"),
    [
        (128, 8192, "q8_0", 102.0, 256, 3.19),  # 128 + 128
        (2048, 131_072, "f16", 3072.0, 2304, 54.0),  # 128 + 2048 = 2176 → 2304
    ],
)
def test_window_cells_follow_the_micro_batch_when_windows_alternate(
    micro_batch: int, context: int, kv_dtype: str, full: float, cells: int, swa: float
) -> None:
    one = launch(
        max_model_len_tokens=context,
        max_num_seqs=1,
        kv_dtype=kv_dtype,
        llamacpp=LlamacppOptions(micro_batch_tokens=micro_batch),
    )
    plan = plan_llamacpp(models.gpt_oss_20b(), one)
    assert (mib(plan, "kv"), units(plan, "swa"), mib(plan, "swa")) == (full, cells, swa)


def test_window_cells_count_all_slots_when_the_cache_is_unified() -> None:
    # Gemma-4-12B: 1024 x 4 slots + 2048 = 6144 cells of 40 layers x 2 x 8 x 256 x 2 B; 8 full layers of 1 x 512
    layers = [
        Layer(index=i, attention=models.full(1, 512) if i % 6 == 5 else models.sliding(8, 256, 1024)) for i in range(48)
    ]
    one = launch(
        max_model_len_tokens=8192, max_num_seqs=4, llamacpp=LlamacppOptions(micro_batch_tokens=2048, unified=True)
    )
    plan = plan_llamacpp(models.geometry(layers, architecture=""), one)
    assert (mib(plan, "kv"), units(plan, "swa"), mib(plan, "swa")) == (128.0, 6144, 1920.0)


def test_windows_are_not_longer_than_the_slot_when_slots_are_short() -> None:
    # Gemma-3-270m, 1024 over 4 slots: 256 cells each for full and windowed layers alike; 18 layers x 1 KiB x 1024
    plan = plan_llamacpp(models.gemma3_270m(), launch(max_model_len_tokens=1024, max_num_seqs=4))
    assert mib(plan, "kv") + mib(plan, "swa") == 18.0


def test_swa_full_keeps_every_token_when_asked() -> None:
    one = launch(max_model_len_tokens=8192, max_num_seqs=1, llamacpp=LlamacppOptions(swa_full=True))
    plan = plan_llamacpp(models.gemma3_270m(), one)
    assert (mib(plan, "kv"), mib(plan, "swa")) == (24.0, 120.0)
    usual = plan_llamacpp(models.gemma3_270m(), launch(max_model_len_tokens=8192, max_num_seqs=1))
    assert (mib(usual, "kv"), mib(usual, "swa")) == (24.0, 15.0)  # 512 + 512 = 1024 cells


def test_windowed_layers_may_keep_another_type_when_the_build_does() -> None:
    one = launch(max_model_len_tokens=8192, max_num_seqs=1, kv_dtype="q8_0", llamacpp=LlamacppOptions(swa_dtype="f16"))
    plan = plan_llamacpp(models.gemma3_270m(), one)
    assert (mib(plan, "kv"), mib(plan, "swa")) == (12.75, 15.0)


def test_a_window_on_every_layer_is_ignored_and_said_when_it_is_uniform() -> None:
    layers = [Layer(index=i, attention=models.sliding(32, 96, 2047)) for i in range(32)]
    plan = plan_llamacpp(
        models.geometry(layers, architecture="phi3", window=4096), launch(max_model_len_tokens=4096, max_num_seqs=1)
    )
    assert mib(plan, "kv") == 1536.0
    assert any("does not apply it" in note for note in plan.notes)


@pytest.mark.parametrize(
    ("model", "slots", "snapshots", "r", "s"),
    [
        (models.qwen36_27b(heads=32, layers=32), 4, 0, 9.0, 192.0),  # Qwen3.5-9B
        (models.qwen36_27b(heads=32, layers=40, kv_heads=2), 2, 0, 5.62, 120.0),  # Qwen3.6-35B-A3B, 125.62 together
        (models.qwen36_27b(), 1, 2, 16.88, 432.0),  # 27B with two snapshots: as three sequences, 448.88
        (models.falcon_h1(), 1, 0, 0.98, 72.0),
    ],
)
def test_states_are_f32_rows_per_slot_and_snapshot_when_layers_are_recurrent(
    model: ModelGeometry, slots: int, snapshots: int, r: float, s: float
) -> None:
    one = launch(max_model_len_tokens=8192, max_num_seqs=slots, llamacpp=LlamacppOptions(recurrent_snapshots=snapshots))
    plan = plan_llamacpp(model, one)
    assert (mib(plan, "rs_r"), mib(plan, "rs_s")) == (pytest.approx(r, abs=0.0051), s)


@pytest.mark.parametrize(
    ("context", "slots", "unified", "slot", "total"),
    [
        (1024, 3, None, 512, 1536),  # 341 → 512, three of them: more than was asked
        (1024, 4, None, 256, 1024),
        (8192, 4, None, 2048, 8192),
        (8192, None, None, 8192, 8192),  # automatic: four slots share one cache
        (8192, 4, True, 8192, 8192),
        (8000, 1, None, 8192, 8192),
    ],
)
def test_cells_are_padded_per_slot_when_they_are_cut(
    context: int, slots: int | None, unified: bool | None, slot: int, total: int
) -> None:
    cells = cut_cells(context, slots, unified)
    assert (cells.slot_tokens, cells.total) == (slot, total)


def test_concurrency_differs_when_slots_share_the_cache() -> None:
    model = models.uniform(30, 3, 64)
    apart = plan_llamacpp(model, launch(max_model_len_tokens=8192, max_num_seqs=4))
    shared = plan_llamacpp(
        model, launch(max_model_len_tokens=8192, max_num_seqs=4, llamacpp=LlamacppOptions(unified=True))
    )
    assert isinstance(apart.concurrency, Measured)
    assert isinstance(shared.concurrency, Measured)
    assert (apart.concurrency.value, apart.need.request_tokens) == (4, 2048)
    assert (shared.concurrency.value, shared.need.request_tokens) == (1, 8192)


def test_slots_are_cut_to_the_trained_window_when_they_exceed_it() -> None:
    plan = plan_llamacpp(models.uniform(30, 3, 64, window=8192), launch(max_model_len_tokens=32_768, max_num_seqs=1))
    assert isinstance(plan.longest_request_tokens, Measured)
    assert plan.longest_request_tokens.value == 8192
    assert any("trained" in note for note in plan.notes)


def test_mtp_adds_a_cached_layer_when_it_drafts() -> None:
    base = models.qwen36_27b()
    model = models.geometry(
        list(base.layers), drafts=(Layer(index=64, attention=models.full(4, 256)),), architecture="qwen3_5_text"
    )
    plain = plan_llamacpp(model, launch(max_model_len_tokens=8192, max_num_seqs=1))
    drafting = plan_llamacpp(
        model,
        launch(max_model_len_tokens=8192, max_num_seqs=1, speculation=Speculation(method="mtp", tokens=2)),
    )
    assert (mib(plain, "kv"), mib(drafting, "kv")) == (512.0, 544.0)


def test_sparse_mla_keeps_index_keys_in_the_cache_type_when_served() -> None:
    # 128 elements of q8_0 are 136 B, next to 612 B of latent
    plan = plan_llamacpp(models.glm5(), launch(max_model_len_tokens=1024, max_num_seqs=1, kv_dtype="q8_0"))
    assert [p.bytes_per_unit for p in plan.stages[0].pools] == [78 * 612, 78 * 136]


def test_start_is_refused_with_the_amount_when_a_device_is_too_small() -> None:
    one = launch(max_model_len_tokens=8192, max_num_seqs=1, layout=Layout(pp=2))
    model = models.uniform(30, 3, 64)  # 90 MiB on each of two devices
    enough = plan_llamacpp(model, one, same_budget(one.layout, 90 * MIB, "test"))
    assert enough.refusal is None
    budgets = (
        RankBudget(stage=0, rank=0, available_bytes=90 * MIB, source="test"),
        RankBudget(stage=1, rank=0, available_bytes=90 * MIB - 1, source="test"),
    )
    short = plan_llamacpp(model, one, budgets)
    assert short.refusal is not None
    assert (short.refusal.stage, short.refusal.needed_bytes) == (1, 90 * MIB)
    assert short.binding == 1
    assert isinstance(short.tokens, Unknown)


def test_a_window_is_asked_for_when_nothing_names_one() -> None:
    with pytest.raises(UsageError, match="names a window"):
        plan_llamacpp(models.uniform(2, 1, 64, window=None), launch())
    with pytest.raises(UsageError, match="holds nothing"):
        cut_cells(0, 1, None)
