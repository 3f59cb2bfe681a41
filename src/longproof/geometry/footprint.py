"""Bytes a model needs, whatever the engine: per token, per sequence, for its weights. Pure.

Works on layers of the whole model and on a rank's layers (`sharding.rank_layer`) alike. Engines round these up to
blocks, pages and cells; their rules are in `longproof.plan`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from longproof.geometry.dtypes import (
    STATE_BYTES,
    KvDtype,
    compressed_bytes,
    indexer_bytes,
    latent_bytes,
    vector_bytes,
)
from longproof.geometry.kinds import Attention, CompressedAttention, GroupedAttention, LatentAttention, RecurrentState
from longproof.geometry.model import Layer


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryBytes:
    """One cached entry of one layer. `k_bytes` + `v_bytes`; a latent is all K. `indexer_bytes` beside it."""

    k_bytes: int
    v_bytes: int
    indexer_bytes: int = 0

    @property
    def total(self) -> int:
        """Everything the layer stores for the entry."""
        return self.k_bytes + self.v_bytes + self.indexer_bytes


def entry_bytes(attention: Attention, k_dtype: KvDtype, v_dtype: KvDtype | None = None) -> EntryBytes:
    """Bytes of one entry: K and V of a token (all heads given), an MLA latent, or a DeepSeek V4 entry.

    `v_dtype` differs from `k_dtype` in llama.cpp only. An indexer that shares another layer's choice counts as well
    here; an engine that leaves it out subtracts `indexer_bytes`.
    """
    match attention:
        case GroupedAttention():
            heads = attention.kv_heads
            k_bytes = vector_bytes(k_dtype, heads * attention.k_dim, heads=heads)
            v_bytes = vector_bytes(v_dtype or k_dtype, heads * attention.v_dim, heads=heads)
        case LatentAttention():
            k_bytes, v_bytes = latent_bytes(k_dtype, attention.kv_lora_rank, attention.rope_dim), 0
        case CompressedAttention():
            k_bytes, v_bytes = compressed_bytes(k_dtype, attention.head_dim, attention.rope_dim), 0
    index = 0 if attention.indexer is None else indexer_bytes(attention.indexer, k_dtype)
    return EntryBytes(k_bytes=k_bytes, v_bytes=v_bytes, indexer_bytes=index)


def entries(attention: Attention, tokens: int) -> int:
    """Entries the layer must keep after `tokens` tokens: all, the window, the chunk, or window and compressed ones."""
    match attention:
        case GroupedAttention():
            bound = attention.window_tokens or attention.chunk_tokens
            return tokens if bound is None else min(tokens, bound)
        case LatentAttention():
            return tokens
        case CompressedAttention():
            far = tokens // attention.ratio if attention.ratio else 0
            return min(tokens, attention.window_tokens) + far


def layer_kv_bytes(layer: Layer, tokens: int, k_dtype: KvDtype, v_dtype: KvDtype | None = None) -> int:
    """Bytes one layer's token cache needs for one sequence of `tokens`; 0 where it reads another layer's.

    Without states and encoder caches. DeepSeek V4's indexer keeps one key per compressed entry.
    """
    attention = layer.attention
    if attention is None or layer.kv_source is not None:
        return 0
    one = entry_bytes(attention, k_dtype, v_dtype)
    kept = entries(attention, tokens)
    indexed = kept
    if isinstance(attention, CompressedAttention):
        indexed = tokens // attention.ratio if attention.ratio else 0
    return kept * (one.k_bytes + one.v_bytes) + indexed * one.indexer_bytes


def kv_bytes(layers: Iterable[Layer], tokens: int, k_dtype: KvDtype, v_dtype: KvDtype | None = None) -> int:
    """Sum of `layer_kv_bytes`."""
    return sum(layer_kv_bytes(layer, tokens, k_dtype, v_dtype) for layer in layers)


def growth_bytes_per_token(layers: Iterable[Layer], k_dtype: KvDtype, v_dtype: KvDtype | None = None) -> float:
    """Bytes each further token adds once all windows are full: only full, MLA and compressed layers grow.

    Llama-3.1-8B in bf16: 32 layers x 8 heads x (128 + 128) x 2 = 131,072.
    """
    total = 0.0
    for layer in layers:
        attention = layer.attention
        if attention is None or layer.kv_source is not None:
            continue
        one = entry_bytes(attention, k_dtype, v_dtype).total
        match attention:
            case GroupedAttention():
                total += one if attention.window_tokens is None and attention.chunk_tokens is None else 0
            case LatentAttention():
                total += one
            case CompressedAttention():
                total += one / attention.ratio if attention.ratio else 0
    return total


@dataclass(frozen=True, slots=True, kw_only=True)
class StateBytes:
    """A recurrent state of one sequence and layer: the convolution's inputs and the matrix."""

    conv_bytes: int
    ssm_bytes: int

    @property
    def total(self) -> int:
        """Both together."""
        return self.conv_bytes + self.ssm_bytes


def state_bytes(state: RecurrentState, *, conv_dtype: str, ssm_dtype: str, speculative_tokens: int = 0) -> StateBytes:
    """Bytes of one state. Speculation makes the convolution's state longer by one input per drafted token.

    `conv_dtype`, `ssm_dtype`: HF dtype names as the engine resolves them. Source: vLLM 0.32 MambaStateShapeCalculator.
    """
    rows = state.conv_kernel - 1 + (speculative_tokens if state.conv_kernel > 1 else 0)
    return StateBytes(
        conv_bytes=rows * state.conv_channels * STATE_BYTES[conv_dtype],
        ssm_bytes=state.ssm_elements * STATE_BYTES[ssm_dtype],
    )


def cross_bytes(layers: Iterable[Layer], encoder_tokens: int, dtype: KvDtype) -> int:
    """Bytes of the encoder's K and V in all cross-attention layers, for one sequence."""
    total = 0
    for layer in layers:
        if layer.cross is not None:
            heads = layer.cross.kv_heads
            total += encoder_tokens * vector_bytes(dtype, heads * layer.cross.k_dim, heads=heads)
            total += encoder_tokens * vector_bytes(dtype, heads * layer.cross.v_dim, heads=heads)
    return total
