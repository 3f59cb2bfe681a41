"""vLLM: which layers share a block table, and what one block id then costs on each stage.

    10 full + 30 state layers ─▶ buckets of one spec ─▶ groups of 10: full.0-9 | state.0,3,… | state.1,4,… | state.2,5,…

All groups draw block ids from one pool, so a block costs the widest group's pages on that stage, and a request takes
the sum of its blocks over all groups. Read in 0.32 (v1/core/kv_cache_utils.py, get_kv_cache_groups). DeepSeek V4 puts
blocks outermost and is grouped otherwise: see vllm_packed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from longproof.errors import UsageError
from longproof.plan.vllm_specs import CacheKind, CacheSpec, LayerCache

_NEARLY_EQUAL = 1.5
"""Below this ratio of bucket sizes the smaller bucket is padded instead of the larger one split."""
_FULL_FAMILY = (CacheKind.FULL, CacheKind.MLA)


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheGroup:
    """Layers behind one block table. `spec` is representative: all members need the same number of blocks.

    `padding_layers`: pages of the group that no layer uses, because another group is wider.
    """

    spec: CacheSpec
    members: tuple[LayerCache, ...]

    def stage_bytes(self, first_layer: int, last_layer: int) -> int:
        """Bytes of one block for the members on layers first_layer ≤ i < last_layer."""
        return sum(m.spec.page_bytes for m in self.members if first_layer <= m.layer < last_layer)


def group_layers(caches: Sequence[LayerCache]) -> tuple[CacheGroup, ...]:
    """The groups of the whole model, in vLLM's order; empty for a model without any cache. Raises UsageError."""
    if not caches:
        return ()
    if same_blocks(caches):
        widest = max(caches, key=lambda c: c.spec.page_bytes)
        return (CacheGroup(spec=widest.spec, members=tuple(caches)),)
    buckets = _buckets(_unify_pages(caches))
    size = _group_size([len(bucket) for bucket in buckets])
    groups: list[CacheGroup] = []
    for bucket in buckets:
        count = -(-len(bucket) // size)
        # Every count-th layer, so that each pipeline stage has its share of every group.
        for i in range(count):
            members = tuple(bucket[i::count])
            groups.append(CacheGroup(spec=members[0].spec, members=members))
    return tuple(groups)


def bytes_per_block(groups: Sequence[CacheGroup], first_layer: int, last_layer: int) -> int:
    """What one block id costs on a stage: the widest group's pages there."""
    return max((group.stage_bytes(first_layer, last_layer) for group in groups), default=0)


def padding_layers(groups: Sequence[CacheGroup]) -> int:
    """Pages per block that hold no layer, over all groups (vLLM logs them as padding layers)."""
    widest = max((len(group.members) for group in groups), default=0)
    return sum(widest - len(group.members) for group in groups)


def same_blocks(caches: Sequence[LayerCache]) -> bool:
    """One block table serves all (`UniformTypeKVCacheSpecs`): same kind, block, window and sharding."""
    first = caches[0].spec

    def alike(spec: CacheSpec) -> bool:
        same_kind = spec.kind is first.kind or (spec.kind in _FULL_FAMILY and first.kind in _FULL_FAMILY)
        same_state = spec.kind is not CacheKind.STATE or spec.page_bytes == first.page_bytes
        return (
            same_kind
            and same_state
            and (spec.block_tokens, spec.window_tokens, spec.chunk_tokens, spec.state_blocks, spec.dcp)
            == (first.block_tokens, first.window_tokens, first.chunk_tokens, first.state_blocks, first.dcp)
        )

    return all(alike(cache.spec) for cache in caches)


def _unify_pages(caches: Sequence[LayerCache]) -> list[LayerCache]:
    """Every page as large as the largest: a smaller one takes more tokens where it divides, else it is padded."""
    largest = max(cache.spec.page_bytes for cache in caches)
    return [replace(cache, spec=_enlarged(cache.spec, largest)) for cache in caches]


def _enlarged(spec: CacheSpec, page_bytes: int) -> CacheSpec:
    if spec.page_bytes == page_bytes:
        return spec
    if spec.kind is CacheKind.STATE:
        return replace(spec, page_bytes=page_bytes)
    ratio, rest = divmod(page_bytes, spec.page_bytes)
    if rest == 0:
        return replace(
            spec,
            block_tokens=spec.block_tokens * ratio,
            content_bytes=spec.content_bytes * ratio,
            page_bytes=page_bytes,
        )
    if spec.kind is CacheKind.MLA:
        raise UsageError(
            f"vLLM cannot share a pool between MLA pages of {spec.page_bytes} bytes and pages of {page_bytes}",
            advice="choose a draft model or a KV dtype whose page is a multiple of the model's",
        )
    return replace(spec, page_bytes=page_bytes)


def _buckets(caches: Sequence[LayerCache]) -> list[list[LayerCache]]:
    found: dict[CacheSpec, list[LayerCache]] = {}
    for cache in caches:
        found.setdefault(cache.spec, []).append(cache)
    return list(found.values())


def _group_size(counts: Sequence[int]) -> int:
    smallest, largest = min(counts), max(counts)
    return largest if largest < smallest * _NEARLY_EQUAL else smallest
