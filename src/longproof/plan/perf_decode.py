"""How long one decoded token takes: O(n) reads.

    step = overhead per layer                                   launches, norms, routing
         + weights / (efficiency x bandwidth)                   experts: those that get a token
         + cache reads / (efficiency x bandwidth)               layers that grow, plus windows and states
         + two small all-reduces per layer under TP, a merge under DCP, a ring under context parallelism

At larger batches the projections become arithmetic: the larger of reading and computing counts.

MLA keeps one latent for all heads, so TP repeats its cache on every rank, as it repeats KV heads when there are more
ranks than heads; DCP splits those reads by tokens instead and pays a merge per layer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from longproof.errors import UsageError
from longproof.hardware.device import Device
from longproof.plan.capacity import Layout
from longproof.plan.perf_estimate import Part, Precision, Rates, TimeEstimate, known, peak_flops, rates_of
from longproof.plan.perf_links import small_all_reduce_seconds, small_gather_seconds
from longproof.plan.perf_work import AttentionWork, ModelWork

DCP_MERGE_SECONDS, DCP_DOUBLING_SECONDS = 7e-6, 7.3e-6
"""Per layer beside the exchanged bytes: once, and for each doubling of DCP. GLM-5.1 on 8 cards decodes 59.0, 53.7,
52.2, 49.7 tok/s with DCP 1, 2, 4, 8 alone, 429, 376, -, 278 with 16 sequences."""
_ACTIVATION_BYTES = 2
RING_DECODE_SECONDS, RING_DECODE_HOP_SECONDS = 93e-6, 33e-6
"""Per layer of context-parallel decode: All2All and padding once, one hop per further rank (arXiv:2411.01783, Tables 7
and 8)."""
NARROW_READ_FACTOR, NARROW_LAYER_SECONDS = 0.92, 4.4e-6
"""fp8 caches are read at this share of the bf16 rate, and cost this much more per layer (Llama-3.1-8B: 6.44 to 6.58 ms
and 4.37e-5 to 2.37e-5 ms per token on H100, 1.80e-5 to 9.72e-6 on B200)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """`sequences` decoding together, each at `context_tokens`. `tokens_each`: tokens per sequence and step (more than
    one when drafts are verified)."""

    sequences: int
    context_tokens: float
    tokens_each: int = 1


def decode_time(
    work: ModelWork,
    device: Device,
    batch: Batch,
    *,
    layout: Layout | None = None,
    precision: Precision | None = None,
    rates: Rates | None = None,
    narrow_cache: bool = False,
) -> TimeEstimate:
    """Time of one decode step. `narrow_cache`: the cache is fp8 or smaller and must be widened as it is read.

    Raises UsageError for an empty batch or a figure nobody knows.
    """
    layout = layout or Layout()
    precision = precision or Precision()
    rates = rates or rates_of(device)
    if batch.sequences < 1:
        raise UsageError("a batch of no sequences takes no time", advice="give at least one sequence")
    bandwidth = known(device.bandwidth_bytes_per_second, f"memory bandwidth of {device.title}") * rates.decode
    cache = cache_read_bytes(work, batch, layout) / (bandwidth * (NARROW_READ_FACTOR if narrow_cache else 1.0))
    parts = (
        Part(name="overhead", seconds=_overhead(work, rates, narrow_cache=narrow_cache)),
        Part(name="weights", seconds=_weights(work, device, batch, layout, precision, rates, bandwidth)),
        Part(name="cache", seconds=cache),
        Part(name="all-reduce", seconds=_all_reduce(work, device, batch, layout, rates)),
        Part(name="context-parallel", seconds=_context_parallel(work, device, batch, layout)),
    )
    return TimeEstimate(
        parts=tuple(part for part in parts if part.seconds > 0), band=rates.decode_band, notes=rates.notes
    )


def cache_read_bytes(work: ModelWork, batch: Batch, layout: Layout) -> float:
    """Cache and state bytes the busiest rank reads in one step, over all pipeline stages (they run one after another).

    Repetition included: a rank reads at least one KV head, and the whole latent of MLA.
    """
    sequences = math.ceil(batch.sequences / layout.dp)
    split = max(1, layout.tp // layout.dp) if layout.dp_attention else layout.tp
    total = 0.0
    for layer, count in work.counted:
        total += count * 2 * layer.state_bytes / split
        if layer.attention is not None:
            share = rank_share(layer.attention, split, layout)
            total += count * share * layer.attention.read_bytes(batch.context_tokens)
    return sequences * total


def rank_share(attention: AttentionWork, split: int, layout: Layout) -> float:
    """Share of a layer's cache one rank reads: one over its split, at least one head; over DCP and context parallelism
    where the layer grows."""
    heads = 1.0 if attention.shared_by_heads else max(1, attention.kv_heads // split) / attention.kv_heads
    return heads / (layout.dcp * layout.pcp if attention.grows else 1)


def cache_replication(work: ModelWork, layout: Layout) -> float:
    """How often the cache of the growing layers is stored across one tensor-parallel group: 1 = once."""
    split = max(1, layout.tp // layout.dp) if layout.dp_attention else layout.tp
    growing = [a for a in (layer.attention for layer in work.layers) if a is not None and a.grows]
    if not growing:
        return 1.0
    stored = sum(rank_share(a, split, layout) * split * layout.pcp * a.cached_bytes for a in growing)
    return stored / sum(a.cached_bytes for a in growing)


def _overhead(work: ModelWork, rates: Rates, *, narrow_cache: bool) -> float:
    mixtures = sum(count for layer, count in work.counted if layer.experts)
    narrow = NARROW_LAYER_SECONDS if narrow_cache and rates.layer_seconds else 0.0
    return (rates.layer_seconds + narrow) * len(work.layers) + rates.expert_layer_seconds * mixtures


def _weights(
    work: ModelWork,
    device: Device,
    batch: Batch,
    layout: Layout,
    precision: Precision,
    rates: Rates,
    bandwidth: float,
) -> float:
    tokens = batch.sequences * batch.tokens_each
    reading = work.weight_bytes(tokens) / (layout.tp * bandwidth)
    active = sum(count * layer.active_elements for layer, count in work.counted) + work.head_elements
    computing = 2 * active * tokens / (layout.tp * peak_flops(device, precision.weights) * rates.prefill)
    return max(reading, computing)


def _all_reduce(work: ModelWork, device: Device, batch: Batch, layout: Layout, rates: Rates) -> float:
    if rates.layer_seconds == 0:
        return 0.0  # the roofline counts no latency
    data = math.ceil(batch.sequences / layout.dp) * batch.tokens_each * work.hidden_size * _ACTIVATION_BYTES
    return 2 * len(work.layers) * small_all_reduce_seconds(device, layout.tp, data)


def _context_parallel(work: ModelWork, device: Device, batch: Batch, layout: Layout) -> float:
    tokens = math.ceil(batch.sequences / layout.dp) * batch.tokens_each
    seconds = 0.0
    for layer, count in work.counted:
        a = layer.attention
        if a is None or not a.grows:
            continue
        if layout.dcp > 1:
            exchanged = tokens * a.query_heads * a.merged_dim * _ACTIVATION_BYTES
            seconds += count * (DCP_MERGE_SECONDS + DCP_DOUBLING_SECONDS * math.log2(layout.dcp))
            seconds += count * small_gather_seconds(device, layout.dcp, exchanged)
        if layout.pcp > 1:
            seconds += count * (RING_DECODE_SECONDS + RING_DECODE_HOP_SECONDS * (layout.pcp - 1))
    return seconds
