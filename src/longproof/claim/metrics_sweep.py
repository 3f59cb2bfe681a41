"""Metrics of the sustained load, the sweep and conversations."""

from __future__ import annotations

from longproof.claim.metric import Better, Kind, Metric

SUSTAINED: tuple[Metric, ...] = (
    Metric(
        id="sustained_ttft_ratio",
        unit="ratio",
        better=Better.LOWER,
        kind=Kind.ESTIMATE,
        by_length=True,
        definition="Time to first token late in a sustained load, as a multiple of that early in it, per class.",
        formula="geometric mean of window medians, last third of the windows / first third; warm-up left out",
        inputs=("sustained windows",),
        undefined="fewer than two windows beside the warm-up",
    ),
    Metric(
        id="sustained_tpot_ratio",
        unit="ratio",
        better=Better.LOWER,
        kind=Kind.ESTIMATE,
        by_length=True,
        definition="Time per output token late in a sustained load, as a multiple of that early in it, per class.",
        formula="geometric mean of window medians, last third of the windows / first third; warm-up left out",
        inputs=("sustained windows",),
        undefined="fewer than two windows beside the warm-up, or no usage",
    ),
    Metric(
        id="sustained_success_rate",
        unit="fraction",
        better=Better.HIGHER,
        kind=Kind.PROPORTION,
        by_length=False,
        definition="Share of the requests of a sustained load that completed with all the output asked for.",
        formula="completed / sent, warm-up left out",
        inputs=("sustained windows",),
        undefined="no window ran beside the warm-up",
    ),
    Metric(
        id="kv_floor_rise",
        unit="fraction",
        better=Better.LOWER,
        kind=Kind.EXACT,
        by_length=False,
        definition="How much more of the KV pool is in use late in a sustained load while nothing runs.",
        formula="median KV usage between windows, last third - first third; warm-up left out",
        inputs=("sustained notes between windows",),
        undefined="the engine does not tell its KV usage",
    ),
    Metric(
        id="memory_growth",
        unit="ratio",
        better=Better.LOWER,
        kind=Kind.EXACT,
        by_length=False,
        definition="Resident memory of the engine late in a sustained load, as a multiple of that early in it.",
        formula="median memory between windows, last third / first third; warm-up left out",
        inputs=("sustained notes between windows",),
        undefined="the engine's metrics have no process memory, and its process is not ours",
    ),
)

_WINDOWS = ("sweep windows",)


def _sweep(id_: str, kind: Kind, unit: str, definition: str, formula: str, undefined: str) -> Metric:
    lower = unit == "s"
    return Metric(
        id=id_,
        unit=unit,
        better=Better.LOWER if lower else Better.HIGHER,
        kind=kind,
        by_length=True,
        definition=f"{definition} One statement per length, concurrency and cache (cold, hit).",
        formula=formula,
        inputs=_WINDOWS,
        undefined=undefined,
    )


SWEEP: tuple[Metric, ...] = (
    _sweep(
        "sweep_ttft",
        Kind.SAMPLES,
        "s",
        "Time to first token in a closed loop.",
        "(first_token_ns - submitted_ns) / 1e9 of completed requests",
        "no request of the cell completed",
    ),
    _sweep(
        "sweep_tpot",
        Kind.SAMPLES,
        "s",
        "Time per output token after the first in a closed loop, averaged over one answer.",
        "(last chunk - first token) / (output tokens - 1) / 1e9",
        "fewer than two output tokens, or no usage",
    ),
    *(
        _sweep(
            f"sweep_itl_p{percent}",
            Kind.ESTIMATE,
            "s",
            f"{words} of the gaps between output tokens in a closed loop, where each chunk holds one token.",
            f"p{percent} of all gaps of all answers; its interval draws whole answers again",
            "chunks that are not one token each; no interval below eight answers",
        )
        for percent, words in ((50, "Median"), (95, "95th percentile"), (99, "99th percentile"))
    ),
    _sweep(
        "sweep_request_rate",
        Kind.SAMPLES,
        "tok/s",
        "Output tokens per second that one request gets in a closed loop, after its first token.",
        "1 / tpot",
        "fewer than two output tokens, or no usage",
    ),
    _sweep(
        "sweep_output_rate",
        Kind.SAMPLES,
        "tok/s",
        "Output tokens per second of all requests of a closed loop together; the rounds are the samples.",
        "output tokens of completed requests / (last end - first start), per round",
        "no usage, or nothing completed",
    ),
    _sweep(
        "sweep_prompt_rate",
        Kind.SAMPLES,
        "tok/s",
        "Prompt tokens per second of all requests of a closed loop together; the rounds are the samples.",
        "prompt tokens of completed requests / (last end - first start), per round",
        "nothing completed",
    ),
    _sweep(
        "sweep_goodput",
        Kind.SAMPLES,
        "req/s",
        "Completed requests per second that met the SLO that was given; the rounds are the samples.",
        "requests with ttft and tpot within the SLO / (last end - first start), per round",
        "no SLO was given",
    ),
    _sweep(
        "sweep_slo_attainment",
        Kind.PROPORTION,
        "fraction",
        "Share of the requests sent that completed and met the SLO that was given.",
        "good / sent",
        "no SLO was given",
    ),
    _sweep(
        "sweep_success_rate",
        Kind.PROPORTION,
        "fraction",
        "Share of the requests of a closed loop that completed with all the output asked for.",
        "completed / sent",
        "nothing was sent",
    ),
    _sweep(
        "sweep_cached_fraction",
        Kind.SAMPLES,
        "fraction",
        "Share of a prompt with a known prefix and a new tail that the server says was cached.",
        "reported cached tokens / prompt tokens",
        "the server reports no cached tokens per request",
    ),
)

CONVERSATION: tuple[Metric, ...] = (
    Metric(
        id="conversation_ttft",
        unit="s",
        better=Better.LOWER,
        kind=Kind.SAMPLES,
        by_length=False,
        definition="Time to first token of a turn of a conversation; one statement per turn and conversations at once.",
        formula="(first_token_ns - submitted_ns) / 1e9 of answered turns",
        inputs=("conversation windows",),
        undefined="no such turn was answered",
    ),
    Metric(
        id="conversation_ttft_ratio",
        unit="ratio",
        better=Better.LOWER,
        kind=Kind.RATIO,
        by_length=False,
        definition="Time to first token of a later turn as a fraction of that of the same conversation's first turn.",
        formula="geometric mean of ttft(turn) / ttft(turn 1) over conversations",
        inputs=("conversation windows",),
        undefined="no conversation got that far",
    ),
    Metric(
        id="conversation_cached_fraction",
        unit="fraction",
        better=Better.HIGHER,
        kind=Kind.SAMPLES,
        by_length=False,
        definition="What the server says was cached of a later turn, as a share of the prompt of the turn before.",
        formula="reported cached tokens / prompt tokens of the turn before",
        inputs=("conversation windows",),
        undefined="the server reports no cached tokens",
    ),
)

SWEEP_METRICS: tuple[Metric, ...] = (*SUSTAINED, *SWEEP, *CONVERSATION)
