"""ModelGeometry → ModelWork: which numbers of a geometry cost time.

Weights: an element of a quantised checkpoint weighs its bits and its share of a scale; embeddings, head and whatever
the checkpoint leaves unquantised weigh what the model dtype says. An MXFP4 checkpoint quantises its experts only
(gpt-oss `modules_to_not_convert`).
"""

from __future__ import annotations

from dataclasses import dataclass

from longproof.domain.measure import Measured
from longproof.errors import UsageError
from longproof.geometry.dtypes import (
    KvDtype,
    compressed_bytes,
    indexer_bytes,
    latent_bytes,
    vector_bytes,
    weight_element_bytes,
)
from longproof.geometry.kinds import Attention, CompressedAttention, GroupedAttention, Indexer, LatentAttention
from longproof.geometry.model import Layer, LayerWeights, ModelGeometry, Quantization
from longproof.hardware.device import Device
from longproof.plan.perf_estimate import Precision
from longproof.plan.perf_work import AttentionWork, LayerWork, ModelWork

_STATE_ELEMENT_BYTES = 4
"""Recurrent matrices are kept in float32 by vLLM, SGLang and llama.cpp unless told otherwise."""
_BITS_BY_METHOD = {
    "fp8": 8.0, "fbgemm_fp8": 8.0, "int8": 8.0,
    "mxfp4": 4.25, "nvfp4": 4.5, "modelopt_fp4": 4.5, "awq": 4.5, "gptq": 4.5,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightBytes:
    """Bytes of one weight element by part of the model."""

    attention: float = 2.0
    mlp: float = 2.0
    experts: float = 2.0
    outer: float = 2.0

    @classmethod
    def same(cls, each: float) -> WeightBytes:
        """Everything weighs the same."""
        return cls(attention=each, mlp=each, experts=each, outer=each)


def weight_bytes_of(geometry: ModelGeometry) -> WeightBytes:
    """What the checkpoint's weights weigh, by its dtype and quantisation."""
    plain = float(weight_element_bytes(geometry.dtype.value)) if isinstance(geometry.dtype, Measured) else 2.0
    quantization = geometry.quantization
    if quantization is None:
        return WeightBytes.same(plain)
    packed = _packed_bytes(quantization, plain)
    ignored = " ".join(quantization.ignored).lower()
    experts_only = quantization.method.lower() == "mxfp4"
    attention_left = experts_only or "attn" in ignored
    return WeightBytes(
        attention=plain if attention_left else packed,
        mlp=plain if experts_only else packed,
        experts=packed,
        outer=plain,
    )


def precision_of(weights: str, device: Device) -> Precision:
    """Dtypes of the matrix products for weights in a format: fp8, nvfp4, bf16, or a weight-only one (int4, awq …).

    Weight-only formats are widened and multiplied in bf16. NVFP4 uses FP4 units, with FP8 attention, on data-centre
    Blackwell; the cards without NVLink run its experts through weight-only kernels (RTX PRO 6000, vLLM 0.17: NVFP4 and
    AWQ prompts of Qwen3.5-397B take the same time within 5 %).
    """
    has_fp4 = isinstance(device.dense_flops.get("fp4"), Measured) and device.scale_up.switched
    if weights in ("nvfp4", "fp4", "modelopt_fp4"):
        return Precision(weights="fp4", attention="fp8") if has_fp4 else Precision()
    return Precision(weights="fp8", attention="fp8") if weights == "fp8" else Precision()


def _packed_bytes(quantization: Quantization, plain: float) -> float:
    if quantization.bits is None:
        return _BITS_BY_METHOD.get(quantization.method.lower(), plain * 8) / 8
    scale = quantization.scale_bits / quantization.group_size if quantization.group_size else 0.0
    return (quantization.bits + scale) / 8


def work_of(
    geometry: ModelGeometry, kv_dtype: KvDtype = KvDtype.BFLOAT16, weights: WeightBytes | None = None
) -> ModelWork:
    """What a model asks of a device, with its cache in `kv_dtype`. `weights` overrides what the checkpoint says.

    Raises UsageError when the geometry lacks weights or query heads: compute cannot be told from the cache's shape.
    """
    each = weights or weight_bytes_of(geometry)
    if not isinstance(geometry.hidden_size, Measured) or geometry.outer is None:
        raise UsageError(
            f"{geometry.name} has no hidden size or no embedding size: its speed cannot be predicted",
            advice="give a config.json with hidden_size and vocab_size",
        )
    head = geometry.outer.lm_head or geometry.outer.embedding
    return ModelWork(
        name=geometry.name,
        layers=tuple(_layer(geometry.name, layer, kv_dtype, each) for layer in geometry.layers),
        hidden_size=geometry.hidden_size.value,
        head_elements=head,
        head_bytes=head * each.outer,
    )


def _layer(name: str, layer: Layer, kv_dtype: KvDtype, each: WeightBytes) -> LayerWork:
    w = layer.weights
    if w is None:
        raise UsageError(
            f"layer {layer.index} of {name} has no known weights: its speed cannot be predicted",
            advice="give a config.json with num_attention_heads and intermediate_size",
        )
    mixture = layer.mlp is not None and layer.mlp.experts > 0
    state = layer.state
    ssm = state.ssm_elements if state is not None else 0
    return LayerWork(
        dense_elements=w.attention + w.mlp + w.replicated,
        dense_bytes=_dense_bytes(w, each),
        expert_elements=w.experts,
        expert_bytes=w.experts * each.experts,
        experts=layer.mlp.experts if layer.mlp is not None and mixture else 0,
        experts_per_token=layer.mlp.experts_per_token if layer.mlp is not None and mixture else 0,
        attention=_attention(name, layer, kv_dtype) if layer.attention is not None else None,
        state_bytes=(ssm + (state.conv_elements if state is not None else 0)) * _STATE_ELEMENT_BYTES,
        state_elements=ssm,
    )


def _dense_bytes(w: LayerWeights, each: WeightBytes) -> float:
    return w.attention * each.attention + w.mlp * each.mlp + w.replicated * each.outer


def _attention(name: str, layer: Layer, kv_dtype: KvDtype) -> AttentionWork:
    attention = layer.attention
    assert attention is not None  # the caller asked
    heads = attention.query_heads
    if heads is None:
        raise UsageError(
            f"layer {layer.index} of {name} does not say its query heads: its speed cannot be predicted",
            advice="give a config.json with num_attention_heads",
        )
    return _sized(attention, heads, kv_dtype, caches=layer.kv_source is None)


def _sized(attention: Attention, heads: int, kv_dtype: KvDtype, *, caches: bool) -> AttentionWork:
    top_k, index_dim, index_bytes = _indexed(attention.indexer, kv_dtype)
    match attention:
        case GroupedAttention():
            row = vector_bytes(kv_dtype, attention.kv_heads * attention.k_dim, heads=attention.kv_heads)
            row += vector_bytes(kv_dtype, attention.kv_heads * attention.v_dim, heads=attention.kv_heads)
            return AttentionWork(
                query_heads=heads, kv_heads=attention.kv_heads, score_dim=attention.k_dim, value_dim=attention.v_dim,
                cached_bytes=row if caches else 0.0, window=attention.window_tokens or attention.chunk_tokens,
                top_k=top_k, index_dim=index_dim, index_bytes=index_bytes,
                merged_dim=attention.k_dim + attention.v_dim,
            )  # fmt: skip
        case LatentAttention():
            return AttentionWork(
                query_heads=heads, kv_heads=1,
                score_dim=(attention.nope_dim or attention.kv_lora_rank) + attention.rope_dim,
                value_dim=attention.v_dim or attention.kv_lora_rank,
                cached_bytes=latent_bytes(kv_dtype, attention.kv_lora_rank, attention.rope_dim) if caches else 0.0,
                shared_by_heads=True, top_k=top_k, index_dim=index_dim, index_bytes=index_bytes,
                merged_dim=2 * attention.kv_lora_rank + attention.rope_dim,
            )  # fmt: skip
        case CompressedAttention():
            return AttentionWork(
                query_heads=heads, kv_heads=1, score_dim=attention.head_dim, value_dim=attention.head_dim,
                cached_bytes=compressed_bytes(kv_dtype, attention.head_dim, attention.rope_dim) if caches else 0.0,
                shared_by_heads=True, window=attention.window_tokens, stride=attention.ratio or 1,
                top_k=top_k, index_dim=index_dim, index_bytes=index_bytes, merged_dim=2 * attention.head_dim,
            )  # fmt: skip


def _indexed(indexer: Indexer | None, kv_dtype: KvDtype) -> tuple[int | None, int, float]:
    """(top_k, multiply-adds per pair, bytes per key) of an indexer."""
    if indexer is None:
        return None, 0, 0.0
    computes = 0 if indexer.shares_top_k else (indexer.heads or 1) * indexer.head_dim
    return indexer.top_k, computes, float(indexer_bytes(indexer, kv_dtype))
