"""vLLM capacity: the figures of four servers that were really started, and rules worked out by hand."""

from __future__ import annotations

import pytest

from longproof.domain.measure import Measured, Unknown
from longproof.errors import LayoutError, UsageError
from longproof.geometry.kinds import GroupedAttention, LatentAttention, LayerKind
from longproof.geometry.model import Layer, ModelGeometry
from longproof.plan.capacity import Capacity, Device, Launch, Layout, PlanEngine, RankBudget, VllmOptions, same_budget
from longproof.plan.vllm_capacity import plan_vllm

GIB = 1 << 30


def full(count: int, *, heads: int, kv_heads: int, dim: int) -> tuple[Layer, ...]:
    attention = GroupedAttention(kind=LayerKind.FULL, query_heads=heads, kv_heads=kv_heads, k_dim=dim, v_dim=dim)
    return tuple(Layer(index=i, attention=attention) for i in range(count))


def every_sixth_full(count: int, *, heads: int, kv_heads: int, dim: int, window: int) -> tuple[Layer, ...]:
    def layer(index: int) -> Layer:
        is_full = index % 6 == 5
        return Layer(
            index=index,
            attention=GroupedAttention(
                kind=LayerKind.FULL if is_full else LayerKind.SLIDING,
                query_heads=heads,
                kv_heads=kv_heads,
                k_dim=dim,
                v_dim=dim,
                window_tokens=None if is_full else window,
            ),
        )

    return tuple(layer(i) for i in range(count))


def model(layers: tuple[Layer, ...]) -> ModelGeometry:
    return ModelGeometry(name="m", architecture="llama", source="test", layers=layers)


# 30 layers, 3 KV heads of 64: 128 tokens x 3 x 128 x 2 B = 98,304 B a page
SMALL = model(full(30, heads=9, kv_heads=3, dim=64))
# 18 layers, every sixth full, 1 KV head of 256: 128 x 512 x 2 B = 131,072 B a page
WINDOWED = model(every_sixth_full(18, heads=4, kv_heads=1, dim=256, window=512))


def plan(geometry: ModelGeometry, *, length: int, budget: int | None = GIB, **changes: object) -> Capacity:
    layout = changes.pop("layout", Layout())
    assert isinstance(layout, Layout)
    launch = Launch(
        engine=PlanEngine.VLLM,
        **{"version": "0.32.0", "device": Device.CPU, **changes},  # type: ignore[arg-type]
        layout=layout,
        max_model_len_tokens=length,
    )
    budgets = () if budget is None else same_budget(layout, budget, "test")
    return plan_vllm(geometry, launch, budgets)


def test_tokens_match_a_real_start_when_all_layers_are_full() -> None:
    # 2^30 // (98,304 x 30) = 364 blocks x 128 = 46,592 tokens; 8,192 tokens take 64 blocks: 364 / 64 = 5.6875
    found = plan(SMALL, length=8192)

    assert found.report.blocks == 364
    assert found.report.tokens == 46_592
    assert found.report.concurrency == pytest.approx(5.6875)
    assert found.report.misleading is None
    assert found.need.blocks == 64


def test_the_longest_stage_decides_when_a_pipeline_is_uneven() -> None:
    # 20 layers: 2^30 // (98,304 x 20) = 546 blocks = 69,888 tokens; 10 layers would give 1,092
    found = plan(SMALL, length=8192, layout=Layout(pp=2, partition=(20, 10)))

    assert found.report.tokens == 69_888
    assert found.report.concurrency == pytest.approx(546 / 64)
    assert found.binding == 0
    assert [stage.pools[0].units for stage in found.stages] == [546, 1092]
    assert [(s.first_layer, s.last_layer) for s in found.stages] == [(0, 20), (20, 30)]


def test_windows_shrink_the_need_when_the_request_is_long() -> None:
    # 3 full, 15 sliding: 6 groups of 3; 2^30 // (131,072 x 3) = 2,730 blocks.
    # 32,768 tokens: 256 + 5 x (ceil((511 + 2,048) / 128) + 1) = 256 + 5 x 21 = 361 → 7.5623x → 247,802 tokens
    found = plan(WINDOWED, length=32_768)

    assert found.report.blocks == 2730
    assert found.need.blocks == 361
    assert found.report.tokens == 247_802
    assert [(g.kind, g.layers, g.blocks) for g in found.need.groups] == [("sliding", 3, 21)] * 5 + [("full", 3, 256)]
    assert found.report.misleading is not None


def test_tensor_parallelism_gains_nothing_when_there_is_one_kv_head() -> None:
    # The head is replicated: 2,730 blocks again. Two workers double max_num_batched_tokens to 4,096:
    # 8,192 tokens take 64 + 5 x (ceil((511 + 4,096) / 128) + 1) = 64 + 5 x 37 = 249 → 10.9639x → 89,815 tokens
    found = plan(WINDOWED, length=8192, layout=Layout(tp=2))

    assert found.report.blocks == 2730
    assert found.need.blocks == 249
    assert found.report.tokens == 89_815


def test_the_poorest_rank_decides_when_ranks_differ() -> None:
    launch = Launch(
        engine=PlanEngine.VLLM, device=Device.CPU, layout=Layout(tp=3), max_model_len_tokens=8192, version="0.32"
    )
    # One KV head a rank: 32,768 B x 30 = 983,040 B a block; 98,304,000 B are exactly 100 blocks
    budgets = tuple(
        RankBudget(stage=0, rank=rank, available_bytes=size, source="test")
        for rank, size in enumerate((GIB, 98_304_000, GIB))
    )

    found = plan_vllm(SMALL, launch, budgets)

    assert found.report.blocks == 100
    assert found.stages[found.binding or 0].rank == 1


def test_the_log_line_understates_a_hybrid_when_the_release_is_old() -> None:
    # 0.19 divides: 2,730 // 6 groups x 128 = 58,240 tokens, although 7.56 requests of 32,768 fit together
    found = plan(WINDOWED, length=32_768, version="0.19.0")

    assert found.report.tokens == 58_240
    assert isinstance(found.tokens, Measured)
    assert found.tokens.value == 247_802
    assert found.report.misleading is not None


def test_the_start_is_refused_when_one_request_needs_more_than_a_rank_has() -> None:
    # 8,192 tokens need 64 blocks of 2,949,120 B = 188,743,680 B; 100 MB hold 33 blocks, one of them the null block:
    # 32 usable blocks x 128 = 4,096 tokens
    found = plan(SMALL, length=8192, budget=100_000_000)

    assert found.refusal is not None
    assert found.refusal.needed_bytes == 188_743_680
    assert found.refusal.available_bytes == 100_000_000 - 2_949_120
    assert found.refusal.longest_request_tokens == 4096
    assert isinstance(found.longest_request_tokens, Measured)
    assert found.longest_request_tokens.value == 4096


def test_the_null_block_is_forgotten_when_the_release_is_before_its_fix() -> None:
    # Exactly 64 blocks: 0.25 starts (and can never run the request), 0.32 refuses
    budget = 64 * 2_949_120

    assert plan(SMALL, length=8192, budget=budget, version="0.25.0").refusal is None
    assert plan(SMALL, length=8192, budget=budget, version="0.32.0").refusal is not None


def test_the_whole_model_is_charged_to_one_stage_when_the_release_has_that_defect() -> None:
    # 15 of 30 layers per stage need 94,371,840 B; 0.15 compares the whole model's 188,743,680 B with one stage
    layout = Layout(pp=2)
    budget = 120_000_000

    defect = plan(SMALL, length=8192, budget=budget, layout=layout, version="0.15.2")
    fixed = plan(SMALL, length=8192, budget=budget, layout=layout, version="0.16.0")

    assert defect.refusal is not None
    assert defect.refusal.needed_bytes == 188_743_680
    assert "defect" in defect.refusal.rule
    assert fixed.refusal is None


def test_need_is_answered_when_no_memory_is_known() -> None:
    found = plan(SMALL, length=8192, budget=None)

    assert found.need.total_bytes == 64 * 2_949_120
    assert isinstance(found.concurrency, Unknown)
    assert found.binding is None


def test_a_block_override_replaces_the_memory_when_given() -> None:
    found = plan(SMALL, length=2048, budget=GIB, vllm=VllmOptions(blocks_override=40))

    assert found.report.blocks == 40
    assert found.report.tokens == 5120


def test_context_parallelism_divides_a_latent_when_ranks_share_the_tokens() -> None:
    # MLA is replicated over TP; with DCP 4, 202,752 tokens take ceil(50,688 / 64) = 792 blocks.
    # The old token line multiplies by 4.
    latent = LatentAttention(query_heads=64, kv_lora_rank=512, rope_dim=64, nope_dim=128, v_dim=128)
    geometry = model(tuple(Layer(index=i, attention=latent) for i in range(61)))

    found = plan(
        geometry,
        length=202_752,
        device=Device.CUDA,
        version="0.19.0",
        block_size_tokens=64,
        layout=Layout(tp=8, dcp=4),
        budget=61 * 64 * 1152 * 1000,
    )

    assert found.need.blocks == 792
    assert found.report.blocks == 1000
    assert found.report.tokens == 1000 * 64 * 4


def test_context_parallelism_is_refused_when_a_layer_slides() -> None:
    with pytest.raises(LayoutError) as caught:
        plan(WINDOWED, length=8192, layout=Layout(tp=4, dcp=2), device=Device.CUDA)

    assert caught.value.rule == "DCP not support sliding window."


def test_context_parallelism_is_refused_when_kv_heads_are_not_replicated() -> None:
    geometry = model(full(4, heads=8, kv_heads=8, dim=64))

    with pytest.raises(LayoutError, match="8 KV heads"):
        plan(geometry, length=8192, layout=Layout(tp=8, dcp=2), device=Device.CUDA)


def test_memory_of_a_missing_stage_is_asked_for_when_a_pipeline_has_two() -> None:
    launch = Launch(engine=PlanEngine.VLLM, layout=Layout(pp=2), max_model_len_tokens=8192)
    only_first = (RankBudget(stage=0, rank=0, available_bytes=GIB, source="test"),)

    with pytest.raises(UsageError, match="2"):
        plan_vllm(SMALL, launch, only_first)


def test_a_length_is_asked_for_when_neither_launch_nor_model_has_one() -> None:
    launch = Launch(engine=PlanEngine.VLLM)

    with pytest.raises(UsageError, match="how long"):
        plan_vllm(SMALL, launch, ())
