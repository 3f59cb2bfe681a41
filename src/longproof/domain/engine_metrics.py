"""What an engine's own counters say about one request: the difference of two samples, taken before and after it.

Meaningful only when nothing else ran between the samples; where the counters show that something did, the answer is
None. Names as vLLM 0.32, SGLang 0.5.23 and llama.cpp (b11434) expose them. llama.cpp has no histogram of its own.
"""

from __future__ import annotations

from collections.abc import Mapping

from longproof.domain.events import EngineSample

_TTFT_SECONDS = ("vllm:time_to_first_token_seconds", "sglang:time_to_first_token_seconds")
_CACHED_TOKENS = ("vllm:prefix_cache_hits_total", "sglang:cached_tokens_total", "llamacpp:prompt_tokens_cached_total")
PREEMPTIONS = ("vllm:num_preemptions_total", "sglang:num_retracted_requests_total", "sglang:num_retractions_sum")
"""vLLM 0.32 v1/metrics/loggers.py; SGLang 0.5 srt/metrics/collector.py, whose histogram of retractions per request is
published when the request is over. llama.cpp never preempts."""


def engine_ttft_ns(before: EngineSample, after: EngineSample) -> float | None:
    """Time to first token of one request as the engine measured it, in nanoseconds: histogram sum after - sum before.

    vLLM's clock starts when its API server has read the request (before tokenizing it) and ends when the engine core's
    first
    output reaches that server. None: no such histogram, no request or more than one between the samples, or a restart.
    """
    for name in _TTFT_SECONDS:
        seconds, requests = growth(before, after, f"{name}_sum"), growth(before, after, f"{name}_count")
        if seconds is not None and requests == 1:
            return seconds * 1e9
    return None


def engine_cached_tokens(before: EngineSample, after: EngineSample) -> int | None:
    """Prompt tokens that the engine took from its prefix cache between two samples. None: no counter, or a restart.

    vLLM counts on scheduling and does not count a preempted request again.
    """
    for name in _CACHED_TOKENS:
        tokens = growth(before, after, name)
        if tokens is not None:
            return round(tokens)
    return None


SIDES = ("", "prefill.", "decode.")
"""What stands before a metric's name: nothing, or the side of a prefill/decode pair (`engines.pd`)."""


def preempted(before: EngineSample, after: EngineSample) -> int | None:
    """How often a running request lost its memory between two samples, on both sides of a pair. None: the engine does
    not count, or a restart."""
    for name in PREEMPTIONS:
        told = [growth(before, after, side + name) for side in SIDES]
        times = [one for one in told if one is not None]
        if times:
            return round(sum(times))
    return None


def usage_of_side(sample: EngineSample, side: str) -> float | None:
    """KV usage of one side of a vLLM pair, 0 to 1; None for what is no pair."""
    wanted = f"{side}.vllm:kv_cache_usage_perc"
    found = [value for key, value in sample.values.items() if key.partition("{")[0] == wanted]
    return max(found, default=None)


def growth(before: EngineSample, after: EngineSample, name: str) -> float | None:
    """How much a counter grew, summed over its label sets (one per data-parallel engine).

    None: it is in neither sample, or it shrank, which a counter does only when the engine restarts. A counter that
    appears between the samples began at 0 (SGLang exposes some only after their first use).
    """
    first, last = _total(before.values, name), _total(after.values, name)
    if last is None:
        return None
    grown = last - (first or 0.0)
    return grown if grown >= 0 else None


def _total(values: Mapping[str, float], name: str) -> float | None:
    labelled = name + "{"
    found = [value for key, value in values.items() if key == name or key.startswith(labelled)]
    return sum(found) if found else None
