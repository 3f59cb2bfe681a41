"""Bytes per token of published models, worked out by hand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from longproof.geometry.dtypes import KvDtype
from longproof.geometry.footprint import growth_bytes_per_token, kv_bytes, layer_kv_bytes, state_bytes
from longproof.geometry.hf import geometry_of
from longproof.geometry.kinds import CompressedAttention, GroupedAttention, LatentAttention, LayerKind
from longproof.geometry.model import ModelGeometry

Read = Callable[..., ModelGeometry]
BF16 = KvDtype.BFLOAT16


def kinds(model: ModelGeometry) -> Counter[str]:
    return Counter("+".join(layer.kinds) for layer in model.layers)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", 131_072),  # 32 x 8 x 128 x 2 x 2
        ("meta-llama/Llama-3.3-70B-Instruct", 327_680),  # 80 x 8 x 128 x 2 x 2
        ("meta-llama/Llama-3.1-405B", 516_096),  # 126 x 8 x 128 x 2 x 2
        ("HuggingFaceTB/SmolLM2-135M", 23_040),  # 30 x 3 x 64 x 2 x 2
        ("Qwen/Qwen2.5-7B-Instruct", 57_344),  # 28 x 4 x 128 x 2 x 2; its sliding_window is switched off
        ("deepseek-ai/DeepSeek-R1", 70_272),  # 61 x 576 elements x 2
        ("nvidia/Kimi-K2.6-NVFP4", 70_272),  # num_key_value_heads 64 does not enter
        ("deepseek-ai/DeepSeek-V3.2", 78_324),  # 61 x (1152 + 132)
        ("zai-org/GLM-5.1", 100_152),  # 78 x (1152 + 132); head_dim 64 does not enter
        ("microsoft/phi-2", 327_680),  # 32 x 32 x 80 x 2 x 2
        ("Qwen/Qwen3.5-35B-A3B", 20_480),  # 10 of 40 layers x 2 x 256 x 2 x 2
        ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", 6_144),  # 6 of 52 layers x 2 x 128 x 2 x 2
        ("XiaomiMiMo/MiMo-V2-Flash", 23_040),  # 9 full layers x 4 x (192 + 128) x 2
        ("google/gemma-3-27b-it", 81_920),  # 10 full layers x 16 x 128 x 2 x 2
        ("nvidia/Gemma-4-31B-IT-NVFP4", 81_920),  # 10 full layers x 4 x 512 x 2 x 2: K and V stored although equal
        ("MiniMaxAI/MiniMax-M3", 137_472),  # 60 x 4 x 128 x 2 x 2 = 122,880, and 57 index keys x 128 x 2 = 14,592
    ],
)
def test_growth_per_token_in_bf16(model: Read, name: str, expected: int) -> None:
    assert growth_bytes_per_token(model(name).layers, BF16) == expected


def test_deepseek_v3_caches_35136_elements_per_token(model: Read) -> None:
    layers = model("deepseek-ai/DeepSeek-R1").layers
    # fp8 without scales is one byte an element: 61 x 576
    assert growth_bytes_per_token(layers, KvDtype.FP8) == 35_136


def test_glm_52_marks_the_layers_that_share_their_choice(model: Read) -> None:
    layers = model("zai-org/GLM-5.2").layers
    shares = [isinstance(a, LatentAttention) and a.indexer is not None and a.indexer.shares_top_k for a in
              (layer.attention for layer in layers)]  # fmt: skip
    # full at 0, 1, 2, 6, 10, …, 74: 3 + 18 = 21 of 78 pick for themselves
    assert shares.count(False) == 21
    assert shares[:7] == [False, False, False, True, True, True, False]


def test_glm_52_schedule_is_the_same_when_only_its_frequency_is_stated(model: Read) -> None:
    listed = model("zai-org/GLM-5.2")
    by_rule = model("zai-org/GLM-5.2", indexer_types=None, index_skip_topk_offset=3)
    assert [layer.attention for layer in by_rule.layers] == [layer.attention for layer in listed.layers]


def test_gemma3_window_bounds_sliding_layers(model: Read) -> None:
    gemma = model("google/gemma-3-270m")
    assert kinds(gemma) == {"sliding": 15, "full": 3}
    # 3 full layers x 8192 and 15 sliding x 512 tokens, 1 KV head x 256 x 2 x 2 B each
    assert kv_bytes(gemma.layers, 8192, BF16) == (3 * 8192 + 15 * 512) * 1024


def test_gemma4_full_layers_have_their_own_heads_and_dimension(model: Read) -> None:
    full = [
        layer.attention for layer in model("nvidia/Gemma-4-31B-IT-NVFP4").layers if layer.kinds == (LayerKind.FULL,)
    ]
    assert len(full) == 10
    assert all(isinstance(a, GroupedAttention) and (a.kv_heads, a.k_dim, a.k_is_v) == (4, 512, True) for a in full)


def test_gemma4_without_shared_projection_keeps_its_ordinary_kv_heads(model: Read) -> None:
    changed = model("nvidia/Gemma-4-31B-IT-NVFP4", attention_k_eq_v=False)
    full = changed.layers[5].attention
    assert isinstance(full, GroupedAttention)
    assert (full.kv_heads, full.k_dim) == (16, 512)


def test_mimo_sliding_layers_have_twice_the_heads(model: Read) -> None:
    layer = model("XiaomiMiMo/MiMo-V2-Flash").layers[1]
    assert layer.kinds == (LayerKind.SLIDING,)
    # window 128: 8 heads x (192 + 128) x 2 B x 128
    assert layer_kv_bytes(layer, 100_000, BF16) == 8 * 320 * 2 * 128


def test_llama4_chunks_three_of_four_layers(model: Read) -> None:
    scout = model("meta-llama/Llama-4-Scout-17B-16E-Instruct")
    assert [layer.kinds[0] for layer in scout.layers[:4]] == [LayerKind.CHUNKED] * 3 + [LayerKind.FULL]
    assert layer_kv_bytes(scout.layers[0], 10_000, BF16) == 8192 * 8 * 128 * 2 * 2


def test_gpt_oss_alternates_starting_with_a_window(model: Read) -> None:
    assert kinds(model("openai/gpt-oss-120b")) == {"sliding": 18, "full": 18}
    by_rule = model("openai/gpt-oss-120b", layer_types=None)
    assert by_rule.layers == model("openai/gpt-oss-120b").layers


def test_qwen35_state_is_conv_and_matrix(model: Read) -> None:
    state = model("Qwen/Qwen3.5-35B-A3B").layers[0].state
    assert state is not None
    assert state.kind is LayerKind.GDN
    # channels 2 x 16 x 128 + 32 x 128 = 8192, 3 inputs kept; matrix 32 x 128 x 128
    size = state_bytes(state, conv_dtype="bfloat16", ssm_dtype="float32")
    assert (size.conv_bytes, size.ssm_bytes) == (3 * 8192 * 2, 32 * 128 * 128 * 4)


def test_speculation_lengthens_the_convolution_state(model: Read) -> None:
    state = model("Qwen/Qwen3.5-35B-A3B").layers[0].state
    assert state is not None
    size = state_bytes(state, conv_dtype="bfloat16", ssm_dtype="float32", speculative_tokens=2)
    assert size.conv_bytes == 5 * 8192 * 2


def test_nemotron_has_one_block_per_layer(model: Read) -> None:
    nano = model("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16")
    assert kinds(nano) == {"mamba2": 23, "none": 23, "full": 6}
    state = nano.layers[0].state
    assert state is not None
    # 64 x 64 + 2 x 8 x 128 = 6144 channels; 64 x 64 x 128 matrix
    assert (state.conv_channels, state.ssm_elements) == (6144, 524_288)


def test_falcon_h1_layers_have_both(model: Read) -> None:
    falcon = model("tiiuae/Falcon-H1-1.5B-Instruct")
    assert kinds(falcon) == {"full+mamba2": 24}
    state = falcon.layers[0].state
    assert state is not None
    # d_ssm 3072 = 48 heads x 64; channels 3072 + 2 x 256
    assert (state.heads, state.head_dim, state.conv_channels) == (48, 64, 3584)


def test_lfm2_keeps_two_inputs_per_convolution(model: Read) -> None:
    lfm = model("LiquidAI/LFM2.5-1.2B")
    assert kinds(lfm) == {"conv": 10, "full": 6}
    state = next(layer.state for layer in lfm.layers if layer.state is not None)
    assert (state.conv_elements, state.ssm_elements) == (2 * 2048, 0)


def test_kimi_linear_mixes_kda_and_mla(model: Read) -> None:
    assert kinds(model("moonshotai/Kimi-Linear-48B-A3B-Instruct")) == {"kda": 20, "mla": 7}


def test_deepseek_v4_layers_follow_their_ratios(model: Read) -> None:
    flash = model("deepseek-ai/DeepSeek-V4-Flash")
    ratios = [layer.attention.ratio for layer in flash.layers if isinstance(layer.attention, CompressedAttention)]
    assert (len(ratios), ratios.count(0), ratios.count(4), ratios.count(128)) == (43, 2, 21, 20)
    assert len(flash.drafts) == 1
    # ratio 4, 1024 tokens, bf16: (128 + 256) entries x 1024 B and 256 index keys x 132 B
    assert layer_kv_bytes(flash.layers[2], 1024, BF16) == 384 * 1024 + 256 * 132


def test_draft_layers_are_kept_apart(model: Read) -> None:
    assert [len(model(name).drafts) for name in ("deepseek-ai/DeepSeek-R1", "nvidia/Kimi-K2.6-NVFP4")] == [1, 0]
    served = model("MiniMaxAI/MiniMax-M2.5")
    assert served.drafts == ()
    assert any("num_mtp_modules" in note for note in served.notes)


def test_gemma3n_last_layers_read_earlier_caches(model: Read) -> None:
    # 35 layers, the last 15 share: layer 20 slides and reads 18, layer 24 is full and reads 19
    e4b = {"model_type": "gemma3n_text", "num_hidden_layers": 35, "hidden_size": 2048, "num_kv_shared_layers": 15}
    layers = geometry_of(e4b, name="e4b", source="test").layers
    assert [layers[i].kv_source for i in (19, 20, 24)] == [None, 18, 19]
    assert layer_kv_bytes(layers[24], 1000, BF16) == 0
