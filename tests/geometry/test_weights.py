"""Bytes of weights, whole and per rank."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from longproof.domain.measure import Measured, Provenance, Reading, Unknown
from longproof.geometry.model import ModelGeometry
from longproof.geometry.sharding import stage_bounds, stage_partition
from longproof.geometry.weights import ByteEstimate, model_weight_bytes, part_bits, stage_weight_bytes

Read = Callable[..., ModelGeometry]
GIB = 1 << 30


def best(reading: Reading[ByteEstimate]) -> ByteEstimate:
    assert isinstance(reading, Measured)
    return reading.value


def test_plain_model_weighs_its_parameters_times_two(model: Read) -> None:
    # 8,030,261,248 x 2
    assert best(model_weight_bytes(model("meta-llama/Llama-3.1-8B-Instruct"))).best_bytes == 16_060_522_496


@pytest.mark.parametrize(
    ("name", "tp", "logged_gib"),
    [
        # "Model loading took … GiB" of vLLM 0.19 on one rank
        ("meta-llama/Llama-3.1-8B-Instruct", 1, 14.99),
        ("meta-llama/Llama-3.1-8B-Instruct", 2, 7.51),
        ("meta-llama/Llama-3.1-8B-Instruct", 4, 3.77),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", 2, 43.51),
        ("Qwen/Qwen2.5-7B-Instruct", 1, 14.25),
        ("Qwen/Qwen2.5-7B-Instruct", 4, 3.55),
    ],
)
def test_rank_weighs_what_vllm_logs(model: Read, name: str, tp: int, logged_gib: float) -> None:
    geometry = model(name)
    rank = best(
        stage_weight_bytes(
            geometry, first_layer=0, last_layer=len(geometry.layers), attention_ranks=tp, mlp_ranks=tp, expert_ranks=tp
        )
    )
    assert rank.low_bytes <= logged_gib * GIB <= rank.high_bytes


def test_pipeline_stage_with_the_embedding_weighs_more(model: Read) -> None:
    geometry = model("meta-llama/Llama-3.1-8B-Instruct")
    stages = [
        best(stage_weight_bytes(geometry, first_layer=first, last_layer=last)).best_bytes
        for first, last in stage_bounds(stage_partition(32, 4))
    ]
    # embedding and head are 128256 x 4096 x 2 B each, on the first and the last stage
    assert stages[0] - stages[1] == pytest.approx(128256 * 4096 * 2 + 4096 * 2)
    assert sum(stages) == 16_060_522_496


def test_tied_head_is_a_second_copy_when_stages_part_it(model: Read) -> None:
    geometry = model("HuggingFaceTB/SmolLM2-135M")
    parts = [
        best(stage_weight_bytes(geometry, first_layer=first, last_layer=last)).best_bytes
        for first, last in ((0, 20), (20, 30))
    ]
    # 134,515,008 parameters, and the embedding's 49152 x 576 again
    assert sum(parts) == 2 * (134_515_008 + 49152 * 576)


def test_file_size_wins_over_the_count(model: Read) -> None:
    said = Measured(value=123, provenance=Provenance.REPORTED, source="index")
    geometry = replace(model("meta-llama/Llama-3.1-8B-Instruct"), weight_file_bytes=said)
    estimate = best(model_weight_bytes(geometry))
    assert (estimate.best_bytes, estimate.low_bytes, estimate.high_bytes) == (123, 123, 123)


def test_stages_scale_to_the_file_size(model: Read) -> None:
    said = Measured(value=8_030_261_248, provenance=Provenance.REPORTED, source="index")  # half of bf16
    geometry = replace(model("meta-llama/Llama-3.1-8B-Instruct"), weight_file_bytes=said)
    half = best(stage_weight_bytes(geometry, first_layer=0, last_layer=16)).best_bytes
    plain = best(
        stage_weight_bytes(replace(geometry, weight_file_bytes=Unknown(reason="no")), first_layer=0, last_layer=16)
    )
    assert half == pytest.approx(plain.best_bytes / 2, abs=1)


def test_mxfp4_experts_weigh_four_and_a_quarter_bits(model: Read) -> None:
    geometry = model("openai/gpt-oss-20b", quantization_config={"quant_method": "mxfp4"})
    estimate = best(model_weight_bytes(geometry))
    # the published safetensors are 13.76 GB
    assert estimate.best_bytes == pytest.approx(13.76e9, rel=0.02)
    assert estimate.low_bytes < estimate.best_bytes < estimate.high_bytes


def test_fp8_checkpoint_of_671_billion_weighs_about_as_many_bytes(model: Read) -> None:
    fp8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    estimate = best(model_weight_bytes(model("deepseek-ai/DeepSeek-R1", quantization_config=fp8)))
    # 671 GB and the bf16 parts: embedding, head, norms, routers, down-projections
    assert estimate.best_bytes == pytest.approx(674e9, rel=0.01)


def test_weights_are_unknown_with_a_reason_when_a_size_is_missing(model: Read) -> None:
    found = model_weight_bytes(model("Laguna"))
    assert isinstance(found, Unknown)
    assert "hidden_size" in found.reason


def test_fp4_experts_beside_an_fp8_rest_are_counted_apart(model: Read) -> None:
    estimate = best(model_weight_bytes(model("deepseek-ai/DeepSeek-V4-Flash")))
    # 43 x 256 experts of 3 x 4096 x 2048 weights at 4.25 bits are 147.2 GB; the rest 9.2 GB
    assert estimate.best_bytes == pytest.approx(156.4e9, rel=0.01)


def test_commonest_format_of_each_part_counts_when_formats_are_mixed(model: Read) -> None:
    layers = {
        "model.layers.0.self_attn.q_proj": {"quant_algo": "FP8"},
        "model.layers.0.mlp.up_proj": {"quant_algo": "W4A16_NVFP4"},
        "model.layers.1.mlp.up_proj": {"quant_algo": "W4A16_NVFP4"},
        "model.layers.2.mlp.up_proj": {"quant_algo": "FP8"},
    }
    mixed = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": layers}
    geometry = model("meta-llama/Llama-3.1-8B-Instruct", quantization_config=mixed)
    assert [part_bits(geometry.quantization, part) for part in ("attention", "mlp", "experts")] == [8.0, 4.5, None]
    # attention 1.342 B x 1, MLP 5.637 B x 0.5625, embedding, head and norms 1.051 B x 2
    attention, mlp = 32 * (2 * 4096 * 4096 + 2 * 4096 * 1024), 32 * 3 * 4096 * 14336
    expected = attention + mlp * 0.5625 + (8_030_261_248 - attention - mlp) * 2
    assert best(model_weight_bytes(geometry)).best_bytes == pytest.approx(expected, abs=1)


def test_bytes_are_unknown_when_a_method_does_not_say_its_bits(model: Read) -> None:
    found = model_weight_bytes(model("meta-llama/Llama-3.1-8B-Instruct", quantization_config={"quant_method": "novel"}))
    assert isinstance(found, Unknown)
    assert "how many bits novel" in found.reason
