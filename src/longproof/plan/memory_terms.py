"""What stands on a device beside the KV cache and the weights: activations, CUDA graphs, communication. Fitted.

    activation    the larger of    forward   T x 2 B x (3 x MLP width per rank + 4 x hidden)
                                   sampling  S x vocab x 14.2 B + 0.09 GiB + T x hidden x 2 B    (last stage)
    graphs        0.35 GiB + 16 MiB per layer of the stage
    outside       0.25 GiB on a rank alone, 2.1 GiB where ranks exchange

T is max_num_batched_tokens, S max_num_seqs. Constants from 36 runs of vLLM 0.16 to 0.19 on H100 80 GB that printed each
term (github.com/llm-d-incubation/llm-d-planner, pull request 205, 2026-04-22). The bands cover the text models among
them; vision towers take up to 0.7 GiB more in their profile run, which nothing in a config tells.
"""

from __future__ import annotations

from longproof.domain.measure import Measured, Provenance, Reading, Unknown, value_or_none
from longproof.geometry.dtypes import weight_element_bytes
from longproof.geometry.model import Mlp, ModelGeometry
from longproof.geometry.weights import ByteEstimate
from longproof.plan.capacity import Device, Launch

GIB = 1 << 30
_LOGIT_BYTES = 14.2
"""Per sequence and vocabulary entry while sampling; 36 before 0.17 (one run: Qwen3-14B 5.64 GiB in 0.16)."""
_OLD_LOGIT_BYTES = 36.0
_ACTIVATION_BAND, _OLD_ACTIVATION_BAND = 0.20, 0.35
_GRAPH_BAND = 0.45
_SOURCE = "fitted on 36 published vLLM 0.16 to 0.19 runs (llm-d-planner pull request 205)"
_ALONE = (0.25, 0.05, 0.50)
_TOGETHER = (2.10, 1.80, 2.40)
_PIPED = (0.25, 0.05, 0.90)


def estimate(best: float, low: float, high: float, source: str) -> Measured[ByteEstimate]:
    """Bytes that a rule of thumb gives: assumed, with the band it was seen to have."""
    value = ByteEstimate(best_bytes=round(best), low_bytes=round(low), high_bytes=round(high))
    return Measured(value=value, provenance=Provenance.ASSUMED, source=source)


def activation_bytes(
    geometry: ModelGeometry, launch: Launch, *, batched_tokens: int, sequences: int, old: bool, last_stage: bool
) -> Reading[ByteEstimate]:
    """Peak of the profile run on one rank. `old`: a release before 0.17. Unknown without hidden size or vocabulary."""
    hidden, vocab = value_or_none(geometry.hidden_size), value_or_none(geometry.vocab_size)
    if hidden is None or vocab is None:
        return Unknown(reason="the activation peak needs hidden_size and vocab_size")
    element = _element_bytes(geometry)
    widest = max((_mlp_width(layer.mlp, hidden, launch.layout.tp) for layer in geometry.layers), default=0)
    received = 2 * hidden if launch.layout.pp > 1 else 0  # what the stage before sends
    peak = batched_tokens * element * (widest + 4 * hidden + received)
    if last_stage:
        each = _OLD_LOGIT_BYTES if old else _LOGIT_BYTES
        sampling = min(sequences, batched_tokens) * vocab * each + 0.09 * GIB + batched_tokens * hidden * element
        peak = max(peak, sampling)
    band = _OLD_ACTIVATION_BAND if old else _ACTIVATION_BAND
    unlisted = bool(geometry.outer is not None and geometry.outer.unlisted)
    high = peak * (1 + band) + (0.7 * GIB if unlisted else 0)
    return estimate(peak, peak * (1 - band), high, f"{_SOURCE}: {batched_tokens:,} tokens, {sequences:,} sequences")


def graph_bytes(layers: int, *, eager: bool, device: Device) -> Measured[ByteEstimate]:
    """CUDA graphs of one rank with so many layers; none when eager or on a CPU."""
    if eager or device is Device.CPU:
        return estimate(0, 0, 0, "no CUDA graphs")
    best = 0.35 * GIB + layers * (16 << 20)
    return estimate(best, best * (1 - _GRAPH_BAND), best * (1 + _GRAPH_BAND), _SOURCE)


def communication_bytes(launch: Launch) -> Measured[ByteEstimate]:
    """What lies outside the allocator: the context's growth, and NCCL's buffers where ranks exchange."""
    layout = launch.layout
    together = layout.tp > 1 or layout.dp_attention or layout.ep > 1 or layout.pcp > 1
    best, low, high = _TOGETHER if together else _PIPED if layout.pp > 1 else _ALONE
    return estimate(best * GIB, low * GIB, high * GIB, _SOURCE)


def compute_buffer_bytes(geometry: ModelGeometry, launch: Launch) -> Reading[ByteEstimate]:
    """llama.cpp's compute buffer: one micro batch's logits and its widest MLP in float32, ± half."""
    hidden, vocab = value_or_none(geometry.hidden_size), value_or_none(geometry.vocab_size)
    if hidden is None or vocab is None:
        return Unknown(reason="the compute buffer needs the hidden and the vocabulary size")
    widest = max((_mlp_width(layer.mlp, hidden, 1) for layer in geometry.layers), default=0)
    rows = launch.llamacpp.micro_batch_tokens
    best = rows * 4.0 * (vocab + widest + 4 * hidden)
    return estimate(best, best * 0.5, best * 1.5, f"a micro batch of {rows:,} tokens in float32")


def _element_bytes(geometry: ModelGeometry) -> int:
    dtype = value_or_none(geometry.dtype)
    return weight_element_bytes(dtype) if dtype in ("float32", "float16", "bfloat16") else 2


def _mlp_width(mlp: Mlp | None, hidden: int, tp: int) -> float:
    """Elements per token that gate, up and their product take on one rank; a mixture holds those of every chosen
    expert and the experts' outputs."""
    if mlp is None:
        return 0.0
    matrices = 3 if mlp.gated else 2
    width = matrices * (mlp.dense_size + mlp.shared_size) / tp
    if mlp.experts:
        width += max(1, mlp.experts_per_token) * (matrices * mlp.expert_size / tp + hidden)
    return width
