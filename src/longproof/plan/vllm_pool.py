"""vLLM: the groups of a launch and the stages they lie on, independent of how much memory there is.

`VllmPool` answers every question about need; memory only decides the number of blocks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from longproof.domain.measure import value_or_none
from longproof.errors import LayoutError, UsageError
from longproof.geometry.kinds import GroupedAttention, LatentAttention
from longproof.geometry.model import Layer, ModelGeometry
from longproof.geometry.sharding import stage_bounds, stage_partition
from longproof.plan.capacity import Launch
from longproof.plan.vllm_defaults import concurrent_batches, default_batched_tokens
from longproof.plan.vllm_groups import CacheGroup, bytes_per_block, group_layers
from longproof.plan.vllm_hybrid import page_rules
from longproof.plan.vllm_need import total_blocks
from longproof.plan.vllm_packed import packed_groups
from longproof.plan.vllm_pages import PageRules, distinct_layers, is_compressed, layer_specs, shape_of
from longproof.plan.vllm_release import ReleaseRules, rules_for
from longproof.plan.vllm_specs import CacheKind, LayerCache


@dataclass(frozen=True, kw_only=True)
class VllmPool:
    """The shared block pool of one launch.

    `stages` are (first layer, one past the last) of each pipeline stage, draft layers on the last one. `length_tokens`
    is max_model_len: given, else the model's trained window. `in_flight_tokens`: what windowed groups keep beside the
    window.
    """

    rules: ReleaseRules
    pages: PageRules
    groups: tuple[CacheGroup, ...]
    stages: tuple[tuple[int, int], ...]
    length_tokens: int
    in_flight_tokens: int
    dcp: int

    @cached_property
    def stage_block_bytes(self) -> tuple[int, ...]:
        """What one block id costs on each stage."""
        return tuple(bytes_per_block(self.groups, first, last) for first, last in self.stages)

    @cached_property
    def model_block_bytes(self) -> int:
        """What one block id would cost if one rank held all layers."""
        return bytes_per_block(self.groups, 0, self.stages[-1][1])

    def blocks_for(self, tokens: int) -> int:
        """Block ids a request of `tokens` (prompt and output) takes."""
        return total_blocks(self.groups, tokens, self.in_flight_tokens)


def build_pool(geometry: ModelGeometry, launch: Launch) -> VllmPool:
    """The pool of a launch. Raises LayoutError for a layout vLLM refuses, UsageError for what is not modelled."""
    rules = rules_for(launch.version)
    if is_compressed(geometry) and not rules.packs_compressed:
        raise UsageError(
            f"how vLLM {launch.version} groups DeepSeek V4's compressed caches is not modelled",
            advice="plan for a release from 0.28, or start the server and read its concurrency line",
        )
    _check_layout(geometry, launch)
    pages = page_rules(geometry, launch, rules)
    drafts = _draft_layers(geometry, launch)
    layers = (*geometry.layers, *drafts)
    specs = {shape: layer_specs(layer, geometry, launch, pages) for shape, layer in distinct_layers(layers).items()}
    caches = [
        LayerCache(layer=index, spec=spec) for index, layer in enumerate(layers) for spec in specs[shape_of(layer)]
    ]
    caches += _foreign_drafts(geometry, launch, pages, first=len(geometry.layers) + len(drafts))
    return VllmPool(
        rules=rules,
        pages=pages,
        groups=packed_groups(caches) if is_compressed(geometry) else group_layers(caches),
        stages=_stages(geometry, launch, last=max((c.layer for c in caches), default=0) + 1),
        length_tokens=_length(geometry, launch),
        in_flight_tokens=concurrent_batches(launch, rules) * default_batched_tokens(launch, rules),
        dcp=launch.layout.dcp,
    )


def _length(geometry: ModelGeometry, launch: Launch) -> int:
    length = launch.max_model_len_tokens or value_or_none(geometry.max_position_tokens)
    if length is None:
        raise UsageError(
            "neither the launch nor the model says how long a request may be",
            advice="give max_model_len",
        )
    return length


def _stages(geometry: ModelGeometry, launch: Launch, *, last: int) -> tuple[tuple[int, int], ...]:
    partition = stage_partition(len(geometry.layers), launch.layout.pp, given=launch.layout.partition)
    bounds = stage_bounds(partition)
    return (*bounds[:-1], (bounds[-1][0], max(bounds[-1][1], last)))


def _draft_layers(geometry: ModelGeometry, launch: Launch) -> tuple[Layer, ...]:
    speculation = launch.speculation
    if speculation is None or speculation.draft is not None:
        return ()
    if speculation.extra_kv_layers is not None:
        template = geometry.drafts or geometry.layers[-1:]
        return tuple(template[i % len(template)] for i in range(speculation.extra_kv_layers))
    return geometry.drafts if speculation.method.endswith("mtp") else ()


def _foreign_drafts(geometry: ModelGeometry, launch: Launch, pages: PageRules, *, first: int) -> list[LayerCache]:
    """Caches of a draft model of its own. Beside an MLA target a GQA draft is not split by DCP."""
    draft = launch.speculation.draft if launch.speculation else None
    if draft is None:
        return []
    whole = any(isinstance(layer.attention, LatentAttention) for layer in geometry.layers)
    return [
        LayerCache(layer=first + index, spec=replace(spec, dcp=1) if whole and spec.kind is CacheKind.FULL else spec)
        for index, layer in enumerate(draft.layers)
        for spec in layer_specs(layer, draft, launch, pages)
    ]


def _check_layout(geometry: ModelGeometry, launch: Launch) -> None:
    layout = launch.layout
    if layout.dcp <= 1:
        return
    grouped = [layer.attention for layer in geometry.layers if isinstance(layer.attention, GroupedAttention)]
    windowed = [a for a in grouped if a.window_tokens or a.chunk_tokens]
    if windowed and launch.vllm.hybrid_manager:
        raise LayoutError(
            f"decode context parallelism of {layout.dcp} on a model with sliding windows",
            advice="use --decode-context-parallel-size 1",
            rule="DCP not support sliding window.",
        )
    latent = any(isinstance(layer.attention, LatentAttention) for layer in geometry.layers)
    if layout.pcp == 1 and layout.tp % layout.dcp:
        raise LayoutError(
            f"decode context parallel size {layout.dcp} does not divide tensor parallel size {layout.tp}",
            advice=f"use a divisor of {layout.tp}",
            rule="tensor parallel size must be divisible by decode context parallel size",
        )
    heads = max((a.kv_heads for a in grouped), default=0)
    if not latent and heads and (layout.tp <= heads or layout.dcp > layout.tp // heads):
        raise LayoutError(
            f"decode context parallel size {layout.dcp} with {heads} KV heads and tensor parallel size {layout.tp}",
            advice=f"use at most {max(1, layout.tp // heads)}, or a larger tensor parallel size",
            rule="tensor parallel size must exceed the KV heads, and DCP may not exceed the copies of each head",
        )
