"""How a model is spread: which layers a pipeline stage has, and what of each layer a rank holds. Pure.

    layers ──stage_partition──▶ stages ──rank_layer──▶ the layer as one rank sees it ──▶ footprint

A rank's layer is a `Layer` again, with the rank's own heads and weights, so every formula works on both.
Rules as vLLM 0.32 (`get_pp_indices`, `MambaStateShapeCalculator`) and SGLang 0.5.23 (`get_pp_indices`) have them.
"""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum

from longproof.errors import LayoutError
from longproof.geometry.kinds import CrossAttention, GroupedAttention, LayerKind, RecurrentState
from longproof.geometry.model import Layer, LayerWeights


class PartitionRule(StrEnum):
    """Which stages take the layers that are left over when they do not divide."""

    VLLM = "vllm"
    """From the last but one towards the first: 61 over 8 is 7,7,8,8,8,8,8,7."""
    SGLANG = "sglang"
    """The last stages: 61 over 8 is 7,7,7,8,8,8,8,8."""
    TENSORRT_LLM = "tensorrt-llm"
    """The first stages."""


def stage_partition(
    layers: int, stages: int, rule: PartitionRule = PartitionRule.VLLM, *, given: tuple[int, ...] = ()
) -> tuple[int, ...]:
    """Layers of each pipeline stage: as `given`, else by the engine's rule. Raises LayoutError: it does not add up."""
    if given:
        if len(given) != stages or sum(given) != layers or min(given) < 0:
            raise LayoutError(
                f"the partition {','.join(map(str, given))} gives {sum(given)} layers to {len(given)} stages; "
                f"the model has {layers} layers and the layout {stages} stages",
                advice=f"give {stages} numbers that add up to {layers}",
                rule="a pipeline partition names every layer once",
            )
        return given
    if stages < 1 or stages > layers:
        raise LayoutError(
            f"{layers} layers cannot be spread over {stages} stages",
            advice=f"use between 1 and {layers} pipeline stages",
            rule="every pipeline stage has at least one layer",
        )
    each, left = divmod(layers, stages)
    counts = [each] * stages
    for extra in range(left):
        match rule:
            case PartitionRule.VLLM:
                counts[-2 - extra] += 1
            case PartitionRule.SGLANG:
                counts[-1 - extra] += 1
            case PartitionRule.TENSORRT_LLM:
                counts[extra] += 1
    return tuple(counts)


def stage_bounds(partition: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """(first layer, one past the last layer) of each stage."""
    bounds: list[tuple[int, int]] = []
    first = 0
    for count in partition:
        bounds.append((first, first + count))
        first += count
    return tuple(bounds)


def kv_heads_on_rank(kv_heads: int, ranks: int) -> int:
    """KV heads one of `ranks` tensor-parallel ranks holds: at least one, so heads repeat when there are fewer than
    ranks. Raises LayoutError when neither divides the other."""
    if kv_heads % ranks and ranks % kv_heads:
        raise LayoutError(
            f"{kv_heads} KV heads cannot be split over {ranks} tensor-parallel ranks",
            advice=f"use a tensor-parallel size that divides {kv_heads} or is a multiple of it",
            rule="KV heads divide by the tensor-parallel size, or it is a multiple of them",
        )
    return max(1, kv_heads // ranks)


def rank_layer(layer: Layer, attention_ranks: int, *, mlp_ranks: int = 1, expert_ranks: int = 1) -> Layer:
    """The layer as one rank holds it.

    `attention_ranks`: ranks that share the heads (TP, or TP / DP with data-parallel attention). MLA latents, indexers
    and compressed caches do not divide: every rank has them whole. `mlp_ranks`: ranks that share the dense MLP.
    `expert_ranks`: ranks that share the routed experts, by slicing or by expert parallelism. Raises LayoutError.
    """
    weights = layer.weights
    return replace(
        layer,
        attention=_rank_heads(layer.attention, attention_ranks)
        if isinstance(layer.attention, GroupedAttention)
        else layer.attention,
        state=None if layer.state is None else rank_state(layer.state, attention_ranks),
        cross=None if layer.cross is None else _rank_cross(layer.cross, attention_ranks),
        weights=None if weights is None else _rank_weights(layer, weights, attention_ranks, mlp_ranks, expert_ranks),
    )


def rank_state(state: RecurrentState, ranks: int) -> RecurrentState:
    """The state one rank keeps: heads divide; groups divide too, or each rank gets one (Mamba2 repeats groups).

    Raises LayoutError when the heads do not divide.
    """
    if state.heads % ranks:
        raise LayoutError(
            f"{state.heads} {state.kind.value} heads cannot be split over {ranks} tensor-parallel ranks",
            advice=f"use a tensor-parallel size that divides {state.heads}",
            rule="recurrent heads divide by the tensor-parallel size",
        )
    if state.kind in (LayerKind.GDN, LayerKind.KDA) and state.groups % ranks:
        raise LayoutError(
            f"{state.groups} {state.kind.value} key heads cannot be split over {ranks} tensor-parallel ranks",
            advice=f"use a tensor-parallel size that divides {state.groups}",
            rule="linear-attention key heads divide by the tensor-parallel size",
        )
    # vLLM extends the groups to the number of ranks when they do not divide (extra_groups_for_head_shards)
    groups = state.groups // ranks if state.groups % ranks == 0 else 1
    return replace(state, heads=state.heads // ranks, groups=groups)


def _rank_heads(attention: GroupedAttention, ranks: int) -> GroupedAttention:
    return replace(
        attention,
        query_heads=_query_heads(attention.query_heads, ranks),
        kv_heads=kv_heads_on_rank(attention.kv_heads, ranks),
    )


def _rank_cross(cross: CrossAttention, ranks: int) -> CrossAttention:
    return replace(
        cross,
        query_heads=_query_heads(cross.query_heads, ranks),
        kv_heads=kv_heads_on_rank(cross.kv_heads, ranks),
    )


def _query_heads(heads: int | None, ranks: int) -> int | None:
    if heads is None:
        return None
    if heads % ranks:
        raise LayoutError(
            f"{heads} attention heads cannot be split over {ranks} tensor-parallel ranks",
            advice=f"use a tensor-parallel size that divides {heads}",
            rule="attention heads divide by the tensor-parallel size",
        )
    return heads // ranks


def _rank_weights(
    layer: Layer, weights: LayerWeights, attention_ranks: int, mlp_ranks: int, expert_ranks: int
) -> LayerWeights:
    kv = weights.kv_projection
    if kv and isinstance(layer.attention, GroupedAttention):
        heads = layer.attention.kv_heads
        kv = kv * kv_heads_on_rank(heads, attention_ranks) // heads
    return LayerWeights(
        attention=-(-(weights.attention - weights.kv_projection) // attention_ranks) + kv,
        kv_projection=kv,
        mlp=-(-weights.mlp // mlp_ranks),
        experts=-(-weights.experts // expert_ranks),
        active_experts=-(-weights.active_experts // expert_ranks),
        replicated=weights.replicated,
    )
