"""What a model costs by itself, before any engine: the figures `longproof inspect MODEL` shows."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from longproof.domain.measure import Measured, Reading, Unknown, derived, value_or_none
from longproof.errors import GeometryError
from longproof.geometry.dtypes import STATE_BYTES, KvDtype, parse_kv_dtype
from longproof.geometry.footprint import growth_bytes_per_token, kv_bytes, state_bytes
from longproof.geometry.model import ModelGeometry
from longproof.geometry.weights import ByteEstimate, model_weight_bytes

LENGTHS = (8_192, 32_768, 131_072, 1_048_576)
"""Lengths the cache is shown for, up to the trained window."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KindCount:
    """Layers of one kind. A layer that has two kinds counts for both."""

    kind: str
    layers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheAt:
    """Bytes one sequence of `tokens` caches, states included, over all layers and ranks together, unreplicated."""

    tokens: int
    cache_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSummary:
    """A model in figures. `growth_bytes_per_token`: what each further token adds once all windows are full.
    `state_bytes`: of one sequence, independent of its length. `notes`: what the reader assumed or disregarded."""

    name: str
    architecture: str
    source: str
    layers: int
    kinds: tuple[KindCount, ...]
    draft_layers: int
    parameters: Reading[int]
    active_parameters: Reading[int]
    weights: Reading[ByteEstimate]
    trained_window_tokens: Reading[int]
    kv_dtype: str
    growth_bytes_per_token: float
    state_bytes: int
    cache: tuple[CacheAt, ...]
    notes: tuple[str, ...]


def summarize(geometry: ModelGeometry, kv_dtype: KvDtype | None = None) -> ModelSummary:
    """The figures of a geometry with its cache in `kv_dtype` (None: the model's own dtype, bfloat16 where unknown).

    Raises GeometryError for a dtype no layer of the model can be cached in.
    """
    model_dtype = value_or_none(geometry.dtype)
    dtype = kv_dtype or parse_kv_dtype("auto", model_dtype or "bfloat16")
    counts = Counter(kind.value for layer in geometry.layers for kind in layer.kinds)
    states = _states(geometry, model_dtype)
    trained = value_or_none(geometry.max_position_tokens)
    lengths = {n for n in LENGTHS if trained is None or n <= trained} | ({trained} if trained else set[int]())
    return ModelSummary(
        name=geometry.name,
        architecture=geometry.architecture,
        source=geometry.source,
        layers=len(geometry.layers),
        kinds=tuple(KindCount(kind=kind, layers=count) for kind, count in counts.most_common()),
        draft_layers=len(geometry.drafts),
        parameters=_count(geometry.total_parameters(), geometry),
        active_parameters=_count(geometry.active_parameters(), geometry),
        weights=model_weight_bytes(geometry),
        trained_window_tokens=geometry.max_position_tokens,
        kv_dtype=dtype.value,
        growth_bytes_per_token=growth_bytes_per_token(geometry.layers, dtype),
        state_bytes=states,
        cache=tuple(
            CacheAt(tokens=n, cache_bytes=kv_bytes(geometry.layers, n, dtype) + states) for n in sorted(lengths)
        ),
        notes=geometry.notes,
    )


def known_dtype(word: str, model_dtype: str | None) -> KvDtype | None:
    """A KV dtype an engine names, or None where the word is an engine's own."""
    try:
        return parse_kv_dtype(word, model_dtype)
    except GeometryError:
        return None


def _states(geometry: ModelGeometry, model_dtype: str | None) -> int:
    plain = model_dtype if model_dtype in STATE_BYTES else "bfloat16"
    return sum(
        state_bytes(
            layer.state, conv_dtype=layer.state.conv_dtype or plain, ssm_dtype=layer.state.ssm_dtype or "float32"
        ).total
        for layer in geometry.layers
        if layer.state is not None
    )


def _count(count: int | None, geometry: ModelGeometry) -> Measured[int] | Unknown:
    if count is None:
        return Unknown(reason="the model's file does not settle the weights of every layer")
    return derived(count, f"shapes in {geometry.source}" + ("" if geometry.weights_exact else ", by the general rule"))
