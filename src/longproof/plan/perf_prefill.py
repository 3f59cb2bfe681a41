"""How long a prompt takes.

    projections   2·W·T                    W: weights one token passes through
    attention     4·T·(P+T/2)·D·L          D = query heads x head size, L layers; less where a window or top-k limits it
    ────────────────────────────────────   over ranks x efficiency x dense FLOP/s
    + all-reduce  two of T x hidden per layer under TP; they do not shrink with more ranks
    + ring        what context parallelism cannot hide
    x bubble      (M+P-1)/M for P pipeline stages and M chunks

The projections of a chunk also read their weights once, which binds short prompts of large mixtures.
"""

from __future__ import annotations

from dataclasses import dataclass

from longproof.domain.measure import Measured
from longproof.errors import UsageError
from longproof.hardware.device import Device
from longproof.plan.capacity import Layout
from longproof.plan.perf_estimate import Part, Precision, Rates, TimeEstimate, known, peak_flops, rates_of
from longproof.plan.perf_links import all_reduce_seconds, all_to_all_seconds
from longproof.plan.perf_ring import (
    CACHED_TOKEN_SECONDS,
    RING_LAYER_SECONDS,
    RING_STEP_SECONDS,
    RingHeads,
    RingPass,
    ring_step,
)
from longproof.plan.perf_work import AttentionWork, ModelWork

ACTIVATION_BYTES = 2
"""Activations travel in bf16."""
PIPELINE_CHUNK_TOKENS = 6144
"""The chunk of SGLang's published pipeline runs, used where a pipeline's chunk is not given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """`new_tokens` to compute on `cached_tokens` already there. `chunk_tokens` per forward pass; None = one pass, or
    PIPELINE_CHUNK_TOKENS under a pipeline."""

    new_tokens: int
    cached_tokens: int = 0
    chunk_tokens: int | None = None

    def chunks(self, layout: Layout) -> int:
        """Forward passes."""
        size = self.chunk_tokens or (PIPELINE_CHUNK_TOKENS if layout.pp > 1 else self.new_tokens)
        return max(1, -(-self.new_tokens // max(1, size)))


def prefill_time(
    work: ModelWork,
    device: Device,
    prompt: Prompt,
    *,
    layout: Layout | None = None,
    precision: Precision | None = None,
    rates: Rates | None = None,
    ring: RingPass | None = None,
) -> TimeEstimate:
    """Time from the first token's arrival in the engine to the last token's logits, alone on the devices.

    Queueing, tokenising and HTTP are not in it. `rates` None: as fitted for the device. `ring` forces pass-KV or
    pass-Q. Raises UsageError for an empty prompt or a figure nobody knows.
    """
    layout = layout or Layout()
    precision = precision or Precision()
    rates = rates or rates_of(device)
    if prompt.new_tokens < 1:
        raise UsageError("a prompt of no new tokens takes no prefill", advice="give at least one new token")
    chunks = prompt.chunks(layout)
    ranks = layout.tp * layout.pp * layout.pcp
    parts = [
        Part(name="projections", seconds=_projections(work, device, prompt, chunks, ranks, precision, rates)),
        Part(name="attention", seconds=_attention(work, device, prompt, layout, precision, rates)),
        Part(name="all-reduce", seconds=_all_reduce(work, device, prompt, layout)),
    ]
    if layout.pcp > 1:
        parts.append(Part(name="ring", seconds=_ring(work, device, prompt, layout, precision, rates, ring)))
    if layout.pp > 1:
        once = sum(part.seconds for part in parts)
        parts.append(Part(name="bubble", seconds=once * bubble_ratio(layout.pp, chunks)))
    return TimeEstimate(
        parts=tuple(part for part in parts if part.seconds > 0), band=rates.prefill_band, notes=rates.notes
    )


def bubble_ratio(stages: int, chunks: int) -> float:
    """Idle time of a pipeline over its busy time: (P-1)/M. As a share of the whole: (P-1)/(P-1+M)."""
    return (stages - 1) / chunks


def _projections(
    work: ModelWork, device: Device, prompt: Prompt, chunks: int, ranks: int, precision: Precision, rates: Rates
) -> float:
    peak = peak_flops(device, precision.weights) * rates.prefill
    seconds = work.weight_flops(prompt.new_tokens) / (ranks * peak)
    if not isinstance(device.bandwidth_bytes_per_second, Measured):
        return seconds  # no bandwidth figure: compute alone
    bandwidth = known(device.bandwidth_bytes_per_second, "memory bandwidth") * rates.decode
    reading = chunks * work.weight_bytes(prompt.new_tokens / chunks) / (ranks * bandwidth)
    return max(seconds, reading)


def _attention(
    work: ModelWork, device: Device, prompt: Prompt, layout: Layout, precision: Precision, rates: Rates
) -> float:
    # Under DP attention one prompt's attention runs on its own rank's share of the tensor-parallel group.
    split = max(1, layout.tp // layout.dp) if layout.dp_attention else layout.tp
    peak = peak_flops(device, precision.attention) * rates.prefill
    flops = work.attention_flops(prompt.new_tokens, prompt.cached_tokens)
    return flops / (split * layout.pp * layout.pcp * peak)


def _all_reduce(work: ModelWork, device: Device, prompt: Prompt, layout: Layout) -> float:
    if layout.tp <= 1:
        return 0.0
    tokens = prompt.new_tokens / layout.pcp
    data = tokens * work.hidden_size * ACTIVATION_BYTES
    layers = len(work.layers) / layout.pp
    if layout.dp_attention and layout.ep > 1:
        chosen = max((layer.experts_per_token for layer, _ in work.counted), default=0)
        return layers * 2 * all_to_all_seconds(device, layout.ep, data * chosen / layout.ep)
    return layers * 2 * all_reduce_seconds(device, layout.tp, data)


def _ring(
    work: ModelWork,
    device: Device,
    prompt: Prompt,
    layout: Layout,
    precision: Precision,
    rates: Rates,
    ring: RingPass | None,
) -> float:
    flops = peak_flops(device, precision.attention) * rates.prefill
    seconds = 0.0
    for layer, count in work.counted:
        seconds += count * (RING_LAYER_SECONDS + RING_STEP_SECONDS * (layout.pcp - 1))
        if layer.attention is not None and layer.attention.grows:
            if prompt.cached_tokens:
                seconds += count * CACHED_TOKEN_SECONDS * (prompt.new_tokens + prompt.cached_tokens) / layout.pcp
            step = ring_step(
                device,
                ring_heads(layer.attention),
                ranks=layout.pcp,
                tp=layout.tp,
                flops=flops,
                new=prompt.new_tokens,
                cached=prompt.cached_tokens,
                ring=ring,
            )
            seconds += count * step.exposed
    return seconds / layout.pp


def ring_heads(attention: AttentionWork) -> RingHeads:
    """A layer's attention as a ring sees it; K and V travel in bf16."""
    return RingHeads(
        query_heads=attention.query_heads,
        kv_heads=attention.kv_heads,
        head_dim=(attention.score_dim + attention.value_dim) // 2,
        element_bytes=ACTIVATION_BYTES,
    )
