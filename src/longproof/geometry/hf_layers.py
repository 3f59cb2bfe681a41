"""The layers of a config: slots become layers with attention, state, MLP and weights."""

from __future__ import annotations

from dataclasses import replace

from longproof.geometry.config_fields import ConfigFields
from longproof.geometry.kinds import Attention, CrossAttention, GroupedAttention, RecurrentState
from longproof.geometry.layer_attention import (
    attention_of,
    compressed_of,
    compression_ratios,
    cross_of,
    skips_attention,
)
from longproof.geometry.layer_mlps import mlp_of
from longproof.geometry.layer_patterns import layer_slots, nemotron_slots
from longproof.geometry.layer_states import conv_of, state_of
from longproof.geometry.model import Layer
from longproof.geometry.parameters import layer_weights
from longproof.geometry.slots import Role, Slot


def model_layers(fields: ConfigFields, count: int) -> tuple[Layer, ...]:
    """All layers of the model proper, in order."""
    ratios = compression_ratios(fields, count)
    if ratios is not None:
        return tuple(_layer(fields, Slot(Role.ATTEND), i, ratio=ratios[i]) for i in range(min(count, len(ratios))))
    slots = layer_slots(fields, count)
    return _sharing(fields, tuple(_layer(fields, slot, index) for index, slot in enumerate(slots)), slots)


def draft_layers(fields: ConfigFields, layers: tuple[Layer, ...]) -> tuple[Layer, ...]:
    """MTP layers that the checkpoint carries: as many as it says, each like the model's last attention layer."""
    count = fields.stated_whole("num_nextn_predict_layers") or fields.stated_whole("mtp_num_hidden_layers") or 0
    if fields.stated_whole("num_mtp_modules") and not count:
        fields.note("num_mtp_modules is stated, but vLLM and SGLang do not serve these modules: no draft layers")
    if not count:
        return ()
    first = len(layers)
    pattern = fields.text("mtp_hybrid_override_pattern")  # Nemotron-H: "*E" per draft step
    if pattern:
        slots = nemotron_slots(pattern)
        return tuple(_layer(fields, slot, first + i) for i, slot in enumerate(slots * count))
    ratios = compression_ratios(fields, first)
    if ratios is not None:
        extra = (*ratios[first:], *([0] * count))[:count]
        return tuple(_layer(fields, Slot(Role.ATTEND), first + i, ratio=ratio) for i, ratio in enumerate(extra))
    return tuple(_layer(fields, Slot(Role.ATTEND), first + i) for i in range(count))


def _layer(fields: ConfigFields, slot: Slot, index: int, *, ratio: int | None = None) -> Layer:
    attention: Attention | None = None
    state: RecurrentState | None = None
    cross: CrossAttention | None = None
    if ratio is not None:
        attention = compressed_of(fields, ratio)
    elif slot.role in (Role.ATTEND, Role.SLIDE, Role.CHUNK, Role.ATTEND_AND_STATE):
        attention = None if skips_attention(fields, index) else attention_of(fields, slot.role, index)
    if slot.role in (Role.STATE, Role.ATTEND_AND_STATE):
        state = state_of(fields)
    elif slot.role is Role.CONV:
        state = conv_of(fields)
    elif slot.role is Role.CROSS or _encoder_decoder(fields):
        cross = cross_of(fields)
    without_mlp = fields.model_type in ("mamba", "mamba2", "falcon_mamba")
    mlp = None if without_mlp else mlp_of(fields, slot, index)
    alone = slot.mlp != "config" or without_mlp
    return Layer(
        index=index,
        attention=attention,
        state=state,
        cross=cross,
        mlp=mlp,
        weights=layer_weights(fields, attention=attention, state=state, cross=cross, mlp=mlp, alone=alone),
    )


def _encoder_decoder(fields: ConfigFields) -> bool:
    return fields.flag("is_encoder_decoder")


def _sharing(fields: ConfigFields, layers: tuple[Layer, ...], slots: tuple[Slot, ...]) -> tuple[Layer, ...]:
    """Layers that read an earlier layer's K and V.

    Gemma 3n and 4: the last `num_kv_shared_layers` read the last earlier layer of their own kind. Hunyuan's `use_cla`:
    all but every `cla_share_factor`-th read the one before.
    """
    shared = fields.whole("num_kv_shared_layers") or 0
    factor = fields.whole("cla_share_factor") if fields.flag("use_cla") else None
    own = len(layers) - shared
    result: list[Layer] = []
    for index, layer in enumerate(layers):
        source = None
        if factor and index % factor:
            source = index - index % factor
        elif index >= own > 0:
            source = max((i for i in range(own) if slots[i].role is slots[index].role), default=None)
        result.append(layer if source is None else _reading(layer, source))
    return tuple(result)


def _reading(layer: Layer, source: int) -> Layer:
    """A layer that reads another's cache has no K and V projections (nor the norm of K) of its own."""
    weights = layer.weights
    if weights is not None:
        weights = replace(weights, attention=weights.attention - weights.kv_projection, kv_projection=0)
        if isinstance(layer.attention, GroupedAttention):
            weights = replace(weights, replicated=weights.replicated - layer.attention.k_dim)
    return replace(layer, kv_source=source, weights=weights)
