"""Parameter counts against what the models' makers publish."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from longproof.geometry.model import ModelGeometry

Read = Callable[..., ModelGeometry]


@pytest.mark.parametrize(
    ("name", "total"),
    [
        # exact: the number of elements in the published safetensors
        ("meta-llama/Llama-3.1-8B-Instruct", 8_030_261_248),
        ("meta-llama/Llama-3.3-70B-Instruct", 70_553_706_496),
        ("meta-llama/Llama-3.1-405B", 405_853_388_800),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", 46_702_792_704),
        ("HuggingFaceTB/SmolLM2-135M", 134_515_008),
        ("Qwen/Qwen2.5-7B-Instruct", 7_615_616_512),
        ("Qwen/Qwen3-235B-A22B-FP8", 235_093_634_560),
        ("google/gemma-3-270m", 268_098_176),
        ("google/gemma-2-9b-it", 9_241_705_984),
        ("openai/gpt-oss-20b", 20_914_757_184),
        ("openai/gpt-oss-120b", 116_829_156_672),
    ],
)
def test_total_is_exact(model: Read, name: str, total: int) -> None:
    assert model(name).total_parameters() == total


@pytest.mark.parametrize(
    ("name", "total", "active"),
    [
        # in billions, as published, to the last published digit
        ("deepseek-ai/DeepSeek-R1", 671, 37),
        ("Qwen/Qwen3-235B-A22B-FP8", 235, 22),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", 46.7, 12.9),
        ("nvidia/Kimi-K2.6-NVFP4", 1026, 32),
        ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", 31.6, 3.6),
        ("zai-org/GLM-5.1", 744, 41),
        ("meta-llama/Llama-4-Scout-17B-16E-Instruct", 107.8, 17.2),
        ("tencent/Hunyuan-A13B-Instruct", 80, 13),  # lists with one entry per layer
    ],
)
def test_total_and_active_are_within_the_published_digits(model: Read, name: str, total: float, active: float) -> None:
    geometry = model(name)
    counted, passed = geometry.total_parameters(), geometry.active_parameters()
    assert counted is not None
    assert passed is not None
    assert counted / 1e9 == pytest.approx(total, rel=0.005)
    assert passed / 1e9 == pytest.approx(active, rel=0.035)


def test_active_is_unknown_when_the_experts_of_a_token_are_not_stated(model: Read) -> None:
    geometry = model("mistralai/Mixtral-8x7B-Instruct-v0.1", num_experts_per_tok=None, model_type="mixtral-like")
    assert geometry.total_parameters() == 46_702_792_704
    assert geometry.active_parameters() is None


def test_deepseek_v4_counts_what_its_name_says(model: Read) -> None:
    flash = model("deepseek-ai/DeepSeek-V4-Flash")
    total, active = flash.total_parameters(), flash.active_parameters()
    assert total is not None
    assert active is not None
    # published as 284 B with 13 B active; the count includes embedding and head
    assert total / 1e9 == pytest.approx(284, rel=0.002)
    assert 13 < active / 1e9 < 14


def test_count_is_unknown_when_a_size_is_missing(model: Read) -> None:
    assert model("Laguna").total_parameters() is None
    assert model("deepseek-ai/DeepSeek-V4-Flash", o_lora_rank=None).total_parameters() is None


def test_parts_of_a_layer_add_up(model: Read) -> None:
    weights = model("meta-llama/Llama-3.1-8B-Instruct").layers[0].weights
    assert weights is not None
    # q and o 4096 x 4096, k and v 4096 x 1024 each; gate, up, down 4096 x 14336; two norms
    assert (weights.attention, weights.kv_projection) == (2 * 4096 * 4096 + 2 * 4096 * 1024, 2 * 4096 * 1024)
    assert (weights.mlp, weights.replicated) == (3 * 4096 * 14336, 2 * 4096)
