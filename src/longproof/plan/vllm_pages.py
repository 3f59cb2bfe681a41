"""vLLM: what one block of one layer costs on one rank. Read in 0.32 (v1/kv_cache_interface.py and the backends).

A layer gives one `CacheSpec` for each cache it keeps: none, one, or several (latent and indexer; attention and state).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from longproof.domain.measure import value_or_none
from longproof.errors import UsageError
from longproof.geometry.dtypes import STATE_BYTES, KvDtype, indexer_bytes, parse_kv_dtype
from longproof.geometry.footprint import entry_bytes
from longproof.geometry.kinds import (
    Attention,
    CompressedAttention,
    CrossAttention,
    GroupedAttention,
    LatentAttention,
    LayerKind,
    RecurrentState,
)
from longproof.geometry.model import Layer, ModelGeometry
from longproof.geometry.sharding import rank_layer
from longproof.plan.capacity import Launch
from longproof.plan.vllm_compressed import compressed_specs
from longproof.plan.vllm_specs import CacheKind, CacheSpec

CacheShape: TypeAlias = tuple[Attention | None, RecurrentState | None, CrossAttention | None, bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRules:
    """What all layers of a launch share: the block, and how states are padded and held.

    `state_page_bytes`: what a state is padded to (0: not padded). `state_blocks`: state blocks one request holds.
    `windows_apart` False: windowed layers are charged as full ones. `extra_window_tokens`: kept below the window for
    several draft modules in a row.
    """

    block_tokens: int
    state_page_bytes: int = 0
    state_blocks: int = 1
    windows_apart: bool = True
    extra_window_tokens: int = 0


def distinct_layers(layers: Iterable[Layer]) -> dict[CacheShape, Layer]:
    """One layer of each shape that matters for the cache. Models repeat few shapes, so each is worked out once."""
    return {shape_of(layer): layer for layer in reversed(tuple(layers))}


def shape_of(layer: Layer) -> CacheShape:
    """What decides a layer's caches: two layers of one shape have equal specs."""
    return layer.attention, layer.state, layer.cross, layer.kv_source is None


def model_dtype_of(geometry: ModelGeometry) -> str:
    """The model's dtype, bfloat16 when the config does not say."""
    return value_or_none(geometry.dtype) or "bfloat16"


def is_compressed(geometry: ModelGeometry) -> bool:
    """Whether a layer compresses its cache (DeepSeek V4): blocks are then laid out and grouped in another way."""
    return any(isinstance(layer.attention, CompressedAttention) for layer in geometry.layers)


def kv_dtype_of(geometry: ModelGeometry, launch: Launch) -> KvDtype:
    """The cache's dtype; ``auto`` follows the checkpoint's own wish, then the model's dtype. Raises UsageError."""
    wanted = geometry.quantization.kv_dtype if geometry.quantization else None
    if wanted is None and is_compressed(geometry):
        wanted = "fp8"
    word = launch.kv_dtype if launch.kv_dtype != "auto" else wanted or "auto"
    return parse_kv_dtype(word, model_dtype_of(geometry))


def attention_bytes_per_token(layer: Layer, dtype: KvDtype, launch: Launch) -> int:
    """What the attention of one layer stores for one token on one rank, its indexer apart. 0 without attention."""
    attention = rank_layer(layer, launch.layout.tp).attention
    if attention is None or layer.kv_source is not None:
        return 0
    sparse = isinstance(attention, LatentAttention) and attention.indexer is not None
    if sparse and not launch.vllm.raw_fp8_latent:
        dtype = _sparse_latent_dtype(dtype)
    entry = entry_bytes(attention, dtype)
    return entry.total - entry.indexer_bytes


def _sparse_latent_dtype(dtype: KvDtype) -> KvDtype:
    # FlashMLA sparse serves every fp8 as the packed row (mla_attention.py, _canonicalize_sparse_mla_kv_cache_dtype).
    return {KvDtype.FP8: KvDtype.FP8_DS_MLA, KvDtype.NVFP4: KvDtype.NVFP4_DS_MLA}.get(dtype, dtype)


def state_bytes(state: RecurrentState, geometry: ModelGeometry, launch: Launch) -> int:
    """A rank's recurrent state: convolution inputs (a column more per drafted token) and the matrix per head.

    `state` is already the rank's. Raises UsageError for an unknown dtype.
    """
    drafted = launch.speculation.tokens if launch.speculation else 0
    columns = state.conv_kernel - 1 + drafted if state.conv_kernel > 1 else 0
    conv = state.conv_channels * columns
    total = conv * _state_element(_conv_dtype(state, geometry, launch)) if conv else 0
    if state.ssm_elements:
        total += state.ssm_elements * _state_element(_ssm_dtype(state, geometry, launch))
    return total


def _state_element(dtype: str) -> int:
    if dtype not in STATE_BYTES:
        raise UsageError(
            f"{dtype!r} is not a dtype of recurrent states", advice=f"use one of {', '.join(sorted(STATE_BYTES))}"
        )
    return STATE_BYTES[dtype]


def _conv_dtype(state: RecurrentState, geometry: ModelGeometry, launch: Launch) -> str:
    if launch.vllm.conv_dtype != "auto":
        return launch.vllm.conv_dtype
    return state.conv_dtype or model_dtype_of(geometry)


def _ssm_dtype(state: RecurrentState, geometry: ModelGeometry, launch: Launch) -> str:
    if launch.vllm.ssm_dtype != "auto":
        return launch.vllm.ssm_dtype
    if state.ssm_dtype:
        return state.ssm_dtype
    if state.kind is LayerKind.KDA or geometry.architecture.startswith("nemotron"):
        # kda_state_dtype and NemotronHForCausalLMConfig: float32 unless said otherwise; all others follow the model.
        return "float32"
    return _conv_dtype(state, geometry, launch)


def layer_specs(layer: Layer, geometry: ModelGeometry, launch: Launch, rules: PageRules) -> list[CacheSpec]:
    """The caches of one layer on one rank. Raises UsageError (LayoutError: heads that do not divide)."""
    dtype = kv_dtype_of(geometry, launch)
    ranked = rank_layer(layer, launch.layout.tp)
    specs: list[CacheSpec] = []
    if layer.attention is not None and layer.kv_source is None:
        row = attention_bytes_per_token(layer, dtype, launch)
        specs += _attention_specs(ranked, row, launch, rules, dtype)
    if ranked.state is not None:
        content = state_bytes(ranked.state, geometry, launch)
        specs.append(
            CacheSpec(
                kind=CacheKind.STATE,
                shape=(ranked.state.kind.value, content),
                block_tokens=rules.block_tokens,
                content_bytes=content,
                page_bytes=max(content, rules.state_page_bytes),
                state_blocks=rules.state_blocks,
            )
        )
    if ranked.cross is not None:
        specs.append(_cross_spec(ranked, geometry, rules.block_tokens, dtype))
    return specs


def _attention_specs(
    ranked: Layer, row_bytes: int, launch: Launch, rules: PageRules, dtype: KvDtype
) -> list[CacheSpec]:
    attention, dcp, block_tokens = ranked.attention, launch.layout.dcp, rules.block_tokens
    match attention:
        case CompressedAttention():
            return compressed_specs(attention, dtype, block_tokens=block_tokens, dcp=dcp)
        case GroupedAttention():
            specs = [_grouped_spec(attention, row_bytes, launch, rules, dtype)]
        case LatentAttention():
            specs = [_token_spec(CacheKind.MLA, ("latent", dtype.value), row_bytes, block_tokens, dcp)]
        case None:
            return []
    indexer = attention.indexer
    if indexer is not None and (launch.vllm.indexer_on_shared_layers or not indexer.shares_top_k):
        # The index key has its own layout or bfloat16; it does not follow the cache's dtype.
        row = indexer_bytes(indexer, KvDtype.BFLOAT16)
        specs.append(_token_spec(CacheKind.MLA, ("indexer", row), row, block_tokens, dcp))
    return specs


def _grouped_spec(
    attention: GroupedAttention, row_bytes: int, launch: Launch, rules: PageRules, dtype: KvDtype
) -> CacheSpec:
    kind = CacheKind.FULL
    if attention.kind is LayerKind.SLIDING and rules.windows_apart:
        kind = CacheKind.SLIDING
    elif attention.kind is LayerKind.CHUNKED and rules.windows_apart:
        kind = CacheKind.CHUNKED
    page = rules.block_tokens * row_bytes
    return CacheSpec(
        kind=kind,
        shape=(attention.kv_heads, attention.k_dim, attention.v_dim, dtype.value),
        block_tokens=rules.block_tokens,
        content_bytes=page,
        page_bytes=page,
        window_tokens=(attention.window_tokens or 0) if kind is CacheKind.SLIDING else 0,
        extra_tokens=rules.extra_window_tokens if kind is CacheKind.SLIDING else 0,
        chunk_tokens=(attention.chunk_tokens or 0) if kind is CacheKind.CHUNKED else 0,
        dcp=launch.layout.dcp if kind is CacheKind.FULL else 1,
    )


def _token_spec(
    kind: CacheKind, shape: tuple[int | str, ...], row_bytes: int, block_tokens: int, dcp: int
) -> CacheSpec:
    page = row_bytes * block_tokens
    return CacheSpec(kind=kind, shape=shape, block_tokens=block_tokens, content_bytes=page, page_bytes=page, dcp=dcp)


def _cross_spec(ranked: Layer, geometry: ModelGeometry, block_tokens: int, dtype: KvDtype) -> CacheSpec:
    cross = ranked.cross
    assert cross is not None
    encoder = value_or_none(geometry.encoder.tokens) if geometry.encoder else None
    if encoder is None:
        raise UsageError(
            "the model attends to an encoder whose longest output is not known",
            advice="give the encoder's tokens, e.g. 1500 for Whisper",
        )
    row = entry_bytes(
        GroupedAttention(
            kind=LayerKind.FULL,
            query_heads=cross.query_heads,
            kv_heads=cross.kv_heads,
            k_dim=cross.k_dim,
            v_dim=cross.v_dim,
        ),
        dtype,
    ).total
    page = block_tokens * row
    return CacheSpec(
        kind=CacheKind.CROSS,
        shape=(cross.kv_heads, cross.k_dim, cross.v_dim, dtype.value),
        block_tokens=block_tokens,
        content_bytes=page,
        page_bytes=page,
        encoder_tokens=encoder,
    )
