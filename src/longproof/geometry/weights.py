"""Bytes of a model's weights, as a whole and on one rank, with an error band. Pure.

The size in a safetensors index or a GGUF wins over what the shapes and the quantisation say. Engines place a little
more than the elements themselves: padded vocabularies, scales, buffers; the band is for that.
"""

from __future__ import annotations

from dataclasses import dataclass

from longproof.domain.measure import Measured, Provenance, Reading, Unknown, derived, value_or_none
from longproof.errors import GeometryError
from longproof.geometry.dtypes import weight_element_bytes
from longproof.geometry.model import Layer, LayerWeights, ModelGeometry, Quantization
from longproof.geometry.sharding import rank_layer

# what vLLM 0.19 printed for 30 unquantised models lay within +0.7 % of the count: rotary tables, padding, biases
_EXACT_BAND, _GENERAL_BAND, _QUANTIZED_BAND = 0.01, 0.03, 0.04
VOCAB_PADDING = 64
"""Rows of embedding and head are padded to a multiple of this (vLLM 0.32 DEFAULT_VOCAB_PADDING_SIZE)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ByteEstimate:
    """Bytes with a band. `low_bytes` = `high_bytes` = `best_bytes` where a file says the size."""

    best_bytes: int
    low_bytes: int
    high_bytes: int


def model_weight_bytes(model: ModelGeometry) -> Reading[ByteEstimate]:
    """All weights, draft layers left out where the size is computed; Unknown with the reason where it cannot be."""
    stated = model.weight_file_bytes
    if isinstance(stated, Measured):
        exact = ByteEstimate(best_bytes=stated.value, low_bytes=stated.value, high_bytes=stated.value)
        return Measured(value=exact, provenance=Provenance.REPORTED, source=stated.source)
    return stage_weight_bytes(model, first_layer=0, last_layer=len(model.layers))


def stage_weight_bytes(
    model: ModelGeometry,
    *,
    first_layer: int,
    last_layer: int,
    attention_ranks: int = 1,
    mlp_ranks: int = 1,
    expert_ranks: int = 1,
    drafts: bool = False,
) -> Reading[ByteEstimate]:
    """Weights one rank of a stage holds: its share of the layers, the embedding on the first stage, the head on the
    last. A tied head is a second copy of the embedding when the two are on different stages.

    `last_layer` is exclusive. Ranks as in `sharding.rank_layer`. `drafts`: MTP layers as well, on the last stage.
    Computed from shapes and the quantisation, then scaled to the file's size where that is known. Raises LayoutError.
    """
    whole = _bytes(model, tuple(model.layers), embedding=True, head=True, rows_ranks=1)
    if isinstance(whole, Unknown):
        return whole
    is_last = last_layer == len(model.layers)
    layers = tuple(
        rank_layer(layer, attention_ranks, mlp_ranks=mlp_ranks, expert_ranks=expert_ranks)
        for layer in (*model.layers[first_layer:last_layer], *(model.drafts if drafts and is_last else ()))
    )
    alone = first_layer == 0 and is_last
    share = _bytes(
        model,
        layers,
        embedding=first_layer == 0,
        head=is_last,
        rows_ranks=mlp_ranks,
        copied_head=model.tied_embeddings and is_last and not alone,
    )
    if isinstance(share, Unknown):
        return share
    scale, band = 1.0, _band(model)
    file_bytes = value_or_none(model.weight_file_bytes)
    if file_bytes is not None and not (model.outer is not None and model.outer.unlisted):
        scale = file_bytes / whole
    best = round(share * scale)
    value = ByteEstimate(best_bytes=best, low_bytes=round(best * (1 - band)), high_bytes=round(best * (1 + band)))
    return derived(value, f"shapes in {model.source}" + (", scaled to the size of its files" if scale != 1.0 else ""))


def _band(model: ModelGeometry) -> float:
    if model.quantization is not None:
        return _QUANTIZED_BAND
    return _EXACT_BAND if model.weights_exact else _GENERAL_BAND


def _bytes(
    model: ModelGeometry,
    layers: tuple[Layer, ...],
    *,
    embedding: bool,
    head: bool,
    rows_ranks: int,
    copied_head: bool = False,
) -> int | Unknown:
    outer = model.outer
    if outer is None:
        return Unknown(reason="the config does not give hidden_size and vocab_size")
    dtype = value_or_none(model.dtype)
    if dtype is None:
        return Unknown(reason="neither a dtype nor the size of the weight files is known")
    try:
        plain = weight_element_bytes(dtype)
    except GeometryError as problem:
        return Unknown(reason=problem.problem)
    quantized = model.quantization
    if quantized is not None and quantized.bits is None and not quantized.part_bits:
        return Unknown(reason=f"the config does not say how many bits {quantized.method} leaves of a weight")
    total = 0.0
    for layer in layers:
        if layer.weights is None:
            return Unknown(reason=f"the config does not settle the weights of layer {layer.index}")
        total += _layer_bytes(model, layer.weights, plain)
    if embedding:
        total += (outer.embedding / rows_ranks + outer.other) * plain
    if head:
        total += (outer.lm_head or (outer.embedding if copied_head else 0)) / rows_ranks * plain
    return round(total)


def _layer_bytes(model: ModelGeometry, weights: LayerWeights, plain: int) -> float:
    parts = {"attention": weights.attention, "mlp": weights.mlp, "experts": weights.experts}
    total = float(weights.replicated * plain)
    for part, elements in parts.items():
        total += elements * (part_bits(model.quantization, part) or 8 * plain) / 8
    return total


def part_bits(quantization: Quantization | None, part: str) -> float | None:
    """Bits of one weight of a part (attention, mlp, experts) with its scales; None where it is not quantised."""
    if quantization is None:
        return None
    for name, bits in quantization.part_bits:
        if name == part:
            return bits
    if quantization.bits is None or part not in quantization.parts:
        return None
    scales = quantization.scale_bits / quantization.group_size if quantization.group_size else 0
    return quantization.bits + scales
