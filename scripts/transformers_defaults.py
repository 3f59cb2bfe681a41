"""Writes src/longproof/geometry/transformers_defaults.json: what transformers assumes where a config.json is silent.

Run with an interpreter that has transformers: `python scripts/transformers_defaults.py`. Sizes that every config states
(num_hidden_layers, hidden_size) are left out on purpose: a model's size is never assumed.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
    MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES,
)

FIELDS = [
    "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size", "intermediate_size",
    "tie_word_embeddings", "max_position_embeddings", "sliding_window", "use_sliding_window", "max_window_layers",
    "attention_bias", "mlp_bias", "attention_chunk_size", "no_rope_layer_interval", "num_kv_shared_layers",
    "attention_k_eq_v", "enable_moe_block", "kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim",
    "v_head_dim", "index_head_dim", "index_n_heads", "index_topk", "num_experts", "num_local_experts",
    "n_routed_experts", "num_experts_per_tok", "moe_intermediate_size", "n_shared_experts",
    "shared_expert_intermediate_size", "shared_intermediate_size", "first_k_dense_replace", "decoder_sparse_step",
    "moe_layer_freq", "interleave_moe_layer_step", "intermediate_size_mlp", "expert_layer_period",
    "expert_layer_offset", "num_dense_layers", "attn_layer_period", "attn_layer_offset", "mamba_d_state",
    "mamba_d_conv", "mamba_expand", "mamba_n_heads", "mamba_d_head", "mamba_n_groups", "mamba_num_heads",
    "mamba_head_dim", "ssm_state_size", "n_groups", "conv_kernel", "conv_L_cache", "expand", "state_size",
    "linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim",
    "linear_conv_kernel_dim", "hidden_size_per_layer_input", "vocab_size_per_layer_input", "use_qk_norm", "qk_norm",
    "multi_query", "new_decoder_architecture", "parallel_attn", "bias", "use_bias", "use_double_wide_mlp",
]  # fmt: skip

OUTPUT = Path(__file__).parent.parent / "src/longproof/geometry/transformers_defaults.json"


def main() -> None:
    """Collects the defaults of every text model and of the text part of every multimodal one."""
    table: dict[str, dict[str, object]] = {}
    wanted = [
        *MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        *MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
        *MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES,
    ]
    for model_type in sorted(set(wanted)):
        try:
            config = CONFIG_MAPPING[model_type]
        except KeyError:
            continue
        add(table, model_type, config)
    text = {"source": f"transformers {transformers.__version__}", "defaults": table}
    OUTPUT.write_text(json.dumps(text, indent=0, sort_keys=True) + "\n")


def add(table: dict[str, dict[str, object]], model_type: str, config: type) -> None:
    """Adds one model type and the text part it nests, which is recorded as `text_config`."""
    row: dict[str, object] = {}
    for field in dataclasses.fields(config):
        if field.name in FIELDS and isinstance(field.default, int | float | str):
            row[field.name] = field.default
    period = layer_period(config)
    if period is not None:
        row["layer_types_period"] = period
    nested = (getattr(config, "sub_configs", None) or {}).get("text_config")
    if isinstance(nested, type) and getattr(nested, "model_type", ""):
        row["text_config"] = nested.model_type
        if nested.model_type not in table and nested is not config:
            add(table, nested.model_type, nested)
    table[model_type] = row


def layer_period(config: type) -> list[str] | None:
    """The shortest repeating run of layer kinds that the configuration class itself chooses; [] when there is none."""
    try:
        kinds = config(num_hidden_layers=48).layer_types
    except Exception:  # classes differ in what they demand; without an instance there is no rule to record
        return None
    if not isinstance(kinds, list) or len(kinds) != 48 or not all(isinstance(kind, str) for kind in kinds):
        return None
    for length in range(1, 13):
        if all(kind == kinds[index % length] for index, kind in enumerate(kinds)):
            return kinds[:length]
    return []


if __name__ == "__main__":
    main()
