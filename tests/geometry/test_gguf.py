"""GGUF files, written with gguf-py for the test."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from longproof.domain.measure import value_or_none
from longproof.errors import GeometryError, ModelFileError
from longproof.geometry.dtypes import KvDtype
from longproof.geometry.footprint import growth_bytes_per_token
from longproof.geometry.gguf import GgufTensor, gguf_geometry, read_gguf
from longproof.geometry.kinds import GroupedAttention, LatentAttention
from longproof.geometry.model import ModelGeometry
from longproof.geometry.read import read_geometry


def describe(architecture: str, tensors: tuple[GgufTensor, ...] = (), **keys: Any) -> ModelGeometry:
    """The geometry of metadata whose keys are given without the architecture; __ stands for a dot."""
    metadata: dict[str, Any] = {"general.architecture": architecture}
    metadata |= {f"{architecture}.{key.replace('__', '.')}": value for key, value in keys.items()}
    return gguf_geometry(metadata, tensors, name="m", source="test")


def kinds(geometry: ModelGeometry) -> Counter[str]:
    return Counter("+".join(layer.kinds) for layer in geometry.layers)


HEADS = {"attention__head_count": 8, "attention__head_count_kv": 2, "embedding_length": 512, "block_count": 4}


def write(path: Path, *, block_count: int = 2) -> None:
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_block_count(block_count)
    writer.add_context_length(4096)
    writer.add_embedding_length(64)
    writer.add_feed_forward_length(128)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_vocab_size(100)
    writer.add_file_type(1)
    for name, shape in (
        ("token_embd.weight", (100, 64)),
        ("output_norm.weight", (64,)),
        *((f"blk.{i}.{part}.weight", size) for i in range(block_count) for part, size in (
            ("attn_q", (64, 64)), ("attn_k", (32, 64)), ("attn_v", (32, 64)), ("attn_output", (64, 64)),
            ("ffn_gate", (128, 64)), ("ffn_up", (128, 64)), ("ffn_down", (64, 128)),
            ("attn_norm", (64,)), ("ffn_norm", (64,)),
        )),
    ):  # fmt: skip
        writer.add_tensor(name, np.zeros(shape, dtype=np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_file_gives_layers_weights_and_limits(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write(path)
    geometry = read_geometry(path)
    attention = geometry.layers[0].attention
    assert isinstance(attention, GroupedAttention)
    assert (attention.kv_heads, attention.k_dim) == (2, 16)
    # 6400 + 64 outside; 2 x (4096 + 2048 + 2048 + 4096 + 3 x 8192 + 128) inside
    assert geometry.total_parameters() == 6_464 + 2 * 36_992
    assert value_or_none(geometry.weight_file_bytes) == 2 * (6_464 + 2 * 36_992)
    weights = geometry.layers[1].weights
    assert weights is not None
    assert (weights.attention, weights.kv_projection, weights.mlp, weights.replicated) == (12_288, 4_096, 24_576, 128)
    assert (value_or_none(geometry.max_position_tokens), value_or_none(geometry.vocab_size)) == (4096, 100)
    assert geometry.tied_embeddings
    assert geometry.quantization is None
    # 2 layers x 2 heads x 16 x 2 x 2 B
    assert growth_bytes_per_token(geometry.layers, KvDtype.FLOAT16) == 256


def test_cut_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write(path)
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(ModelFileError, match="not a usable GGUF"):
        read_gguf(path)


def test_other_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_text("hello, this is not a model at all, whatever its name says")
    with pytest.raises(ModelFileError, match="not a usable GGUF"):
        read_gguf(path)
    with pytest.raises(ModelFileError, match="there is no model file"):
        read_gguf(tmp_path / "n.gguf")


def test_missing_part_of_a_split_model_is_named(tmp_path: Path) -> None:
    write(tmp_path / "m-00001-of-00002.gguf")
    with pytest.raises(ModelFileError, match="m-00002-of-00002"):
        read_gguf(tmp_path / "m-00001-of-00002.gguf")


def test_missing_keys_are_named() -> None:
    with pytest.raises(GeometryError) as refusal:
        describe("llama", block_count=4)
    assert set(refusal.value.missing) == {"llama.embedding_length", "llama.attention.head_count"}


@pytest.mark.parametrize(
    ("architecture", "expected"),
    [
        ("gemma2", {"sliding": 2, "full": 2}),
        ("gpt-oss", {"sliding": 2, "full": 2}),
        ("cohere2", {"sliding": 3, "full": 1}),
        ("phi3", {"full": 4}),  # llama.cpp does not apply it
    ],
)
def test_window_applies_as_llamacpp_has_it(architecture: str, expected: dict[str, int]) -> None:
    assert kinds(describe(architecture, **HEADS, attention__sliding_window=128)) == expected


def test_stated_pattern_wins_over_the_architectures_own() -> None:
    pattern = [True, False, True, True]
    found = describe("gemma3", **HEADS, attention__sliding_window=128, attention__sliding_window_pattern=pattern)
    assert [layer.kinds[0].value for layer in found.layers] == ["sliding", "full", "sliding", "sliding"]


def test_window_without_a_rule_is_refused() -> None:
    with pytest.raises(GeometryError, match="no rule says which layers"):
        describe("brand-new", **HEADS, attention__sliding_window=128)


def test_llama4_is_chunked() -> None:
    assert kinds(describe("llama4", **HEADS)) == {"chunked": 3, "full": 1}


MLA = {
    **HEADS,
    "attention__kv_lora_rank": 512,
    "rope__dimension_count": 64,
    "attention__key_length": 576,
    "attention__value_length": 512,
}


def test_mla_caches_the_latent_alone() -> None:
    found = describe("deepseek2", **MLA, attention__key_length_mla=192, attention__value_length_mla=128)
    attention = found.layers[0].attention
    assert isinstance(attention, LatentAttention)
    assert (attention.latent_dim, attention.nope_dim, attention.v_dim) == (576, 128, 128)


def test_mla_file_from_before_llamacpp_had_it_caches_all_heads() -> None:
    found = describe("deepseek2", **{**MLA, "attention__key_length": 192, "attention__value_length": 128})
    attention = found.layers[0].attention
    assert isinstance(attention, GroupedAttention)
    assert (attention.k_dim, attention.v_dim) == (192, 128)
    assert any("predates MLA" in note for note in found.notes)


SSM = {"ssm__conv_kernel": 4, "ssm__inner_size": 1024, "ssm__state_size": 128, "ssm__time_step_rank": 8}


def test_hybrids_recur_where_they_have_no_kv_heads() -> None:
    granite = {**HEADS, "attention__head_count_kv": [0, 0, 2, 0], "feed_forward_length": 64, "ssm__group_count": 1}
    assert [layer.kinds[0].value for layer in describe("granitehybrid", **granite, **SSM).layers] == [
        "mamba2", "mamba2", "full", "mamba2"
    ]  # fmt: skip
    nemotron = {**granite, "feed_forward_length": [0, 64, 0, 0]}
    assert [layer.kinds[0].value for layer in describe("nemotron_h", **nemotron, **SSM).layers] == [
        "mamba2", "none", "full", "mamba2"
    ]  # fmt: skip


def test_qwen35_recurs_by_interval_and_keeps_f32() -> None:
    found = describe("qwen35", **HEADS, **SSM, ssm__group_count=4, full_attention_interval=4)
    assert kinds(found) == {"gdn": 3, "full": 1}
    state = found.layers[0].state
    assert state is not None
    # (4 - 1) x (1024 + 2 x 4 x 128) and 1024 x 128
    assert (state.conv_elements, state.ssm_elements, state.ssm_dtype) == (6144, 131_072, "float32")


def test_draft_layers_are_counted_apart() -> None:
    found = describe("glm4moe", **HEADS, nextn_predict_layers=1)
    assert (len(found.layers), len(found.drafts)) == (3, 1)


def test_shared_layers_read_the_last_of_their_kind() -> None:
    pattern = [True, False, True, False]
    found = describe(
        "gemma4",
        **HEADS,
        attention__sliding_window=128,
        attention__sliding_window_pattern=pattern,
        attention__shared_kv_layers=2,
    )
    assert [layer.kv_source for layer in found.layers] == [None, None, 0, 1]


def test_experts_of_a_token_are_counted() -> None:
    tensors = tuple(GgufTensor(name=f"blk.{i}.ffn_up_exps.weight", elements=800, size_bytes=450) for i in range(4))
    found = describe("qwen3moe", tensors, **HEADS, expert_count=8, expert_used_count=2, expert_feed_forward_length=16)
    assert (found.total_parameters(), found.active_parameters()) == (3200, 800)
