"""vLLM: groups where pages of different sizes lie side by side in one block (DeepSeek V4).

    block │ bucket of 256-token pages, whole        │ its largest group sets what a block costs
          │ windows split to about as many layers   │
          │ compressor states, one pattern per layer│

Layers that need the same blocks form a bucket. A bucket that repeats one page of each size per layer must stay whole;
the largest such bucket is the least number of repeats a group has, and buckets of one size are split towards it, so
that little padding is left. Read in 0.32 (`_get_packed_kv_cache_groups`, `_approximate_gcd`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from longproof.errors import UsageError
from longproof.plan.vllm_groups import CacheGroup, same_blocks
from longproof.plan.vllm_specs import CacheKind, LayerCache


def packed_groups(caches: Sequence[LayerCache]) -> tuple[CacheGroup, ...]:
    """The groups of a model laid out block by block. Raises UsageError for a mixture vLLM cannot pack."""
    buckets = _buckets(caches)
    repeats = _repeats_per_group(buckets)
    counts = [_group_count(bucket, repeats) for bucket in buckets]
    anchor = max(
        (
            _widest_bytes(bucket, len(bucket) if _is_state(bucket, repeats) else count)
            for bucket, count in zip(buckets, counts, strict=True)
        ),
        default=0,
    )
    groups: list[CacheGroup] = []
    for bucket, count in zip(buckets, counts, strict=True):
        split = count
        if _is_state(bucket, repeats):
            # Never more states in a group than a block holds anyway.
            held = max(anchor // bucket[0].spec.page_bytes, 1)
            split = max(count, -(-len(bucket) // held))
        groups += _split(bucket, split)
    return tuple(groups)


def _split(bucket: list[LayerCache], count: int) -> list[CacheGroup]:
    if count == 1:
        return [CacheGroup(spec=bucket[0].spec, members=tuple(bucket))]
    if not _balanced(bucket):
        raise UsageError(
            "vLLM cannot split a bucket whose page sizes have different numbers of layers",
            advice="start the server and read its KV cache lines",
        )
    patterns = list(zip(*_by_page(bucket).values(), strict=True))
    members = [tuple(cache for pattern in patterns[i::count] for cache in pattern) for i in range(count)]
    return [CacheGroup(spec=group[0].spec, members=group) for group in members]


def _is_state(bucket: Sequence[LayerCache], repeats: int | None) -> bool:
    """A bucket that may be split down to one layer a group: states, and windows where no pattern fixes the split."""
    kind = bucket[0].spec.kind
    return kind is CacheKind.STATE or (repeats is None and kind is CacheKind.SLIDING)


def _widest_bytes(bucket: Sequence[LayerCache], count: int) -> int:
    """Page bytes of the largest of the `count` groups a bucket splits into."""
    return sum(-(-len(layers) // count) * page for page, layers in _by_page(bucket).items())


def _buckets(caches: Sequence[LayerCache]) -> list[list[LayerCache]]:
    buckets: list[list[LayerCache]] = []
    for cache in caches:
        for bucket in buckets:
            if same_blocks([bucket[0], cache]):
                bucket.append(cache)
                break
        else:
            buckets.append([cache])
    return buckets


def _by_page(bucket: Sequence[LayerCache]) -> dict[int, list[LayerCache]]:
    found: dict[int, list[LayerCache]] = {}
    for cache in bucket:
        found.setdefault(cache.spec.page_bytes, []).append(cache)
    return found


def _balanced(bucket: Sequence[LayerCache]) -> bool:
    """One page of each size per layer: equally many layers of every size."""
    return len({len(layers) for layers in _by_page(bucket).values()}) == 1


def _repeats(bucket: Sequence[LayerCache]) -> int:
    return Counter(cache.spec.page_bytes for cache in bucket).most_common(1)[0][1]


def _repeats_per_group(buckets: Sequence[Sequence[LayerCache]]) -> int | None:
    """Layers a group should cover; None when no bucket mixes page sizes."""
    balanced = [bucket for bucket in buckets if _balanced(bucket)]
    least = max((_repeats(bucket) for bucket in balanced if len(_by_page(bucket)) > 1), default=0)
    return _least_padding([_repeats(bucket) for bucket in balanced], least) if least else None


def _least_padding(counts: Sequence[int], least: int) -> int:
    """The size ≥ `least` whose multiples exceed `counts` by the least in all; the largest of equals."""
    sizes = range(least, max(*counts, least) + 1)
    return min(sizes, key=lambda size: (sum(-count % size for count in counts), -size))


def _group_count(bucket: Sequence[LayerCache], repeats: int | None) -> int:
    return -(-_repeats(bucket) // repeats) if repeats is not None and _balanced(bucket) else 1
