"""The attention of one layer, from the config's numbers. Which numbers count depends on the architecture.

MLA ignores num_key_value_heads and head_dim (GLM-5.1 says 64 for both); Gemma 4's full layers have their own head
dimension and KV heads; MiMo-V2's sliding layers as well. Sources: transformers 5.19, vLLM 0.32.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from longproof.geometry.config_fields import ConfigFields
from longproof.geometry.kinds import (
    Attention,
    CompressedAttention,
    CrossAttention,
    GroupedAttention,
    Indexer,
    LatentAttention,
    LayerKind,
)
from longproof.geometry.slots import Role

_COMPRESSED = {"sliding_attention": 0, "compressed_sparse_attention": 4, "heavily_compressed_attention": 128}


def attention_of(fields: ConfigFields, role: Role, index: int) -> Attention:
    """The attention of layer `index`; what is missing is noted in `fields`."""
    if is_latent(fields):
        return _latent(fields, index)
    if role is Role.SLIDE:
        return _sliding(fields, index)
    if role is Role.CHUNK:
        heads, kv_heads, k_dim, v_dim = _numbers(fields, index)
        return GroupedAttention(
            kind=LayerKind.CHUNKED,
            query_heads=heads,
            kv_heads=kv_heads,
            k_dim=k_dim,
            v_dim=v_dim,
            chunk_tokens=fields.need("attention_chunk_size"),
        )
    return _full(fields, index)


def is_latent(fields: ConfigFields) -> bool:
    """True when the attention layers are MLA: the config has a kv_lora_rank."""
    return bool(fields.whole("kv_lora_rank"))


def cross_of(fields: ConfigFields) -> CrossAttention:
    """Cross attention has the heads of the self attention."""
    heads, kv_heads, k_dim, v_dim = _numbers(fields, 0)
    return CrossAttention(query_heads=heads, kv_heads=kv_heads, k_dim=k_dim, v_dim=v_dim)


def _full(fields: ConfigFields, index: int) -> GroupedAttention:
    heads, kv_heads, k_dim, v_dim = _numbers(fields, index)
    k_is_v = False
    wide = fields.stated_whole("global_head_dim")
    if fields.stated("per_layer_config") is not None:  # transformers 5 writes the full layers' numbers there
        wide = None
        k_is_v = fields.flag("attention_k_eq_v")
    elif wide is None and fields.model_type == "gemma4_text" and "global_head_dim" not in fields.values:
        wide = 512
    if wide:
        k_is_v = fields.flag("attention_k_eq_v", default=fields.stated_whole("num_global_key_value_heads") is not None)
        if k_is_v:
            kv_heads = fields.stated_whole("num_global_key_value_heads") or kv_heads
        k_dim = v_dim = wide
    return GroupedAttention(
        kind=LayerKind.FULL,
        query_heads=heads,
        kv_heads=kv_heads,
        k_dim=k_dim,
        v_dim=v_dim,
        k_is_v=k_is_v,
        indexer=_block_indexer(fields, index),
    )


def _sliding(fields: ConfigFields, index: int) -> GroupedAttention:
    heads, kv_heads, k_dim, v_dim = _numbers(fields, index)
    other = fields.section("attention_other_setting")  # Step-3.5: sliding layers have their own heads
    if other is not None:
        heads = other.whole("num_attention_heads") or heads
        kv_heads = other.whole("num_attention_groups") or kv_heads
        k_dim = v_dim = other.whole("head_dim") or k_dim
    return GroupedAttention(
        kind=LayerKind.SLIDING,
        query_heads=fields.whole("swa_num_attention_heads") or heads,
        kv_heads=fields.whole("swa_num_key_value_heads") or kv_heads,
        k_dim=fields.whole("swa_head_dim") or k_dim,
        v_dim=fields.whole("swa_v_head_dim") or v_dim,
        window_tokens=fields.need("sliding_window"),
    )


def _numbers(fields: ConfigFields, index: int) -> tuple[int | None, int, int, int]:
    """(query heads, KV heads, K dimension, V dimension) of layer `index`."""
    heads = _of_layer(fields, "num_attention_heads", index)
    kv_heads = _kv_heads(fields, heads, index)
    head_dim = _of_layer(fields, "head_dim", index)
    if head_dim is None:
        hidden = fields.whole("hidden_size")
        if hidden is None or heads is None or heads < 1:
            fields.lacks("head_dim (or hidden_size and num_attention_heads)")
            head_dim = 1
        else:
            head_dim = hidden // heads
    v_dim = fields.whole("v_head_dim") or head_dim
    if kv_heads < 0 or head_dim < 1 or v_dim < 1:
        fields.lacks("sizes of K and V above 0")
    return heads, kv_heads, head_dim, v_dim


def _kv_heads(fields: ConfigFields, heads: int | None, index: int) -> int:
    block = block_of(fields, index)
    if block is not None and heads is not None:  # DeciLM / Nemotron-NAS: query heads per KV head
        attention = block.section("attention")
        grouped = None if attention is None else attention.whole("n_heads_in_group")
        if grouped:
            return heads // grouped
    found = _of_layer(fields, "num_key_value_heads", index)
    nested = fields.section("attn_config")  # DBRX, MPT
    if nested is not None:
        found = nested.whole("kv_n_heads") or heads
    if fields.model_type == "falcon" and not fields.flag("new_decoder_architecture"):
        found = 1 if fields.flag("multi_query", default=True) else heads
    elif fields.model_type in ("gpt_bigcode", "chatglm"):
        if fields.flag("multi_query", default=True) and fields.flag("multi_query_attention", default=True):
            found = fields.whole("multi_query_group_num") or 1
        else:
            found = heads
    if found is None and fields.known_type:
        found = heads  # transformers: num_key_value_heads is num_attention_heads unless said otherwise
    if found is None and heads is not None:
        fields.note("num_key_value_heads is not stated: every query head has its own (MHA)")
        found = heads
    if found is None:
        fields.lacks("num_key_value_heads (or num_attention_heads)")
        return 1
    return found


def _of_layer(fields: ConfigFields, name: str, index: int) -> int | None:
    """A number that may be a list over layers (OpenELM) or overridden for some (`per_layer_config`)."""
    own = fields.section("per_layer_config")
    if own is not None:
        # keys are written with leading zeros: "05"
        key = next((key for key in own.values if str(key).isdigit() and int(key) == index), None)
        layer = None if key is None else own.section(key)
        found = None if layer is None else layer.whole(name)
        if found is not None:
            return found
    return fields.whole_at(name, index)


def block_of(fields: ConfigFields, index: int) -> ConfigFields | None:
    """The block of a searched architecture (DeciLM, Nemotron-NAS `block_configs`), or None."""
    blocks = fields.sequence("block_configs")
    if blocks is None or index >= len(blocks) or not isinstance(blocks[index], Mapping):
        return None
    block = ConfigFields(cast("Mapping[str, object]", blocks[index]), name=f"{fields.name} block {index}")
    block.missing, block.notes = fields.missing, fields.notes
    return block


def skips_attention(fields: ConfigFields, index: int) -> bool:
    """True where a block of a searched architecture has no attention (DeciLM `no_op`, `replace_with_linear`)."""
    block = block_of(fields, index)
    attention = None if block is None else block.section("attention")
    return attention is not None and (attention.flag("no_op") or attention.flag("replace_with_linear"))


def _latent(fields: ConfigFields, index: int) -> LatentAttention:
    return LatentAttention(
        query_heads=fields.whole("num_attention_heads"),
        kv_lora_rank=fields.need("kv_lora_rank"),
        rope_dim=fields.need("qk_rope_head_dim"),
        nope_dim=fields.whole("qk_nope_head_dim"),
        v_dim=fields.whole("v_head_dim"),
        q_lora_rank=fields.stated_whole("q_lora_rank"),
        indexer=_dsa_indexer(fields, index),
    )


def _dsa_indexer(fields: ConfigFields, index: int) -> Indexer | None:
    head_dim = fields.whole("index_head_dim")
    if not head_dim:
        return None
    return Indexer(
        head_dim=head_dim,
        heads=fields.whole("index_n_heads"),
        top_k=fields.whole("index_topk"),
        shares_top_k=_shares_top_k(fields, index),
    )


def _shares_top_k(fields: ConfigFields, index: int) -> bool:
    """transformers 5.19 GlmMoeDsaConfig: `indexer_types`, else a pattern of F and S, else a frequency and an offset."""
    listed = fields.sequence("indexer_types")
    if listed is not None:
        return index < len(listed) and listed[index] == "shared"
    pattern = fields.text("index_topk_pattern")
    if pattern is not None:
        return index < len(pattern) and pattern[index] == "S"
    every = max(fields.stated_whole("index_topk_freq") or 1, 1)
    offset = fields.stated_whole("index_skip_topk_offset")
    return max(index - (2 if offset is None else offset) + 1, 0) % every != 0


def _block_indexer(fields: ConfigFields, index: int) -> Indexer | None:
    """MiniMax-M3 scores blocks with one key per token in the cache's own dtype (vLLM 0.32 minimax_m3 indexer)."""
    kinds = fields.sequence("layer_types")
    if kinds is not None and index < len(kinds) and kinds[index] == "minimax_m3_sparse":  # as transformers 5 writes it
        return Indexer(
            head_dim=fields.need("index_head_dim"),
            heads=fields.whole("index_n_heads"),
            top_k=fields.whole("index_topk_blocks"),
            scaled_fp8=False,
        )
    sparse = fields.section("sparse_attention_config")
    if sparse is None or not sparse.flag("use_sparse_attention", default=True):
        return None
    where = sparse.wholes("sparse_attention_freq")
    head_dim = sparse.whole("sparse_index_dim")
    if not head_dim or (where is not None and not (index < len(where) and where[index])):
        return None
    return Indexer(
        head_dim=head_dim,
        heads=sparse.whole("sparse_num_index_heads"),
        top_k=sparse.whole("sparse_topk_blocks"),
        scaled_fp8=False,
    )


def compression_ratios(fields: ConfigFields, layers: int) -> tuple[int, ...] | None:
    """DeepSeek V4: tokens per compressed entry of each layer, draft layers after the others; None = not that family."""
    ratios = fields.wholes("compress_ratios")
    if ratios is not None:
        if len(ratios) < layers:
            fields.lacks(f"compress_ratios of {layers - len(ratios)} layers")
        return ratios
    if fields.model_type != "deepseek_v4":
        return None
    listed = fields.sequence("layer_types")
    if listed is None:
        fields.lacks("compress_ratios (or layer_types)")
        return tuple(0 for _ in range(layers))
    rates = fields.section("compress_rates")
    return tuple(
        (None if rates is None else rates.whole(str(kind))) or _COMPRESSED.get(str(kind), 0) for kind in listed
    )


def compressed_of(fields: ConfigFields, ratio: int) -> CompressedAttention:
    """One DeepSeek V4 layer; only those with ratio 4 have an indexer (vLLM 0.32 deepseek_v4 attention)."""
    return CompressedAttention(
        query_heads=fields.whole("num_attention_heads"),
        head_dim=fields.need("head_dim"),
        rope_dim=fields.need("qk_rope_head_dim"),
        window_tokens=fields.need("sliding_window"),
        ratio=ratio,
        q_lora_rank=fields.stated_whole("q_lora_rank"),
        indexer=_dsa_indexer(fields, 0) if ratio == 4 else None,
    )
