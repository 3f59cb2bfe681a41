"""Metrics about the server's life: what comes back after a cancel, what a restart changes, what moves between two."""

from __future__ import annotations

from longproof.claim.metric import Better, Kind, Metric


def _reclaim_time(id_: str, what: str) -> Metric:
    return Metric(
        id=id_,
        unit="s",
        better=Better.LOWER,
        kind=Kind.SAMPLES,
        by_length=False,
        definition=f"From {what} until the engine's gauges were where they had been before: an upper bound.",
        formula="(first sample after the first of those that stay at rest - left_ns) / 1e9",
        inputs=("reclaim windows", "left_ns", "engine metrics: running, waiting, KV usage"),
        undefined="no gauge showed the request, or none came back while it was watched",
    )


def _compared(prefix: str, name: str, what: str, since: str) -> Metric:
    return Metric(
        id=f"{prefix}_{name}_ratio",
        unit="ratio",
        better=Better.LOWER,
        kind=Kind.ESTIMATE,
        by_length=True,
        definition=f"{what} of cold prompts {since}, as a multiple of what it was before the restart.",
        formula=f"geometric mean of {name} after / geometric mean of {name} before",
        inputs=("restart requests",),
        undefined="no such request completed on one of the two sides",
        cold=True,
    )


def _handed(id_: str, unit: str, better: Better, definition: str, formula: str, inputs: tuple[str, ...]) -> Metric:
    return Metric(
        id=id_,
        unit=unit,
        better=better,
        kind=Kind.RATIO if unit == "ratio" else Kind.SAMPLES,
        by_length=True,
        definition=definition,
        formula=formula,
        inputs=inputs,
        undefined="no request of this length went through both sides, or the metrics do not say",
        cold=True,
    )


LIFECYCLE: tuple[Metric, ...] = (
    _reclaim_time("reclaim_time_queued", "leaving a request that waits behind others"),
    _reclaim_time("reclaim_time_at_once", "leaving a request a moment after sending it"),
    _reclaim_time("reclaim_time_prefill", "leaving a request during its prefill"),
    _reclaim_time("reclaim_time_decode", "leaving a request during its decode"),
    _reclaim_time("abort_time_prefill", "asking the engine's abort endpoint during prefill"),
    _reclaim_time("abort_time_decode", "asking the engine's abort endpoint during decode"),
    Metric(
        id="kv_lost_per_cancel",
        unit="tokens",
        better=Better.LOWER,
        kind=Kind.EXACT,
        by_length=False,
        definition="KV tokens that an idle engine holds more after all cancelled requests, per cancelled request.",
        formula="(idle KV usage after - before) × pool tokens / cancelled requests, not below 0",
        inputs=("reclaim windows", "deployment.kv_capacity_tokens"),
        undefined="no gauge of KV usage, or a pool of unknown size",
    ),
    Metric(
        id="readmitted",
        unit="fraction",
        better=Better.HIGHER,
        kind=Kind.PROPORTION,
        by_length=True,
        definition="Share of cancellations right after which the largest request was admitted at once and completed.",
        formula="completed as asked at the first try / asked",
        inputs=("reclaim requests of the largest length",),
        undefined="the largest request did not complete on the idle engine either",
    ),
    Metric(
        id="readmission_ratio",
        unit="ratio",
        better=Better.LOWER,
        kind=Kind.RATIO,
        by_length=True,
        definition="Time to first token of the largest request right after a cancel, as a multiple of its idle time.",
        formula="geometric mean of ttft after a cancel / geometric mean of ttft when idle",
        inputs=("reclaim requests of the largest length",),
        undefined="no such request completed, or none when idle",
        cold=True,
    ),
    Metric(
        id="restart_time",
        unit="s",
        better=Better.LOWER,
        kind=Kind.EXACT,
        by_length=False,
        definition="From the beginning of a restart until the end of the first request that was answered.",
        formula="(end of the first answered request - restart begun) / 1e9",
        inputs=("restart notes",),
        undefined="there was no restart, or nothing was answered after it",
    ),
    _compared("restart", "ttft", "Time to first token", "after a restart"),
    _compared("restart", "tpot", "Time per output token", "after a restart"),
    _compared("idle", "ttft", "Time to first token", "after the server stood idle"),
    _compared("idle", "tpot", "Time per output token", "after the server stood idle"),
    Metric(
        id="restart_largest",
        unit="fraction",
        better=Better.HIGHER,
        kind=Kind.PROPORTION,
        by_length=True,
        definition="Share of requests of the largest length that completed after a restart.",
        formula="completed / sent",
        inputs=("restart requests",),
        undefined="there was no restart",
    ),
    Metric(
        id="restart_first_ratio",
        unit="ratio",
        better=Better.LOWER,
        kind=Kind.EXACT,
        by_length=False,
        definition="Time to first token of the first request after a restart, as a multiple of later ones.",
        formula="ttft(first) / mean ttft(later of the same length)",
        inputs=("restart requests",),
        undefined="no later request of the same length completed",
    ),
    _handed(
        "pd_prefill_time",
        "s",
        Better.LOWER,
        "The prefill side's part of a request through a prefill/decode pair: from sending to its whole answer.",
        "engine_timings.pd_prefill_ns / 1e9",
        ("timeline.engine_timings",),
    ),
    _handed(
        "pd_decode_ttft",
        "s",
        Better.LOWER,
        "The decode side's part up to its first token: from asking it, the transfer of KV included.",
        "engine_timings.pd_decode_ttft_ns / 1e9",
        ("timeline.engine_timings",),
    ),
    _handed(
        "pd_transferred",
        "fraction",
        Better.HIGHER,
        "Share of the prompt whose KV the decode side took over, by its own count of prompt tokens by source.",
        "tokens with source external_kv_transfer / prompt tokens",
        ("engine metrics of the decode side",),
    ),
    _handed(
        "pd_decode_ratio",
        "ratio",
        Better.LOWER,
        "The decode side's time to first token with KV taken over, as a multiple of computing the same prompt itself.",
        "geometric mean of pd_decode_ttft / ttft of the decode side alone, over pairs of the same prompt",
        ("disaggregated requests",),
    ),
    Metric(
        id="pd_success",
        unit="fraction",
        better=Better.HIGHER,
        kind=Kind.PROPORTION,
        by_length=True,
        definition="Share of requests that went through both sides and completed.",
        formula="completed / sent, alone and together",
        inputs=("disaggregated requests",),
        undefined="nothing was sent through a pair",
    ),
)
