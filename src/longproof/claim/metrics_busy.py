"""Metrics under load: a long request among short ones, and what happens beyond capacity."""

from __future__ import annotations

from longproof.claim.metric import Better, Kind, Metric

_LONG = ("busy windows", "the long requests in them")
_SHORT = ("busy windows", "the short requests in them")


def _long(id_: str, kind: Kind, unit: str, definition: str, formula: str, undefined: str) -> Metric:
    better = Better.HIGHER if kind is Kind.PROPORTION else Better.LOWER
    return Metric(
        id=id_,
        unit=unit,
        better=better,
        kind=kind,
        by_length=True,
        definition=definition,
        formula=formula,
        inputs=_LONG,
        undefined=undefined,
    )


def _short(id_: str, kind: Kind, unit: str, definition: str, formula: str, undefined: str) -> Metric:
    better = Better.HIGHER if kind is Kind.PROPORTION else Better.LOWER
    return Metric(
        id=id_,
        unit=unit,
        better=better,
        kind=kind,
        by_length=False,
        definition=definition,
        formula=formula,
        inputs=_SHORT,
        undefined=undefined,
    )


BUSY: tuple[Metric, ...] = (
    _long(
        "busy_long_ttft",
        Kind.SAMPLES,
        "s",
        "Time to first token of a cold long prompt that is sent while short requests are served; waiting is inside.",
        "(first_token_ns - submitted_ns) / 1e9",
        "none of the long requests gave a token",
    ),
    _long(
        "busy_long_e2e",
        Kind.SAMPLES,
        "s",
        "End to end of such a request.",
        "(finished_ns - submitted_ns) / 1e9 of completed requests",
        "none of the long requests completed",
    ),
    _long(
        "busy_long_ttft_ratio",
        Kind.ESTIMATE,
        "ratio",
        "How many times as long its first token takes as on the idle server.",
        "geometric mean of ttft under load / geometric mean of ttft alone",
        "no such request gave a token, or none alone did",
    ),
    _long(
        "busy_long_wait",
        Kind.SAMPLES,
        "s",
        "How long the long request waited at least, by the engine's own queue clock (vLLM's and SGLang's histograms of "
        "queue times, llama.cpp's timings), else by its gauge of waiting requests.",
        "growth of the histogram less what the other requests counted meanwhile can have waited; ttft - prompt_ms less "
        "the least of that at this length; time of the last sample in which more wait than short requests can account "
        "for - submitted_ns",
        "the engine has neither, or no sample fell between sending and first token",
    ),
    _long(
        "busy_long_served",
        Kind.PROPORTION,
        "fraction",
        "Share of the long requests sent under load that completed with all the output asked for.",
        "completed / sent",
        "none was sent",
    ),
    _short(
        "busy_short_ttft",
        Kind.SAMPLES,
        "s",
        "Time to first token of the short requests: alone, and those sent while the long one is prefilled or decodes.",
        "(first_token_ns - submitted_ns) / 1e9",
        "no short request of that phase gave a token",
    ),
    _short(
        "busy_short_tpot",
        Kind.SAMPLES,
        "s",
        "Time per output token of the short requests, by the phase in which most of their decode fell.",
        "(last chunk - first token) / (output tokens - 1) / 1e9",
        "no short request of that phase completed, or there is no usage",
    ),
    _short(
        "busy_short_stall",
        Kind.SAMPLES,
        "s",
        "The longest pause between two chunks of one short answer that falls into a phase.",
        "max over its chunks of (next chunk - chunk) / 1e9",
        "no short answer of that phase had two chunks",
    ),
    _short(
        "busy_short_served",
        Kind.PROPORTION,
        "fraction",
        "Share of the short requests of a phase that completed with all the output asked for.",
        "completed / sent",
        "none was sent",
    ),
    _short(
        "busy_short_ttft_ratio",
        Kind.ESTIMATE,
        "ratio",
        "How many times as long a short request's first token takes beside the long one's prefill or decode.",
        "median of all quotients ttft with / ttft without (Hodges-Lehmann)",
        "too few short requests of that phase, or the baseline drifted",
    ),
    _short(
        "busy_short_ttft_p95_ratio",
        Kind.ESTIMATE,
        "ratio",
        "The same of the 95th percentiles.",
        "p95 of ttft with / p95 of ttft without",
        "fewer than 20 short requests on a side, or the baseline drifted",
    ),
    _short(
        "busy_short_tpot_ratio",
        Kind.ESTIMATE,
        "ratio",
        "How many times as long an output token of a short request takes during the long one's prefill or decode.",
        "median of all quotients tpot with / tpot without (Hodges-Lehmann)",
        "too few short requests of that phase, or the baseline drifted",
    ),
    Metric(
        id="busy_drift",
        unit="ratio",
        better=Better.NEITHER,
        kind=Kind.ESTIMATE,
        by_length=False,
        definition="The background's time to first token after the long requests, as a multiple of that before them.",
        formula="median of all quotients ttft after / ttft before (Hodges-Lehmann)",
        inputs=("busy windows before and after",),
        undefined="one of the two windows is missing, or has too few answers",
    ),
    Metric(
        id="busy_preemptions",
        unit="preemptions",
        better=Better.LOWER,
        kind=Kind.EXACT,
        by_length=False,
        definition="How often the engine took a running request's memory away and computed it again, in all windows.",
        formula="growth of the engine's own counter",
        inputs=("busy windows", "engine metrics"),
        undefined="the engine does not count them",
    ),
)
"""What the busy probe's reader speaks of."""


def _step(id_: str, unit: str, kind: Kind, better: Better, definition: str, formula: str, undefined: str) -> Metric:
    return Metric(
        id=id_,
        unit=unit,
        better=better,
        kind=kind,
        by_length=False,
        definition=definition,
        formula=formula,
        inputs=("overload windows",),
        undefined=undefined,
    )


OVERLOAD: tuple[Metric, ...] = (
    _step(
        "overload_goodput",
        "req/s",
        Kind.ESTIMATE,
        Better.HIGHER,
        "Requests a second that completed within the limits on TTFT and TPOT, at one step of the load.",
        "good requests / time from the window's start to the last completion, the step's own length at least",
        "the step was not run",
    ),
    _step(
        "overload_peak",
        "req/s",
        Kind.ESTIMATE,
        Better.HIGHER,
        "The highest goodput of all steps.",
        "max of overload_goodput",
        "no step had a good request",
    ),
    _step(
        "overload_throughput",
        "tok/s",
        Kind.ESTIMATE,
        Better.HIGHER,
        "Output tokens a second of completed requests, good or late, at one step of the load.",
        "output tokens of completed requests / the same time",
        "the step was not run",
    ),
    _step(
        "overload_served",
        "fraction",
        Kind.PROPORTION,
        Better.HIGHER,
        "Share of the requests of one step that completed with all the output asked for.",
        "completed / sent",
        "nothing was sent",
    ),
    _step(
        "overload_preemptions",
        "preemptions",
        Kind.EXACT,
        Better.LOWER,
        "How often the engine took a running request's memory away and computed it again, over all steps.",
        "growth of the engine's own counter",
        "the engine does not count them",
    ),
    _step(
        "overload_recomputed",
        "tokens",
        Kind.EXACT,
        Better.LOWER,
        "Prompt tokens that the engine computed beyond those asked for, over all steps.",
        "growth of its counter of computed prompt tokens - (prompt - cached tokens) of all requests with a token; 0 "
        "where it counts preemptions and had none",
        "the engine preempts, and has no counter that sees work done twice (vLLM 0.32 counts a prompt once)",
    ),
    _step(
        "overload_recovery",
        "s",
        Kind.EXACT,
        Better.LOWER,
        "From the end of the load until a request, and the next two, were as quick as on the idle server.",
        "(submitted_ns of the first of three in the idle band - ended_ns of the last window) / 1e9",
        "it did not come to that, or the run was interrupted meanwhile",
    ),
)
"""What the overload probe's reader speaks of."""
