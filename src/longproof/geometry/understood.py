"""Refuses to guess: a field that could change what is cached and that no rule has read is named in an error."""

from __future__ import annotations

import re

from longproof.errors import GeometryError
from longproof.geometry.config_fields import ConfigFields

_COULD_MATTER = re.compile(
    r"window|sliding|layer_type|layers_type|block_type|pattern|interval|lora_rank|^index_|indexer|sparse|compress"
    r"|mamba|ssm|linear_(?!bias)|conv_(kernel|dim|l_cache)|kv_shared|cla_|attn_type|hybrid|rwkv|retention|recurren"
    r"|state_size|kv_head|head_dim|cross_attention|attn_layer|full_attn|chunk_size|block_configs|kv_share|num_memory"
)
# read where they apply, or shown not to enter the cache
_HARMLESS = frozenset(
    [
        "_sliding_window_pattern", "activation_sparsity_pattern", "add_swa_attention_sink_bias",
        "attention_chunk_size", "block_sparse_moe_gate", "cache_implementation", "chunk_size",
        "chunk_size_feed_forward", "conv_bias", "conv_use_xavier_init", "decoder_sparse_step",
        "full_attention_interval", "global_head_dim", "head_dim", "hybrid_block_size", "hybrid_layer_ids",
        "hybrid_layer_pattern", "indexer_rope_interleave", "interleaved_sliding_window", "kv_lora_rank",
        "layer_types", "linear_conv_kernel_dim", "linear_a_log_max", "linear_dt_min", "linear_dt_max",
        "linear_dt_init_floor", "linear_allow_neg_eigval", "mamba_chunk_size", "mamba_conv_bias",
        "mamba_dt_init_floor", "mamba_dt_limit", "mamba_dt_max", "mamba_dt_min", "mamba_dt_rank", "mamba_hidden_act",
        "mamba_inner_layernorms", "mamba_norm_before_gate", "mamba_proj_bias", "mamba_rms_norm", "mamba_ssm_dtype",
        "mamba_use_mlp", "max_window_layers", "mlp_layer_types", "moe_layer_interval", "mtp_hybrid_override_pattern",
        "mtp_layers_block_type", "no_rope_layer_interval", "num_global_key_value_heads", "num_key_value_heads",
        "output_router_logits", "q_lora_rank", "qk_head_dim", "qk_nope_head_dim", "qk_rope_head_dim",
        "rope_interleave", "rope_pattern", "sliding_window", "sliding_window_pattern", "sliding_window_size",
        "sparse_block_size", "sparse_topk", "ssm_in_multiplier", "ssm_multipliers", "ssm_out_multiplier",
        "swa_head_dim", "swa_num_key_value_heads", "swa_v_head_dim", "use_mamba_kernels", "v_head_dim",
        "v_head_dim_per_layer",
    ]
)  # fmt: skip
# architectures whose extra fields were read in their modeling files: nothing more of them enters the cache
_REVIEWED = frozenset(
    [
        "llama", "llama4_text", "mistral", "mixtral", "ministral3", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe",
        "qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "qwen2_vl_text", "qwen2_5_vl_text", "qwen3_vl_text",
        "qwen3_vl_moe_text", "gemma", "gemma2", "gemma3_text", "gemma3n_text", "gemma4_text", "gpt_oss", "phi",
        "phi3", "phimoe", "deepseek_v2", "deepseek_v3", "deepseek_v32", "deepseek_v4", "kimi_k2", "kimi_linear",
        "glm", "glm4", "glm4_moe", "glm_moe_dsa", "olmo", "olmo2", "olmo3", "cohere", "cohere2", "granite",
        "granitemoe", "granitemoeshared", "granitemoehybrid", "bamba", "jamba", "falcon_h1", "nemotron_h", "mamba",
        "mamba2", "falcon_mamba", "lfm2", "lfm2_moe", "minimax", "minimax_text_01", "minimax_m1", "minimax_m2",
        "minimax_m3", "mimo", "mimo_v2_flash", "seed_oss", "exaone", "exaone4", "smollm3", "starcoder2", "gpt2",
        "gpt_neox", "opt", "bloom", "falcon", "gpt_bigcode", "chatglm", "internlm2", "internlm3", "baichuan",
        "hunyuan_v1_dense", "hunyuan_v1_moe", "hunyuan", "ernie4_5", "ernie4_5_moe", "dots1", "step3p5", "nemotron",
        "nemotron-nas", "arcee", "apertus", "mllama_text_model", "whisper", "stablelm", "persimmon", "olmoe",
        "deepseek_ref", "zamba2", "minimax_m3_vl_text", "dbrx",
    ]
)  # fmt: skip


_OTHER_CACHES = {
    "xlstm": "matrix memories instead of keys and values",
    "rwkv": "token-shift states instead of keys and values",
    "recurrent_gemma": "RG-LRU states beside a local window",
    "zamba": "Mamba heads with their own layout",
    "zamba1": "Mamba heads with their own layout",
}


def check_architecture(fields: ConfigFields) -> None:
    """Raises GeometryError when an architecture is known to keep something that no rule covers."""
    if fields.model_type in _OTHER_CACHES:
        raise GeometryError(
            f"{fields.name} (architecture {fields.model_type}) keeps {_OTHER_CACHES[fields.model_type]}, which no rule "
            "covers",
            advice="an engine's own cache size settles what it needs",
            missing=("model_type",),
        )


def check_understood(fields: ConfigFields) -> None:
    """Raises GeometryError when an architecture that was never reviewed has a field that could change its cache."""
    if fields.model_type in _REVIEWED:
        return
    left = [key for key in fields.unread() if _COULD_MATTER.search(key.lower()) and key not in _HARMLESS]
    if left:
        kind = f"architecture {fields.model_type}" if fields.model_type else "a config without model_type"
        raise GeometryError(
            f"{fields.name} ({kind}) has fields that may change its cache and that no rule covers: {', '.join(left)}",
            advice="what they do to the keys, values or states kept per layer would settle it; a GGUF file or an "
            "engine's own cache size settles it as well",
            missing=tuple(left),
        )
