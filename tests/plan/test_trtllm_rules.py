"""TensorRT-LLM's blocks, against what real servers logged."""

from __future__ import annotations

import pytest

from longproof.domain.measure import Measured, Unknown
from longproof.geometry.model import ModelGeometry
from longproof.geometry.read import read_geometry
from longproof.plan.capacity import Launch, Layout, PlanEngine, RankBudget, same_budget
from longproof.plan.trtllm_rules import plan_trtllm
from longproof.testing import geometries as models

GIB = 2**30


def launch(**fields: object) -> Launch:
    return Launch(engine=PlanEngine.TENSORRT_LLM, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("model", "block", "gib", "blocks"),
    [
        (models.uniform(32, 32, 128), 128, 64.75, 1036),  # Llama-2-7B: 69,524,783,104 B / 67,108,864 exactly
        (models.uniform(22, 4, 64), 32, 78.3, 116_617),  # 22,528 B per token; 0.005 GiB are 7.4 blocks
        (models.uniform(32, 8, 128), 64, 26.91, 3445),  # 131,072 B per token; 0.005 GiB are 0.6 blocks
    ],
)
def test_blocks_are_bytes_over_block_when_layers_are_full(
    model: ModelGeometry, block: int, gib: float, blocks: int
) -> None:
    one = launch(block_size_tokens=block)
    low, high = (
        plan_trtllm(model, one, same_budget(one.layout, int((gib + off) * GIB), "log")) for off in (-0.005, 0.005)
    )
    assert low.report.blocks is not None
    assert high.report.blocks is not None
    assert low.report.blocks <= blocks <= high.report.blocks
    exact = plan_trtllm(model, one, same_budget(one.layout, int(gib * GIB), "log"))
    assert exact.report.blocks is not None
    assert abs(exact.report.blocks - blocks) <= 8


def test_the_smallest_rank_decides_when_ranks_differ() -> None:
    one = launch(layout=Layout(tp=2), block_size_tokens=32, max_model_len_tokens=4096)
    per_block = 32 * 22 * 2 * 64 * 2 * 2  # 2 of 4 heads, K and V, 2 B
    budgets = tuple(
        RankBudget(stage=0, rank=rank, available_bytes=per_block * n, source="test") for rank, n in ((0, 500), (1, 300))
    )
    plan = plan_trtllm(models.uniform(22, 4, 64), one, budgets)
    assert (plan.report.blocks, plan.binding) == (300, 1)
    assert isinstance(plan.concurrency, Measured)
    assert plan.concurrency.value == 300 / 128  # 4096 / 32 = 128 blocks per request
    assert plan.refusal is None


def test_a_request_longer_than_the_pool_is_named_when_it_does_not_fit() -> None:
    one = launch(block_size_tokens=32, max_model_len_tokens=4096)
    budget = same_budget(one.layout, 32 * 22 * 4 * 64 * 2 * 2 * 100, "test")
    plan = plan_trtllm(models.uniform(22, 4, 64), one, budget)
    assert plan.refusal is not None
    assert plan.refusal.longest_request_tokens == 3200


def test_capacity_is_unknown_when_states_share_the_memory() -> None:
    one = launch()
    plan = plan_trtllm(models.qwen36_27b(), one, same_budget(one.layout, GIB, "test"))
    assert isinstance(plan.tokens, Unknown)
    assert "mamba_state_config" in plan.tokens.reason
    assert isinstance(plan_trtllm(models.uniform(2, 2, 64), one).tokens, Unknown)


def test_windows_count_as_full_and_it_is_said_when_layers_have_them() -> None:
    one = launch()
    plan = plan_trtllm(models.gpt_oss_20b(), one, same_budget(one.layout, GIB, "test"))
    assert plan.stages[0].pools[0].bytes_per_unit == 32 * 24 * 2 * 8 * 64 * 2
    assert any("max_attention_window" in note for note in plan.notes)


def test_a_stage_without_a_cache_limits_nothing_when_layers_skip_attention() -> None:
    # Nemotron-NAS: layer 0 has 64 / 8 = 8 KV heads of 128, layer 1 no attention: 8 x 128 x 2 x 2 B = 4,096 B a token
    block = {"no_op": False, "replace_with_linear": False}
    model = read_geometry(
        {
            "model_type": "nemotron-nas", "hidden_size": 8192, "num_attention_heads": 64, "num_hidden_layers": 2,
            "vocab_size": 100, "max_position_embeddings": 4096, "torch_dtype": "bfloat16",
            "block_configs": [
                {"attention": {**block, "n_heads_in_group": 8}, "ffn": {**block, "ffn_mult": 1.0}},
                {"attention": {"no_op": True}, "ffn": {**block, "ffn_mult": 1.0}},
            ],
        }
    )  # fmt: skip
    one = launch(layout=Layout(pp=2), block_size_tokens=32)
    plan = plan_trtllm(model, one, same_budget(one.layout, 4096 * 32 * 1000, "test"))
    assert (plan.report.blocks, plan.binding) == (1000, 0)
