"""One function per metric: a row in, the prediction in the row's own unit out."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from perf_rows import (
    CannotDo,
    Row,
    chunk_tokens,
    device,
    geometry,
    kv_dtype,
    layout,
    narrow,
    needed,
    precision,
    seconds,
    seconds_per_unit,
    work,
)

from longproof.geometry.dtypes import KvDtype, latent_bytes
from longproof.geometry.kinds import LatentAttention
from longproof.plan.capacity import Layout
from longproof.plan.perf_decode import Batch, decode_time
from longproof.plan.perf_estimate import IDEAL, Rates, TimeEstimate, peak_flops, rates_of
from longproof.plan.perf_prefill import Prompt, prefill_time, ring_heads
from longproof.plan.perf_ring import (
    RingHeads,
    RingPass,
    minimum_block_tokens,
    minimum_sequence_tokens,
    ring_step,
    smaller_message_share,
)
from longproof.plan.perf_transfer import (
    CopyMethod,
    disk_tier,
    host_copy_rate,
    host_tier,
    pd_transfer_time,
    remote_tier,
    restore_time,
)
from longproof.plan.perf_work import ModelWork


@dataclass(frozen=True, kw_only=True)
class Metric:
    """`group` it is summed under, the prediction in the row's unit, and the estimate behind it where there is one."""

    group: str
    predict: Callable[[Row], float]
    estimate: Callable[[Row], TimeEstimate] | None = None


def in_unit(row: Row, seconds: float) -> float:
    """Seconds in the row's unit of time."""
    return seconds / seconds_per_unit(row)


# --- prefill ---------------------------------------------------------------------------------------------------------


def prefill(row: Row, *, of_layout: Layout | None = None) -> TimeEstimate:
    """The time of the row's prompt, alone on its devices."""
    if (row.batch or 1) > 1:
        raise CannotDo("several prompts at once: queueing, not a prefill time")
    cached = row.cached or 0
    if row.context is None or row.context <= cached:
        raise CannotDo("the row does not say how many tokens are new")
    rates = None
    if row.kind == "formula":  # a worked example: every peak reached, or the share it names
        share = re.search(r"(\d+) ?% (?:MFU|of peak)", row.notes)
        rates = replace(IDEAL, prefill=int(share.group(1)) / 100) if share else IDEAL
    forced = next((p for p in RingPass if p.value.lower() in row.layout.lower()), None)
    prompt = Prompt(new_tokens=row.context - cached, cached_tokens=cached, chunk_tokens=chunk_tokens(row))
    return prefill_time(
        work(row),
        device(row),
        prompt,
        layout=of_layout or layout(row),
        precision=precision(row),
        ring=forced,
        rates=rates,
    )


def achieved_flops(row: Row) -> float:
    """TFLOP/s per device."""
    asked = work(row)
    context = needed(row.context, "tokens")
    flops = asked.weight_flops(context) + asked.attention_flops(context)
    return flops / prefill(row).seconds / (row.gpus or 1) / 1e12


def share_of_peak(row: Row) -> float:
    """Achieved FLOP/s over the bf16 peak."""
    return achieved_flops(row) * 1e12 / peak_flops(device(row), "bf16")


def speedup(row: Row) -> float:
    """Time at one stage over time at the row's layout."""
    against = re.search(r"vs_(\w+)", row.metric)
    if against is None:
        raise CannotDo("the metric does not say against what")
    gpus_free = Row(**{**row.__dict__, "gpus": None})
    base = prefill(gpus_free, of_layout=layout(gpus_free, against.group(1).upper())).seconds
    return base / prefill(row).seconds


def strong_scaling(row: Row) -> float:
    """Time without the pipeline over stages x time with it."""
    spread = layout(row)
    alone = Layout(tp=spread.tp, pcp=spread.pcp)
    return prefill(row, of_layout=alone).seconds / (spread.pp * prefill(row).seconds)


# --- decode ----------------------------------------------------------------------------------------------------------


def step(row: Row, *, context: float | None = None, rates: Rates | None = None) -> TimeEstimate:
    """One decode step of the row's batch at its context."""
    if "mtp" in row.model.lower():
        raise CannotDo("drafts are accepted at a rate the row does not give")
    at = row.context if context is None else context
    if at is None:
        raise CannotDo("the row does not say its context")
    batch = Batch(sequences=row.batch or 1, context_tokens=at)
    return decode_time(
        work(row), device(row), batch, layout=layout(row), precision=precision(row), rates=rates,
        narrow_cache=narrow(row) and rates is None,
    )  # fmt: skip


def possible_step(row: Row) -> TimeEstimate:
    """One decode step, unless the published one is faster than the bytes can be read."""
    bound = step(row, rates=IDEAL)
    per_token = {"tok/s": lambda: (row.batch or 1) / row.value}.get(row.unit, lambda: seconds(row))()
    if per_token < bound.seconds:
        raise CannotDo(
            "published below the roofline of distinct contexts in the cache dtype the row gives: it lacks a fact "
            "(a narrower cache, or contexts that share blocks)"
        )
    return step(row)


def slope(row: Row) -> float:
    """Time per token per cached token, in ms, between 20,000 (or half) and the whole of the row's context."""
    far = float(needed(row.context, "context"))
    near = min(20_000.0, far / 2)
    return (step(row, context=far).seconds - step(row, context=near).seconds) / (far - near) * 1e3


def roofline(row: Row) -> float:
    """The step if every peak were reached, as the worked examples count it: bf16 arithmetic, no latency."""
    asked, on = work(row), device(row)
    context = needed(row.context, "tokens")
    batch = Batch(sequences=row.batch or 1, context_tokens=context)
    return decode_time(asked, on, batch, layout=layout(row), rates=IDEAL).seconds


def break_even(row: Row) -> float:
    """Context from which an fp8 cache makes a step shorter than a bf16 one."""
    on, low, high = device(row), 0.0, 200_000.0
    plain = _work_with(found_row=row, dtype=KvDtype.BFLOAT16)
    small = _work_with(found_row=row, dtype=KvDtype.FP8)

    def gain(context: float) -> float:
        batch = Batch(sequences=1, context_tokens=context)
        return decode_time(plain, on, batch).seconds - decode_time(small, on, batch, narrow_cache=True).seconds

    while high - low > 1:
        middle = (low + high) / 2
        low, high = (low, middle) if gain(middle) > 0 else (middle, high)
    return high


def _work_with(*, found_row: Row, dtype: KvDtype) -> ModelWork:
    word = "bf16 KV" if dtype is KvDtype.BFLOAT16 else "fp8 KV"
    return work(Row(**{**found_row.__dict__, "model": f"{found_row.model} {word}"}))


# --- ring ------------------------------------------------------------------------------------------------------------


def ring(row: Row, which: str, forced: RingPass) -> float:
    """One part of one ring step, in the row's unit."""
    on, spread, asked = device(row), layout(row), work(row)
    context = needed(row.context, "tokens")
    if spread.pcp < 2:
        raise CannotDo("the layout has no ring")
    heads = ring_heads(next(layer.attention for layer in asked.layers if layer.attention is not None))
    cached = row.cached or 0
    one = ring_step(
        on, heads, ranks=spread.pcp, tp=spread.tp, flops=peak_flops(on, "bf16") * rates_of(on).prefill,
        new=context - cached, cached=cached, ring=forced,
    )  # fmt: skip
    return in_unit(row, getattr(one, which))


def message_share(row: Row) -> float:
    """T/(T+P) from which K and V are the smaller message."""
    attention = next((layer.attention for layer in work(row).layers if layer.attention is not None), None)
    if attention is None:
        raise CannotDo("the model has no attention")
    return smaller_message_share(
        RingHeads(query_heads=attention.query_heads, kv_heads=attention.kv_heads, head_dim=attention.score_dim)
    )


def _ring_figures(row: Row) -> tuple[float, float]:
    found = re.search(r"(\d+) TF/s (\d+(?:\.\d+)?) GB/s unidirectional", row.hardware)
    if not found:
        raise CannotDo("the row gives no FLOP/s and link rate")
    return float(found.group(1)) * 1e12, float(found.group(2)) * 1e9


# --- transfers -------------------------------------------------------------------------------------------------------


def cache_bytes(row: Row) -> float:
    """Cache bytes of the row's tokens."""
    context = needed(row.context, "tokens")
    return work(row).sequence_bytes(context)


def transfer(row: Row) -> float:
    """Prefill to decode server over the NICs the hardware words give."""
    rate = re.search(r"\((\d+(?:\.\d+)?) GB/s peak\)", row.hardware)
    if not rate:
        raise CannotDo("the row gives no line rate")
    return in_unit(row, pd_transfer_time(cache_bytes(row), float(rate.group(1)) * 1e9).seconds)


def copy_rate(row: Row) -> float:
    """GB/s from host to device for the row's piece size."""
    piece = re.search(r"block (\d+) KiB", row.notes)
    if not piece:
        raise CannotDo("the row does not say its piece size")
    method = CopyMethod.KERNEL if "kernel" in row.layout else CopyMethod.DMA
    return host_copy_rate(device(row), int(piece.group(1)) * 1024, method) / 1e9


def remote_rate(row: Row) -> float:
    """GB/s from a remote pool over the NICs the hardware words give."""
    nics = re.search(r"(\d+)x (\d+) Gb", row.hardware)
    if not nics:
        raise CannotDo("the row gives no NICs")
    return remote_tier(int(nics.group(1)) * int(nics.group(2)) / 8 * 1e9).bytes_per_second / 1e9


# --- formulas --------------------------------------------------------------------------------------------------------


def nominal_weight_flops(row: Row) -> float:
    """2·W·T with all of the model's parameters, as the source counts."""
    total = geometry(row).total_parameters()
    if total is None or row.context is None:
        raise CannotDo("parameters or tokens are not known")
    return 2.0 * total * row.context


def attention_flops(row: Row) -> float:
    """2·T²·D·L."""
    context = needed(row.context, "tokens")
    return work(row).attention_flops(context)


def latent_layer_bytes(row: Row) -> float:
    """Bytes of one token in one latent layer."""
    found = geometry(row)
    attention = next((x.attention for x in found.layers if isinstance(x.attention, LatentAttention)), None)
    if attention is None:
        raise CannotDo("no latent attention")
    return latent_bytes(kv_dtype(row, found), attention.kv_lora_rank, attention.rope_dim)


def offload_block(row: Row) -> float:
    """Bytes of a block of the row's tokens over all layers, on one rank."""
    tp = re.search(r"TP(\d+)", row.model)
    tokens = re.search(r"(\d+)-token block", row.layout)
    if not tokens:
        raise CannotDo("the row does not say its block")
    return work(row).cached_token_bytes() * int(tokens.group(1)) / (int(tp.group(1)) if tp else 1)


def evicted(row: Row) -> float:
    """Tokens a step of B sequences frees on average: B·(P+G)/G."""
    prompt, out = re.search(r"P=(\d+)", row.notes), re.search(r"G=(\d+)", row.notes)
    if not prompt or not out or not row.batch:
        raise CannotDo("the row does not give P and G")
    return row.batch * (int(prompt.group(1)) + int(out.group(1))) / int(out.group(1))


def server_ratio(row: Row) -> float:
    """Prefill servers one decode server keeps busy: B / (G · step) requests a second times the prefill time."""
    found = re.search(r"([\d.]+) s prefill, ([\d.]+) ms step, (\d+) output", row.notes)
    if not found or not row.batch:
        raise CannotDo("the row does not give its times")
    requests = row.batch / (int(found.group(3)) * float(found.group(2)) / 1e3)
    return requests * float(found.group(1))


METRICS: dict[str, Metric] = {
    **{
        name: Metric(group="prefill", predict=lambda row: in_unit(row, prefill(row).seconds), estimate=prefill)
        for name in ("prefill_latency", "ttft")
    },
    "prefill_rate": Metric(
        group="prefill", predict=lambda row: needed(row.context, "tokens") / prefill(row).seconds, estimate=prefill
    ),
    "achieved_flops_per_gpu": Metric(group="prefill ratios", predict=achieved_flops),
    "mfu": Metric(group="prefill ratios", predict=share_of_peak),
    "prefill_speedup_vs_tp8": Metric(group="prefill ratios", predict=speedup),
    "strong_scaling_efficiency": Metric(group="prefill ratios", predict=strong_scaling),
    "tpot": Metric(
        group="decode", predict=lambda row: in_unit(row, possible_step(row).seconds), estimate=possible_step
    ),
    "decode_rate": Metric(
        group="decode", predict=lambda row: (row.batch or 1) / possible_step(row).seconds, estimate=possible_step
    ),
    "aggregate_decode_rate": Metric(
        group="decode", predict=lambda row: (row.batch or 1) / possible_step(row).seconds, estimate=possible_step
    ),
    "itl_slope_per_cached_token": Metric(group="decode", predict=slope, estimate=step),
    "itl_intercept": Metric(
        group="decode", predict=lambda row: in_unit(row, step(row, context=0).seconds), estimate=step
    ),
    "itl_median": Metric(
        group="decode", predict=lambda row: in_unit(row, possible_step(row).seconds), estimate=possible_step
    ),
    "fp8_kv_break_even_context": Metric(group="decode ratios", predict=break_even),
    "sendrecv_passkv": Metric(group="ring", predict=lambda row: ring(row, "send", RingPass.KV)),
    "sendrecv_passq": Metric(group="ring", predict=lambda row: ring(row, "send", RingPass.Q)),
    "attn_step": Metric(group="ring", predict=lambda row: ring(row, "attention", RingPass.Q)),
    "all2all_passq": Metric(group="ring", predict=lambda row: ring(row, "all_to_all", RingPass.Q)),
    "ttft_all_kv_from_host": Metric(
        group="transfer",
        predict=lambda row: in_unit(row, restore_time(cache_bytes(row), host_tier(device(row))).seconds),
    ),
    "kv_transfer_time": Metric(group="transfer", predict=transfer),
    "h2d_bw": Metric(group="transfer", predict=copy_rate),
    "remote_read_bw": Metric(group="transfer", predict=remote_rate),
    "ssd_read_bw_per_disk": Metric(group="transfer", predict=lambda _: disk_tier().bytes_per_second / 1e9),
    "gemm_flop": Metric(group="formula", predict=nominal_weight_flops),
    "attention_flop": Metric(group="formula", predict=attention_flops),
    "passkv_size_threshold_miss_rate": Metric(group="formula", predict=message_share),
    "min_block_tokens": Metric(group="formula", predict=lambda row: minimum_block_tokens(*_ring_figures(row))),
    "min_tokens_per_host": Metric(group="formula", predict=lambda row: minimum_sequence_tokens(*_ring_figures(row))),
    "tpot_lower_bound": Metric(group="formula", predict=lambda row: in_unit(row, roofline(row))),
    "kv_bytes_per_token": Metric(group="formula", predict=lambda row: work(row).cached_token_bytes()),
    "kv_bytes_per_token_per_layer": Metric(group="formula", predict=latent_layer_bytes),
    "kv_bytes_per_sequence": Metric(group="formula", predict=cache_bytes),
    "offload_block_bytes_new_layout": Metric(group="formula", predict=offload_block),
    "kv_tokens_evicted_per_step": Metric(group="formula", predict=evicted),
    "prefill_to_decode_server_ratio": Metric(group="formula", predict=server_ratio),
}
"""Metrics with a prediction, by the row's own name."""
