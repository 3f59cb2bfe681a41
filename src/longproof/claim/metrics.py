"""Every metric a claim may speak of, defined once: what it is, its unit, which way is better, and when it has no
value."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Better(StrEnum):
    """Which direction a user wishes for."""

    HIGHER = "higher"
    LOWER = "lower"
    NEITHER = "neither"


class Kind(StrEnum):
    """What a metric's statements hold, and so how a requirement about it is decided."""

    REACH = "reach"
    """A length that was shown, and perhaps one that was refuted."""
    EXACT = "exact"
    """One number as reported or counted; it has no spread."""
    SAMPLES = "samples"
    """Independent samples; requirements speak of their mean, a quantile or an extreme."""
    RATIO = "ratio"
    """Samples of a ratio; their mean is geometric."""
    PROPORTION = "proportion"
    """Successes among n trials."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric. `by_length`: its statements hold for one prompt length each (`Statement.at_tokens`). `cold`: it
    speaks of cold prompts alone; a statement with the condition ``cache: warm`` is of another thing."""

    id: str
    unit: str
    better: Better
    kind: Kind
    by_length: bool
    definition: str
    formula: str
    inputs: tuple[str, ...]
    undefined: str
    cold: bool = False


_ALL = (
    Metric(
        id="context",
        unit="tokens",
        better=Better.HIGHER,
        kind=Kind.REACH,
        by_length=False,
        definition="The largest prompt + output total that was admitted and completed in every repeat.",
        formula="max(prompt tokens sent + output tokens) over totals whose repeats all completed as asked",
        inputs=("boundary requests",),
        undefined="no total completed, or the boundary was not asked for",
    ),
    Metric(
        id="prompt_max",
        unit="tokens",
        better=Better.HIGHER,
        kind=Kind.REACH,
        by_length=False,
        definition="The largest prompt that was admitted and completed in every repeat with the protocol's output.",
        formula="context - output tokens of the protocol",
        inputs=("boundary requests",),
        undefined="no total completed, or the boundary was not asked for",
    ),
    Metric(
        id="configured_limit",
        unit="tokens",
        better=Better.HIGHER,
        kind=Kind.EXACT,
        by_length=False,
        definition="The longest sequence the server says it takes. Its word, not a measurement.",
        formula="as reported",
        inputs=("deployment.configured_limit_tokens",),
        undefined="the server does not tell",
    ),
    Metric(
        id="kv_capacity",
        unit="tokens",
        better=Better.HIGHER,
        kind=Kind.EXACT,
        by_length=False,
        definition="The tokens the engine's KV pool holds for all sequences together.",
        formula="as reported, or KV blocks × block size",
        inputs=("deployment.kv_capacity_tokens",),
        undefined="the server does not tell",
    ),
    Metric(
        id="ttft",
        unit="s",
        better=Better.LOWER,
        kind=Kind.SAMPLES,
        by_length=True,
        definition="Time to first token of a cold prompt: from sending the request to the first chunk with content.",
        formula="(first_token_ns - submitted_ns) / 1e9",
        inputs=("timeline.submitted_ns", "timeline.first_token_ns"),
        undefined="no content came",
        cold=True,
    ),
    Metric(
        id="tpot",
        unit="s",
        better=Better.LOWER,
        kind=Kind.SAMPLES,
        by_length=True,
        definition="Time per output token after the first, averaged over one answer.",
        formula="(last chunk - first token) / (output tokens - 1) / 1e9",
        inputs=("timeline.chunks", "timeline.usage.completion_tokens"),
        undefined="fewer than two output tokens, or no usage: chunks are not tokens",
    ),
    Metric(
        id="itl",
        unit="s",
        better=Better.LOWER,
        kind=Kind.SAMPLES,
        by_length=True,
        definition="Gap between one content chunk and the next; an engine may put several tokens into a chunk.",
        formula="(chunk[i + 1].at_ns - chunk[i].at_ns) / 1e9, all gaps of all answers",
        inputs=("timeline.chunks",),
        undefined="fewer than two chunks, or chunks that do not hold one token each by usage",
    ),
    Metric(
        id="e2e",
        unit="s",
        better=Better.LOWER,
        kind=Kind.SAMPLES,
        by_length=True,
        definition="End to end: from sending the request to the end of the exchange, all output included.",
        formula="(finished_ns - submitted_ns) / 1e9 of completed requests",
        inputs=("timeline.submitted_ns", "timeline.finished_ns"),
        undefined="the request did not complete",
        cold=True,
    ),
    Metric(
        id="prefill_rate",
        unit="tok/s",
        better=Better.HIGHER,
        kind=Kind.SAMPLES,
        by_length=True,
        definition="Prompt tokens per second up to the first token of a cold prompt; queueing is inside.",
        formula="prompt tokens / ttft",
        inputs=("timeline.prompt_tokens_sent", "ttft"),
        undefined="no content came, or the prompt was not proven cold",
        cold=True,
    ),
    Metric(
        id="decode_rate",
        unit="tok/s",
        better=Better.HIGHER,
        kind=Kind.SAMPLES,
        by_length=True,
        definition="Output tokens per second after the first token, of one request alone.",
        formula="1 / tpot",
        inputs=("tpot",),
        undefined="tpot is undefined",
    ),
    Metric(
        id="engine_ttft_gap",
        unit="s",
        better=Better.LOWER,
        kind=Kind.SAMPLES,
        by_length=True,
        definition="How much later than by the engine's own clock the client saw the first token.",
        formula="ttft - the engine's time to first token of the same request",
        inputs=("ttft", "metrics before and after", "timeline.engine_timings"),
        undefined="the engine does not tell its own time",
    ),
    Metric(
        id="ttft_exponent",
        unit="power",
        better=Better.LOWER,
        kind=Kind.EXACT,
        by_length=True,
        definition="Growth of cold TTFT from the length before to this one: 1 = in proportion, 2 = squared.",
        formula="log(ttft / ttft at the length before) / log(length / the length before), of geometric means",
        inputs=("ttft",),
        undefined="no cold samples at one of the two lengths",
    ),
    Metric(
        id="first_run_ratio",
        unit="ratio",
        better=Better.LOWER,
        kind=Kind.RATIO,
        by_length=False,
        definition="TTFT of the first request of the run as a fraction of later cold ones of the same length.",
        formula="ttft(first) / mean ttft(later)",
        inputs=("calibration requests", "speed requests"),
        undefined="no later request of the same length",
    ),
    Metric(
        id="warm_ttft_ratio",
        unit="ratio",
        better=Better.LOWER,
        kind=Kind.RATIO,
        by_length=True,
        definition="Time to first token of a prompt sent again, as a fraction of its first, cold time.",
        formula="geometric mean of ttft(again) / ttft(cold) over pairs of the same prompt",
        inputs=("warmth requests",),
        undefined="no pair of which both gave a token",
    ),
    Metric(
        id="new_tail_ttft_ratio",
        unit="ratio",
        better=Better.LOWER,
        kind=Kind.RATIO,
        by_length=True,
        definition="Time to first token of a known beginning with a new tail, as a fraction of the cold time.",
        formula="geometric mean of ttft(new tail) / ttft(cold) over pairs of the same beginning",
        inputs=("warmth requests",),
        undefined="no pair of which both gave a token",
    ),
    Metric(
        id="cached_fraction",
        unit="fraction",
        better=Better.HIGHER,
        kind=Kind.SAMPLES,
        by_length=True,
        definition="Share of a repeated prompt's tokens that the server says it took from its cache.",
        formula="cached tokens / prompt tokens of the repeated prompt",
        inputs=("timeline.usage", "metrics before and after"),
        undefined="the server reports no cached tokens",
    ),
    Metric(
        id="new_tail_cached_fraction",
        unit="fraction",
        better=Better.HIGHER,
        kind=Kind.SAMPLES,
        by_length=True,
        definition="Share of a known beginning with a new tail that the server says it took from its cache.",
        formula="cached tokens / prompt tokens of the prompt with a new tail",
        inputs=("timeline.usage", "metrics before and after"),
        undefined="the server reports no cached tokens",
    ),
    Metric(
        id="prefix_reuse",
        unit="ratio",
        better=Better.LOWER,
        kind=Kind.RATIO,
        by_length=False,
        definition="Whether a repeated prompt costs less at all: its TTFT over the cold one, all lengths together.",
        formula="geometric mean of ttft(again) / ttft(cold) over all pairs",
        inputs=("warmth requests",),
        undefined="no pair of which both gave a token",
    ),
    Metric(
        id="success_rate",
        unit="fraction",
        better=Better.HIGHER,
        kind=Kind.PROPORTION,
        by_length=True,
        definition="Share of requests of one length that completed with all the output asked for.",
        formula="completed / sent",
        inputs=("speed requests",),
        undefined="nothing was sent at this length",
    ),
    Metric(
        id="usage_agreement",
        unit="fraction",
        better=Better.HIGHER,
        kind=Kind.PROPORTION,
        by_length=False,
        definition="Share of answered requests whose usage names exactly the prompt tokens that were sent.",
        formula="requests with usage.prompt_tokens = tokens sent / requests with both",
        inputs=("all requests",),
        undefined="no answer with usage to a prompt whose tokens were counted independently",
    ),
    Metric(
        id="template_tokens",
        unit="tokens",
        better=Better.NEITHER,
        kind=Kind.EXACT,
        by_length=False,
        definition="Tokens that the server's chat template adds around a one-message chat.",
        formula="counted total - counted content",
        inputs=("accounting counts",),
        undefined="the server does not count",
    ),
    Metric(
        id="read_whole",
        unit="places",
        better=Better.HIGHER,
        kind=Kind.EXACT,
        by_length=True,
        definition="How many of three places (head, middle, tail) of a long prompt demonstrably reached the model.",
        formula="places whose code was answered, or whose change moved the first token's log probabilities",
        inputs=("accounting canaries",),
        undefined="the request with the codes did not complete",
    ),
    Metric(
        id="clamp_tokens",
        unit="tokens",
        better=Better.HIGHER,
        kind=Kind.EXACT,
        by_length=True,
        definition="Output tokens given to a request near the limit that asked for more than the window has left.",
        formula="usage.completion_tokens",
        inputs=("accounting edge requests",),
        undefined="no answer, or no usage",
    ),
    Metric(
        id="faults",
        unit="findings",
        better=Better.LOWER,
        kind=Kind.EXACT,
        by_length=False,
        definition="Findings that say the server broke its word.",
        formula="count of findings with severity fault",
        inputs=("all requests",),
        undefined="no request was sent",
    ),
)

METRICS: dict[str, Metric] = {metric.id: metric for metric in _ALL}
"""All metrics by id."""
