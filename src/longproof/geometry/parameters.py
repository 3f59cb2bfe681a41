"""How many weights each layer has, counted from the shapes of its matrices.

Counted as the modeling files of transformers 5.19 allocate them; families listed in `EXACT` come out to the parameter
(checked against those models built without storage), others within a few per mille.
"""

from __future__ import annotations

from longproof.geometry.compressed_parameters import compressed_elements
from longproof.geometry.config_fields import ConfigFields
from longproof.geometry.kinds import (
    Attention,
    CompressedAttention,
    CrossAttention,
    GroupedAttention,
    LatentAttention,
    RecurrentState,
)
from longproof.geometry.model import LayerWeights, Mlp, OuterWeights
from longproof.geometry.state_parameters import state_elements

_HEAD_NORMS = frozenset(
    [
        "qwen3", "qwen3_moe", "gemma3_text", "gemma3", "gemma4_text", "qwen3_next", "qwen3_5_text", "qwen3_5_moe_text",
        "exaone4", "lfm2", "lfm2_moe", "hunyuan_v1_dense", "hunyuan_v1_moe", "qwen3_vl_text", "qwen3_vl_moe_text",
        "minimax_m3", "apertus",
    ]
)  # fmt: skip
_WIDE_NORMS = frozenset(["olmo2", "olmo3", "minimax_m2", "olmoe", "flex_olmo"])
_FOUR_NORMS = frozenset(["gemma2", "gemma3_text", "gemma3", "gemma4_text", "glm4", "vaultgemma"])
_ONE_NORM = frozenset(["cohere", "cohere2", "phi", "nemotron_h"])
_QKV_BIAS = frozenset(
    ["qwen2", "qwen2_moe", "qwen2_vl_text", "qwen2_5_vl_text", "qwen2_5_omni_text", "qwen2_audio", "glm", "glm4"]
)
_ALL_BIASES = frozenset(["gpt2", "phi", "gpt_neox", "opt", "bloom", "starcoder2", "gpt_bigcode"])
_OUTPUT_GATE = frozenset(["qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"])

# parts beside attention and MLP that the rules below do not cover
_NOT_COUNTED = frozenset(["gemma3n_text", "longcat_flash", "zamba2"])
EXACT = frozenset(
    [
        "llama", "llama4_text", "mistral", "ministral3", "mixtral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe",
        "qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "gemma", "gemma2", "gemma3_text", "gemma4_text", "gpt_oss",
        "phi", "phi3", "deepseek_v2", "deepseek_v3", "deepseek_v32", "glm", "glm4", "glm4_moe", "glm_moe_dsa", "olmo",
        "olmo2", "olmo3", "cohere", "cohere2", "granite", "granitemoe", "granitemoeshared", "granitemoehybrid", "bamba",
        "jamba", "falcon_h1", "nemotron_h", "mamba", "mamba2", "falcon_mamba", "lfm2", "minimax", "minimax_m2",
        "exaone4", "smollm3", "gpt2", "gpt_neox", "gpt_bigcode", "starcoder2", "seed_oss", "ernie4_5", "arcee",
        "kimi_k2", "deepseek_v4",
    ]
)  # fmt: skip
"""Model types whose parameter count comes out exact (buffers that checkpoints store included)."""


def layer_weights(
    fields: ConfigFields,
    *,
    attention: Attention | None,
    state: RecurrentState | None,
    cross: CrossAttention | None,
    mlp: Mlp | None,
    alone: bool,
) -> LayerWeights | None:
    """Elements of one layer; None when a size it needs is not known. `alone`: mixer or MLP, not both (Nemotron-H)."""
    hidden = fields.whole("hidden_size")
    if hidden is None or (mlp is None and not alone) or fields.model_type in _NOT_COUNTED:
        return None
    mixers = kv = small = 0
    if attention is not None:
        counted = _attention(fields, attention, hidden)
        if counted is None:
            return None
        mixers, kv, small = counted
    if state is not None:
        mixers += state_elements(fields, state, hidden)
    if cross is not None and cross.query_heads is not None:
        mixers += hidden * cross.k_dim * (2 * cross.query_heads + 2 * cross.kv_heads)
    dense, experts, active, router = (0, 0, 0, 0) if mlp is None else _mlp(fields, mlp, hidden)
    norms = _norms(fields, alone=alone)
    norm_elements = norms * hidden * (2 if fields.model_type in _ALL_BIASES else 1)
    return LayerWeights(
        attention=mixers,
        kv_projection=kv,
        mlp=dense,
        experts=experts,
        active_experts=active,
        replicated=small + router + norm_elements + _per_layer_input(fields, hidden),
    )


def _norms(fields: ConfigFields, *, alone: bool) -> int:
    if fields.model_type == "olmo":  # its norms have no weights
        return 0
    if alone or fields.model_type in _ONE_NORM:
        return 1
    return 4 if fields.model_type in _FOUR_NORMS else 2


def outer_weights(fields: ConfigFields, *, layers: int, tied: bool, unlisted: tuple[str, ...]) -> OuterWeights | None:
    """Embedding, head, last norm and position table; None when hidden or vocabulary size is not known."""
    hidden, vocab = fields.whole("hidden_size"), fields.whole("vocab_size")
    if hidden is None or vocab is None:
        return None
    other = 0 if fields.model_type == "olmo" else hidden
    if fields.model_type in _ALL_BIASES:
        other += hidden
    if fields.model_type in ("gpt2", "opt", "gpt_bigcode"):
        other += (fields.whole("max_position_embeddings") or 0) * hidden
    if fields.model_type == "phi":
        other += vocab  # its head has a bias
    narrow = fields.stated_whole("hidden_size_per_layer_input")
    if narrow and fields.model_type == "gemma4_text":
        table = (fields.whole("vocab_size_per_layer_input") or vocab) * layers * narrow
        other += table + hidden * layers * narrow + narrow
    streams = fields.whole("hc_mult")
    if streams:
        other += streams * streams * hidden + streams + 1
    return OuterWeights(embedding=vocab * hidden, lm_head=0 if tied else vocab * hidden, other=other, unlisted=unlisted)


def _attention(fields: ConfigFields, attention: Attention, hidden: int) -> tuple[int, int, int] | None:
    """(projections, the K and V part of them, what every rank has whole); None when a size is missing."""
    match attention:
        case GroupedAttention():
            return _grouped(fields, attention, hidden)
        case LatentAttention():
            return _latent(attention, hidden)
        case CompressedAttention():
            return compressed_elements(fields, attention, hidden)


def _grouped(fields: ConfigFields, attention: GroupedAttention, hidden: int) -> tuple[int, int, int] | None:
    heads, kv_heads = attention.query_heads, attention.kv_heads
    if heads is None:
        return None
    gate = 2 if fields.model_type in _OUTPUT_GATE else 1
    query = hidden * heads * attention.k_dim * gate
    kv = hidden * kv_heads * (attention.k_dim + (0 if attention.k_is_v else attention.v_dim))
    out = heads * attention.v_dim * hidden
    small = 0
    if fields.model_type in _QKV_BIAS or fields.flag("qkv_bias") or _biased(fields):
        query += heads * attention.k_dim
        kv += kv_heads * (attention.k_dim + attention.v_dim)
    if _biased(fields) and fields.model_type not in ("glm", "glm4", "seed_oss"):  # whose output projection has none
        out += hidden
    if fields.model_type == "gpt_oss":
        small += heads  # sinks
    if fields.model_type in _HEAD_NORMS or (fields.flag("use_qk_norm") and fields.model_type.startswith("glm")):
        small += 2 * attention.k_dim
    elif fields.model_type in _WIDE_NORMS:
        small += (heads + kv_heads) * attention.k_dim
    if attention.indexer is not None:
        index_heads = attention.indexer.heads or 0
        small += hidden * attention.indexer.head_dim * (1 + index_heads)
    return query + kv + out, kv, small


def _biased(fields: ConfigFields) -> bool:
    return fields.flag("attention_bias") or fields.model_type in _ALL_BIASES


def _latent(attention: LatentAttention, hidden: int) -> tuple[int, int, int] | None:
    heads, nope, v_dim = attention.query_heads, attention.nope_dim, attention.v_dim
    if heads is None or nope is None or v_dim is None:
        return None
    per_head = nope + attention.rope_dim
    down = hidden * attention.latent_dim + attention.kv_lora_rank  # kv_a with its norm, whole on every rank
    if attention.q_lora_rank:
        query = attention.q_lora_rank * heads * per_head
        down += hidden * attention.q_lora_rank + attention.q_lora_rank
    else:
        query = hidden * heads * per_head
    up = attention.kv_lora_rank * heads * (nope + v_dim)
    out = heads * v_dim * hidden
    if attention.indexer is not None and not attention.indexer.shares_top_k:
        size, index_heads = attention.indexer.head_dim, attention.indexer.heads or 0
        down += (attention.q_lora_rank or hidden) * size * index_heads  # wq_b
        down += hidden * size + 2 * size + hidden * index_heads  # wk, its norm, the head weights
    return query + up + out, 0, down


def _mlp(fields: ConfigFields, mlp: Mlp, hidden: int) -> tuple[int, int, int, int]:
    """(dense and shared part, all experts, the experts of one token, router)."""
    matrices = 3 if mlp.gated else 2
    biased = fields.flag("mlp_bias") or fields.model_type in _ALL_BIASES
    dense = matrices * hidden * mlp.dense_size
    if biased and mlp.dense_size:
        dense += (matrices - 1) * mlp.dense_size + hidden
    if not mlp.experts:
        return dense, 0, 0, 0
    # Nemotron-3 Super and Kimi-K3 route a narrower vector
    width = fields.whole("moe_latent_size") or fields.whole("routed_expert_hidden_size") or hidden
    one = matrices * width * mlp.expert_size
    router = hidden * mlp.experts
    if width != hidden:
        router += 2 * hidden * width
    if fields.model_type == "gpt_oss":
        one += 2 * mlp.expert_size + hidden
        router += mlp.experts
    if fields.value("n_routed_experts") is not None or fields.model_type == "minimax_m2":
        router += mlp.experts  # e_score_correction_bias
    dense += matrices * hidden * mlp.shared_size
    if fields.whole("shared_expert_intermediate_size"):
        router += hidden  # Qwen's gate of the shared expert
    if fields.model_type == "gemma4_text":
        router += hidden + mlp.experts + 3 * hidden  # scales and the norms of the second branch
    return dense, mlp.experts * one, mlp.experts_per_token * one, router


def _per_layer_input(fields: ConfigFields, hidden: int) -> int:
    """Gemma 4's per-layer embedding: gate, projection and norm, and one scalar a layer."""
    if fields.model_type != "gemma4_text":
        return 0
    narrow = fields.stated_whole("hidden_size_per_layer_input") or 0
    return 1 + ((2 * hidden * narrow + hidden) if narrow else 0)
