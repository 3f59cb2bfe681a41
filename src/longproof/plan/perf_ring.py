"""Ring attention over N context-parallel ranks: pass K and V around, or pass Q.

    pass-KV   every step sends (T+P)/N tokens of K and V; nothing after the ring
    pass-Q    every step sends T/N queries; then one All2All brings the partial outputs home

Per layer, N-1 of N steps overlap with a send: exposed = (N-1) · max(0, send - attention) [+ All2All for pass-Q].
Source of messages and choice: arXiv:2411.01783, section 3.4 and algorithm 1, recomputed on its Tables 4 and 5.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from longproof.hardware.device import Device
from longproof.plan.perf_links import (
    ALL_TO_ALL_SECONDS,
    NIC_SHARE,
    all_to_all_seconds,
    scale_out_rate,
    send_seconds,
)

RING_LAYER_SECONDS, RING_STEP_SECONDS = 1.0e-3, 0.6e-3
"""Prefill time per layer that neither arithmetic nor bytes explain: once, and for each further rank (CP2 to CP16 of
Llama-3.1-405B at 8k to 128k)."""


CACHED_TOKEN_SECONDS = 75e-9
"""Prefill time per layer for each token in cache on a rank, when a prefix is already there: Table 4 is this much slower
than the same arithmetic without one, whatever the number of new tokens. Fitted, unexplained."""


class RingPass(StrEnum):
    """What travels around the ring."""

    KV = "pass-KV"
    Q = "pass-Q"


@dataclass(frozen=True, slots=True, kw_only=True)
class RingHeads:
    """The attention of one layer as a ring sees it. `kv_heads` before tensor parallelism; `element_bytes` of K, V, Q
    on the wire."""

    query_heads: int
    kv_heads: int
    head_dim: int
    element_bytes: float = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RingStep:
    """One layer of a ring, in seconds: one `send`, one `attention` step, the `all_to_all` after it, and the sum that
    cannot be hidden."""

    choice: RingPass
    send: float
    attention: float
    all_to_all: float
    exposed: float


def message_bytes(heads: RingHeads, ring: RingPass, *, ranks: int, tp: int, new: int, cached: int) -> float:
    """Bytes one device sends per ring step."""
    if ring is RingPass.KV:
        per_device = max(1.0, heads.kv_heads / tp)
        return (new + cached) / ranks * 2 * per_device * heads.head_dim * heads.element_bytes
    return new / ranks * heads.query_heads / tp * heads.head_dim * heads.element_bytes


def smaller_message_share(heads: RingHeads) -> float:
    """Share of new tokens T/(T+P) above which K and V are the smaller message: 2·NKV/NH (equation 1)."""
    return 2 * heads.kv_heads / heads.query_heads


def hidden_tokens(heads: RingHeads, *, ranks: int, flops: float, rate: float) -> float:
    """New tokens from which the attention of a step hides the sending of K and V: N·C·NKV·e/(2·NH·BW).

    `flops` one device reaches, `rate` bytes per second one device sends.
    """
    return ranks * flops * heads.kv_heads * heads.element_bytes / (2 * heads.query_heads * rate)


def choose_pass(heads: RingHeads, *, ranks: int, flops: float, rate: float, new: int, cached: int) -> RingPass:
    """pass-KV when its sends are hidden or its messages smaller, else pass-Q.

    Give achieved figures, not peaks: with 540 TFLOP/s and 26 GB/s the rule is right in 13 of the 14 cells of Table 4
    (worst regret 0.27 %), with peaks in 12.
    """
    if new >= hidden_tokens(heads, ranks=ranks, flops=flops, rate=rate):
        return RingPass.KV
    return RingPass.KV if new / (new + cached) >= smaller_message_share(heads) else RingPass.Q


def ring_step(
    device: Device,
    heads: RingHeads,
    *,
    ranks: int,
    tp: int,
    flops: float,
    new: int,
    cached: int,
    ring: RingPass | None = None,
) -> RingStep:
    """One layer on a ring of `ranks`. `ring` None: the rule chooses. `flops` is what one device reaches."""
    if ring is None:
        # Inside one domain a send is so fast that K and V are always hidden.
        within = ranks * tp <= device.scale_up.devices
        rate = float("inf") if within else NIC_SHARE * scale_out_rate(device)
        ring = choose_pass(heads, ranks=ranks, flops=flops, rate=rate, new=new, cached=cached)
    across = ranks * tp > device.scale_up.devices
    send = send_seconds(
        device,
        tp,
        message_bytes(heads, ring, ranks=ranks, tp=tp, new=new, cached=cached),
        across_hosts=across,
    )
    pairs = new / ranks * (new / 2 + cached) / ranks
    attention = 4 * heads.query_heads / tp * heads.head_dim * pairs / flops
    back = 0.0
    if ring is RingPass.Q:
        sent = message_bytes(heads, RingPass.Q, ranks=ranks, tp=tp, new=new, cached=cached) * ranks
        back = ALL_TO_ALL_SECONDS + all_to_all_seconds(device, ranks * tp, sent)
    exposed = (ranks - 1) * max(0.0, send - attention) + back
    return RingStep(choice=ring, send=send, attention=attention, all_to_all=back, exposed=exposed)


def minimum_block_tokens(flops: float, rate: float) -> float:
    """Tokens per device from which a ring hides its sends, independent of the model: c ≥ F/B (Ring Attention,
    arXiv:2310.01889, Table 2)."""
    return flops / rate


def minimum_sequence_tokens(flops: float, rate: float) -> float:
    """Tokens per device that need memory for the six blocks in flight: 6c (same table)."""
    return 6 * minimum_block_tokens(flops, rate)
