"""The feed-forward part of one layer: dense, or a mixture of experts, by each family's way of placing them.

Sources: the configuration and modeling files of transformers 5.19, named beside each rule.
"""

from __future__ import annotations

from longproof.geometry.config_fields import ConfigFields, names
from longproof.geometry.layer_attention import block_of
from longproof.geometry.model import Mlp
from longproof.geometry.slots import Slot

# two matrices instead of three, with or without hidden_act in the config
_TWO_MATRICES = frozenset(
    [
        "gpt2", "gpt_neo", "gpt_neox", "gptj", "gpt_bigcode", "opt", "bloom", "falcon", "phi", "starcoder2", "mpt",
        "nemotron", "nemotron_h", "persimmon", "codegen", "xglm", "whisper", "bart", "mbart", "arcee", "apertus",
    ]
)  # fmt: skip
_DENSE_WORDS = ("dense", "mlp")


def mlp_of(fields: ConfigFields, slot: Slot, index: int) -> Mlp | None:
    """The MLP of layer `index`; None when the layer has none or the config does not give its size."""
    if slot.mlp == "none":
        return None
    gated = fields.model_type not in _TWO_MATRICES
    experts = fields.whole_at("num_experts", index) or 0
    if slot.mlp == "dense" or not experts or (slot.mlp == "config" and not _has_experts(fields, index)):
        size = _dense_size(fields, index)
        return None if not size else Mlp(dense_size=size, gated=gated)
    expert_size = fields.whole_at("moe_intermediate_size", index) or fields.whole_at("intermediate_size", index)
    if not expert_size:
        return None
    return Mlp(
        experts=experts,
        experts_per_token=fields.whole_at("num_experts_per_tok", index) or 0,
        expert_size=expert_size,
        shared_size=_shared_size(fields, expert_size, index),
        gated=gated,
    )


def _has_experts(fields: ConfigFields, index: int) -> bool:
    kinds = fields.sequence("mlp_layer_types")
    if kinds is not None:
        return index < len(kinds) and names(kinds)[index] not in _DENSE_WORDS
    listed = fields.wholes("moe_layer_freq") or fields.wholes("moe_layers_freq")
    if listed is not None:
        return index < len(listed) and bool(listed[index])
    chosen = fields.wholes("moe_layers")
    if chosen is not None:
        return index in chosen
    spelled = fields.text("moe_layers_enum")  # Step-3: "4,5,6"
    if spelled is not None:
        return str(index) in spelled.split(",")
    return _by_period(fields, index)


def _by_period(fields: ConfigFields, index: int) -> bool:
    period = fields.whole("expert_layer_period")  # Jamba
    if period:
        return index % period == (fields.whole("expert_layer_offset") or 0)
    step = fields.whole("interleave_moe_layer_step")  # Llama 4
    if step:
        return (index + 1) % step == 0
    interval = fields.whole("moe_layer_interval")  # Ernie 4.5
    if interval:
        first, last = fields.whole("moe_layer_start_index") or 0, fields.whole("moe_layer_end_index")
        inside = first <= index and (last is None or last < 0 or index <= last)
        return inside and (index + 1) % interval == 0
    for name in ("first_k_dense_replace", "num_dense_layers", "moe_layer_num_skipped"):  # DeepSeek, LFM2/AFM, Hunyuan
        first = fields.whole(name)
        if first is not None:
            return index >= first and index % (fields.whole("moe_layer_freq") or 1) == 0
    dense = fields.wholes("mlp_only_layers") or ()  # Qwen
    return index not in dense and (index + 1) % (fields.whole("decoder_sparse_step") or 1) == 0


def _dense_size(fields: ConfigFields, index: int) -> int | None:
    searched = block_of(fields, index)
    feed = None if searched is None else searched.section("ffn")
    if feed is not None:
        return _searched_size(feed, fields.whole("hidden_size") or 0)
    listed = fields.wholes("intermediate_size")
    if listed is not None:
        return listed[index] if index < len(listed) else None
    if fields.whole_at("num_experts", index):  # mixtures that name their dense layers' size apart: Llama 4, MiniMax-M3
        apart = fields.whole("intermediate_size_mlp") or fields.whole("dense_intermediate_size")
        if apart:
            return apart
    size = fields.whole("intermediate_size")
    if size and fields.model_type == "lfm2" and fields.flag("block_auto_adjust_ff_dim", default=True):
        return _adjusted(fields, size)
    if size and fields.flag("use_double_wide_mlp"):  # Gemma 4: layers that share a cache are twice as wide
        layers, shared = fields.whole("num_hidden_layers") or 0, fields.whole("num_kv_shared_layers") or 0
        size *= 2 if index >= layers - shared else 1
    hidden = fields.whole("hidden_size")
    if size is None and hidden and fields.model_type in _TWO_MATRICES:
        return 4 * hidden  # GPT-2's n_inner null, Falcon's ffn_hidden_size
    return size


def _searched_size(feed: ConfigFields, hidden: int) -> int | None:
    """DeciLM: two thirds of a multiple of the hidden size, rounded up to 256; or a stated size."""
    if feed.flag("no_op") or feed.flag("replace_with_linear"):
        return None
    factor = feed.value("ffn_mult")
    if isinstance(factor, int | float):
        return -(-int(2 * factor * hidden / 3) // 256) * 256
    return feed.whole("intermediate_size")


def _adjusted(fields: ConfigFields, size: int) -> int:
    """LFM2 takes two thirds of the stated size, rounded up to a multiple (transformers 5.19 Lfm2MLP)."""
    multiple = fields.whole("block_multiple_of") or 256
    return -(-int(2 * size / 3) // multiple) * multiple


def _shared_size(fields: ConfigFields, expert_size: int, index: int) -> int:
    """Inner size of all shared experts together."""
    for name in ("shared_expert_intermediate_size", "moe_shared_expert_intermediate_size", "shared_intermediate_size"):
        size = fields.whole(name)
        if size is not None:
            return size
    if fields.model_type == "llama4_text":
        return expert_size
    if fields.model_type == "gemma4_text":  # each layer has its dense MLP beside the experts
        return fields.whole("intermediate_size") or 0
    return (fields.whole_at("n_shared_experts", index) or 0) * expert_size
