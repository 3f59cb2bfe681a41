"""What a config may look like, and what is refused."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from longproof.domain.measure import Measured, Provenance, value_or_none
from longproof.errors import GeometryError, ModelFileError
from longproof.geometry.hf import geometry_of, read_hf
from longproof.geometry.kinds import GroupedAttention, LatentAttention, LayerKind
from longproof.geometry.model import ModelGeometry
from longproof.geometry.read import read_geometry

Read = Callable[..., ModelGeometry]
Config = Callable[..., dict[str, Any]]
PLAIN = {"num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2, "hidden_size": 512}


def read(values: dict[str, Any]) -> ModelGeometry:
    return geometry_of(values, name="m", source="test")


def kinds(geometry: ModelGeometry) -> list[str]:
    return ["+".join(layer.kinds) for layer in geometry.layers]


def test_unknown_architecture_is_read_when_the_standard_fields_suffice() -> None:
    geometry = read({**PLAIN, "model_type": "brand-new"})
    attention = geometry.layers[0].attention
    assert isinstance(attention, GroupedAttention)
    # 512 / 8 = 64
    assert (len(geometry.layers), attention.kv_heads, attention.k_dim, attention.v_dim) == (4, 2, 64, 64)


def test_every_missing_field_is_named_when_nothing_can_be_read() -> None:
    with pytest.raises(GeometryError) as refusal:
        read({"model_type": "brand-new"})
    assert refusal.value.missing == ("num_hidden_layers", "num_attention_heads", "hidden_size")
    assert refusal.value.exit_code == 2
    assert "num_hidden_layers, num_attention_heads, hidden_size" in refusal.value.problem


def test_head_dimension_is_asked_for_when_nothing_gives_it() -> None:
    with pytest.raises(GeometryError) as refusal:
        read({"num_hidden_layers": 4, "num_key_value_heads": 2})
    assert refusal.value.missing == ("head_dim (or hidden_size and num_attention_heads)",)


def test_model_is_never_sized_by_default_when_its_type_is_known() -> None:
    with pytest.raises(GeometryError) as refusal:
        read({"model_type": "llama"})
    assert "num_hidden_layers" in refusal.value.missing


@pytest.mark.parametrize(
    "field",
    [
        {"compress_every": 4, "window_of_attention": 128},
        {"kv_share_groups": 2},
        {"num_memory_slots": 16},
        {"mamba_something": 8},
    ],
)
def test_field_that_may_change_the_cache_is_named_when_no_rule_covers_it(field: dict[str, int]) -> None:
    with pytest.raises(GeometryError) as refusal:
        read({**PLAIN, "model_type": "brand-new", **field})
    assert refusal.value.missing == tuple(field)


def test_architecture_with_another_memory_is_refused_by_name() -> None:
    with pytest.raises(GeometryError, match="RG-LRU"):
        read({**PLAIN, "model_type": "recurrent_gemma"})


def test_number_that_is_none_is_refused_by_name() -> None:
    with pytest.raises(GeometryError, match="num_hidden_layers is 'many', not a whole number"):
        read({**PLAIN, "num_hidden_layers": "many"})


def test_list_of_kinds_with_another_length_is_refused() -> None:
    with pytest.raises(GeometryError, match="4 layers and describes the kind of 3"):
        read({**PLAIN, "layer_types": ["full_attention"] * 3})


def test_unknown_kind_of_layer_is_refused_by_name() -> None:
    with pytest.raises(GeometryError, match="holographic"):
        read({**PLAIN, "layer_types": ["full_attention"] * 3 + ["holographic"]})


def test_mla_ignores_head_fields_that_lie(model: Read) -> None:
    true = model("deepseek-ai/DeepSeek-R1")
    lying = model("deepseek-ai/DeepSeek-R1", num_key_value_heads=3, head_dim=17)
    assert lying.layers == true.layers
    attention = true.layers[0].attention
    assert isinstance(attention, LatentAttention)
    assert attention.latent_dim == 576


def test_window_is_off_when_the_config_switches_it_off(model: Read) -> None:
    on = model("Qwen/Qwen2.5-7B-Instruct", use_sliding_window=True, max_window_layers=20, sliding_window=4096)
    assert Counter(kinds(on)) == {"full": 20, "sliding": 8}
    assert Counter(kinds(model("Qwen/Qwen2.5-7B-Instruct"))) == {"full": 28}


def test_window_holds_for_all_layers_when_no_pattern_is_stated() -> None:
    geometry = read({**PLAIN, "sliding_window": 4096})
    assert kinds(geometry) == ["sliding"] * 4
    assert any("every layer slides" in note for note in geometry.notes)


def test_default_window_of_mistral_is_not_assumed() -> None:
    assert kinds(read({**PLAIN, "model_type": "mistral", "vocab_size": 32000})) == ["full"] * 4


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"sliding_window_pattern": "every 4th full"}, "sssf"),
        ({"sliding_window_pattern": "alternating"}, "sfsf"),
        ({"sliding_window_pattern": "alternating: even layers full, odd sliding"}, "fsfs"),
        ({"sliding_window_pattern": "all sliding"}, "ssss"),
        ({"layer_types": "3 sliding_attention and 1 full_attention"}, "sssf"),
        ({"layer_types": "full at layers 0,3 (0-based); the other 2 sliding"}, "fssf"),
        ({"sliding_window_pattern": "3 sliding : 1 full"}, "sssf"),
        ({"layer_types": "2 full, 2 sliding"}, "sfsf"),
        ({"sliding_window_pattern": 2}, "sfsf"),
        ({"model_type": "exaone4", "sliding_window_pattern": "LLLG"}, "sssf"),
        ({"model_type": "cohere2"}, "sssf"),
        ({"hybrid_layer_pattern": [1, 0, 1, 0]}, "sfsf"),
    ],
)
def test_sliding_patterns_are_understood(changes: dict[str, Any], expected: str) -> None:
    geometry = read({**PLAIN, "sliding_window": 128, **changes})
    assert "".join(kind[0] for kind in kinds(geometry)) == expected


def test_description_that_contradicts_itself_is_refused() -> None:
    with pytest.raises(GeometryError, match="makes 2, not 3"):
        read({**PLAIN, "sliding_window": 128, "sliding_window_pattern": "every 2nd full (3 full, 1 sliding)"})


def test_description_that_says_nothing_is_refused() -> None:
    with pytest.raises(GeometryError, match="'now and then' is not understood"):
        read({**PLAIN, "sliding_window": 128, "sliding_window_pattern": "now and then"})


MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 128, "mamba_d_state": 64, "mamba_n_groups": 1, "mamba_d_conv": 4}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"model_type": "bamba", "attn_layer_indices": [1, 3], **MAMBA}, ["mamba2", "full"] * 2),
        (
            {"model_type": "granitemoehybrid", "layer_types": ["mamba", "attention"] * 2, **MAMBA},
            ["mamba2", "full"] * 2,
        ),
        (
            {"model_type": "jamba", "attn_layer_period": 2, "attn_layer_offset": 1, "mamba_d_state": 16},
            ["mamba1", "full"] * 2,
        ),
        ({"model_type": "minimax_text_01", "attn_type_list": [0, 0, 0, 1]}, ["linear"] * 3 + ["full"]),
        (
            {"model_type": "lfm2", "full_attn_idxs": [2], "conv_L_cache": 3},
            ["conv", "conv", "full", "conv"],
        ),
        (
            {
                "model_type": "kimi_linear",
                "kv_lora_rank": 512,
                "qk_rope_head_dim": 64,
                "linear_attn_config": {
                    "full_attn_layers": [4],
                    "kda_layers": [1, 2, 3],
                    "num_heads": 8,
                    "head_dim": 128,
                    "short_conv_kernel_size": 4,
                },
            },
            ["kda"] * 3 + ["mla"],
        ),
    ],
)
def test_hybrids_are_understood(changes: dict[str, Any], expected: list[str]) -> None:
    assert kinds(read({**PLAIN, **changes})) == expected


def test_missing_state_sizes_are_named() -> None:
    with pytest.raises(GeometryError, match="recurrent state"):
        read({**PLAIN, "layer_types": ["linear_attention", "full_attention"] * 2})


def test_language_model_is_found_when_nested(config: Config) -> None:
    inner = config("google/gemma-3-270m", tie_word_embeddings=None, torch_dtype=None, vocab_size=None)
    outer = {
        "model_type": "gemma3",
        "text_config": inner,
        "vision_config": {"hidden_size": 1152},
        "torch_dtype": "float16",
    }
    geometry = geometry_of(outer, name="m", source="test")
    assert Counter(kinds(geometry)) == {"sliding": 15, "full": 3}
    assert (value_or_none(geometry.dtype), geometry.architecture) == ("float16", "gemma3_text")
    # transformers' default vocabulary of gemma3_text, marked as assumed
    assert isinstance(geometry.vocab_size, Measured)
    assert (geometry.vocab_size.value, geometry.vocab_size.provenance) == (262_208, Provenance.ASSUMED)
    assert any("vision_config" in note for note in geometry.notes)


def test_sparse_nested_config_takes_what_transformers_assumes() -> None:
    # all that Gemma-3-4b's own text_config says
    text = {"model_type": "gemma3_text", "hidden_size": 2560, "num_hidden_layers": 34, "sliding_window": 1024}
    geometry = read({"model_type": "gemma3", "text_config": text})
    attention = geometry.layers[5].attention
    assert isinstance(attention, GroupedAttention)
    assert (attention.query_heads, attention.kv_heads, attention.k_dim) == (8, 4, 256)
    assert any("head_dim 256" in note for note in geometry.notes)


def test_thinker_of_an_omni_model_is_the_language_model(config: Config) -> None:
    text = config("Qwen/Qwen2.5-7B-Instruct")
    geometry = read({"model_type": "qwen2_5_omni", "thinker_config": {"text_config": text, "audio_config": {"x": 1}}})
    assert len(geometry.layers) == 28


def test_rope_scaling_is_kept(model: Read) -> None:
    rope = model("meta-llama/Llama-3.1-405B").rope
    assert rope is not None
    assert (rope.kind, rope.factor, rope.original_tokens) == ("llama3", 8.0, 8192)


@pytest.mark.parametrize(
    ("quantization", "bits", "group", "parts"),
    [
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, 8, 16_384, 3),
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, 4, 128, 3),
        ({"quant_method": "gptq", "bits": 4, "group_size": -1}, 4, None, 3),
        ({"quant_method": "mxfp4"}, 4, 32, 1),
        (
            {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head", "model.layers.*.self_attn*"]},
            4,
            16,
            2,
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": {"weights": {"num_bits": 8, "strategy": "channel", "type": "int"}}},
            },
            8,
            None,
            3,
        ),
    ],
)
def test_quantised_checkpoints_are_understood(
    model: Read, quantization: dict[str, Any], bits: float, group: int | None, parts: int
) -> None:
    found = model("meta-llama/Llama-3.1-8B-Instruct", quantization_config=quantization).quantization
    assert found is not None
    assert (found.bits, found.group_size, len(found.parts)) == (bits, group, parts)


def test_checkpoint_may_ask_for_an_fp8_cache(model: Read) -> None:
    asks = {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_scheme": {"num_bits": 8, "type": "float"}}
    found = model("meta-llama/Llama-3.1-8B-Instruct", quantization_config=asks).quantization
    assert found is not None
    assert found.kv_dtype == "fp8"


def test_directory_is_read_with_the_size_in_its_index(config: Config, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config("HuggingFaceTB/SmolLM2-135M")))
    (tmp_path / "model.safetensors.index.json").write_text('{"metadata": {"total_size": 269060552}}')
    geometry = read_geometry(tmp_path)
    assert value_or_none(geometry.weight_file_bytes) == 269_060_552
    assert read_hf(tmp_path / "config.json").layers == geometry.layers


@pytest.mark.parametrize(
    ("content", "words"), [("{", "is not JSON"), ("[1]", "is not a JSON object"), ("\xff", "is not JSON")]
)
def test_file_that_is_no_config_is_refused(tmp_path: Path, content: str, words: str) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(ModelFileError, match=words):
        read_geometry(tmp_path)


def test_path_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="there is no"):
        read_geometry(tmp_path / "nothing.json")
    with pytest.raises(ModelFileError, match=r"neither a config\.json nor"):
        read_geometry(tmp_path)


def test_cross_attention_layers_keep_the_encoders_keys() -> None:
    mllama = {**PLAIN, "model_type": "mllama_text_model", "cross_attention_layers": [1], "vocab_size": 10}
    assert kinds(read(mllama)) == ["full", "cross", "full", "full"]
    whisper = read(
        {
            "model_type": "whisper",
            "is_encoder_decoder": True,
            "decoder_layers": 4,
            "decoder_attention_heads": 6,
            "d_model": 384,
            "max_source_positions": 1500,
        }
    )
    assert kinds(whisper) == ["full+cross"] * 4
    assert whisper.encoder is not None
    assert value_or_none(whisper.encoder.tokens) == 1500


def test_layers_without_attention_cache_nothing() -> None:
    blocks = [{"attention": {"n_heads_in_group": 4}}, {"attention": {"no_op": True}}] * 2
    geometry = read({**PLAIN, "model_type": "nemotron-nas", "num_key_value_heads": None, "block_configs": blocks})
    assert kinds(geometry) == ["full", "none"] * 2
    attention = geometry.layers[0].attention
    assert isinstance(attention, GroupedAttention)
    assert attention.kv_heads == 2  # 8 query heads, 4 per group
    assert geometry.layers[1].kinds == (LayerKind.NONE,)


def test_window_that_no_request_can_outgrow_hides_nothing() -> None:
    geometry = read({**PLAIN, "sliding_window": 4096, "max_position_embeddings": 4096})
    assert kinds(geometry) == ["full"] * 4
    assert any("hides nothing" in note for note in geometry.notes)


def test_pattern_of_the_configuration_class_is_used_when_none_is_listed() -> None:
    geometry = read({**PLAIN, "model_type": "cwm", "sliding_window": 8192, "max_position_embeddings": 131_072})
    assert kinds(geometry) == ["full", "sliding", "sliding", "sliding"]
    assert any("as transformers has it" in note for note in geometry.notes)


def test_list_is_asked_for_when_the_configuration_class_has_no_regular_pattern() -> None:
    with pytest.raises(GeometryError) as refusal:
        read({**PLAIN, "model_type": "mimo_v2_flash", "sliding_window": 128})
    assert refusal.value.missing == ("layer_types",)


def test_quantisation_beside_the_config_is_read(config: Config, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config("meta-llama/Llama-3.1-8B-Instruct")))
    said = {"quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "group_size": 16}}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(said))
    found = read_geometry(tmp_path).quantization
    assert found is not None
    assert (found.method, found.bits, found.group_size, found.kv_dtype) == ("modelopt", 4, 16, "fp8")


def test_layers_that_share_across_pairs_read_the_one_before(model: Read) -> None:
    shared = model("tencent/Hunyuan-A13B-Instruct", use_cla=True)
    assert [layer.kv_source for layer in shared.layers[:4]] == [None, 0, None, 2]
