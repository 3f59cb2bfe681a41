"""Reads what became of the long requests: entered, waited, refused, given up; and their times beside the idle ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from longproof.claim.busy_phases import PROBE, Busy, Injection
from longproof.claim.findings.words import quote
from longproof.claim.load_spans import Span, samples_within
from longproof.claim.queue_clock import AT_ONCE_NS, Queued, queue_times, quickest_before_slot
from longproof.claim.sampled import Sampled, describe_spread, sampled_statement, show
from longproof.claim.statements import Finding, Severity, Standing, Statement
from longproof.claim.view import Window
from longproof.domain.events import EngineSample, RequestTimeline
from longproof.domain.measure import Interval, Measured, Provenance, Unknown
from longproof.domain.outcome import Outcome, classify
from longproof.domain.outcome_words import counted, in_words
from longproof.domain.units import format_ns, format_tokens
from longproof.stats.proportion import clopper_pearson
from longproof.stats.ratio import unpaired_ratio

_REFUSED = (Outcome.REFUSED_BUSY, Outcome.REFUSED_OTHER, Outcome.REFUSED_LENGTH, Outcome.SERVER_ERROR)
_FLOWED = 10
"""So many short requests sent after the long one and completed before it was given up: the server was at work."""
_SOME = 0.2
_QUIET_KV = 0.02
_STUCK_SAMPLES = 5
_STUCK_NS = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """What an engine says of one long request before its first token: it waited `least_ns` at least and `most_ns` at
    most. `by_clock`: by its own queue clock, which saw this request and no other. `reasons`: the engine's words."""

    least_ns: int
    most_ns: int
    by_clock: bool
    reasons: tuple[str, ...]


def long_statements(busy: Busy, conditions: Mapping[str, str]) -> Iterator[Statement]:
    """Times, waits and outcomes of the long requests under load."""
    tokens = format_tokens(busy.long_tokens)
    done = [item for item in busy.injections if item.long.done]
    missing = _outcomes(busy.injections) if busy.injections else "none was sent"
    first = [item for item in busy.injections if item.long.timeline.ttft_ns is not None]
    ttft = [Sampled(value=(item.long.timeline.ttft_ns or 0) / 1e9, key=item.long.key) for item in first]
    yield sampled_statement(
        "busy_long_ttft",
        ttft,
        probe=PROBE,
        subject=f"Time to first token of a cold prompt of {tokens} tokens among short requests",
        at_tokens=busy.long_tokens,
        conditions=conditions,
        why_none=missing,
    )
    yield sampled_statement(
        "busy_long_e2e",
        [Sampled(value=item.long.timeline.e2e_ns / 1e9, key=item.long.key) for item in done],
        probe=PROBE,
        subject=f"End to end of a cold prompt of {tokens} tokens among short requests",
        at_tokens=busy.long_tokens,
        conditions=conditions,
        why_none=missing,
    )
    yield _beside_idle(busy, ttft, conditions)
    yield _served(busy, conditions)
    yield _waited(busy, conditions)


def _beside_idle(busy: Busy, ttft: Sequence[Sampled], conditions: Mapping[str, str]) -> Statement:
    idle = [twin for twin in busy.twins if twin.done and twin.timeline.ttft_ns]
    unknown = Statement(
        id=f"{PROBE}.busy_long_ttft_ratio.{busy.long_tokens}",
        metric="busy_long_ttft_ratio",
        text="How much longer it takes than on the idle server: not known, nothing to compare with.",
        standing=Standing.NOT_SHOWN,
        unit="ratio",
        value=Unknown(reason="none gave a token under load" if not ttft else "none completed on the idle server"),
        n=0,
        at_tokens=busy.long_tokens,
        conditions=dict(conditions),
    )
    ratio = unpaired_ratio([item.value for item in ttft], [(item.timeline.ttft_ns or 0) / 1e9 for item in idle])
    if isinstance(ratio, Unknown):
        return unknown
    return replace(
        unknown,
        text=(
            f"Its first token takes {ratio.value:.3g} times as long as alone"
            f" {describe_spread('busy_long_ttft_ratio', ratio.n, ratio.interval)}."
        ),
        standing=Standing.SHOWN,
        value=Measured(value=ratio.value, provenance=Provenance.MEASURED, source="ttft under load / ttft alone"),
        n=ratio.n,
        interval=ratio.interval if isinstance(ratio.interval, Interval) else None,
        evidence=(*(item.key for item in ttft), *(item.key for item in idle)),
    )


def _served(busy: Busy, conditions: Mapping[str, str]) -> Statement:
    sent, good = len(busy.injections), sum(item.long.done for item in busy.injections)
    return Statement(
        id=f"{PROBE}.busy_long_served.{busy.long_tokens}",
        metric="busy_long_served",
        text=(
            f"{good} of {sent} long requests completed among short ones"
            f"{'' if good == sent else f' ({_outcomes(busy.injections)})'}."
        ),
        standing=Standing.SHOWN if sent else Standing.NOT_SHOWN,
        unit="fraction",
        value=Measured(value=good / sent, provenance=Provenance.MEASURED, source="completed / sent")
        if sent
        else Unknown(reason="none was sent"),
        n=sent,
        at_tokens=busy.long_tokens,
        interval=clopper_pearson(good, sent) if sent else None,
        samples=tuple(float(item.long.done) for item in busy.injections),
        conditions=dict(conditions),
        evidence=tuple(item.long.key for item in busy.injections),
    )


# -- waiting ----------------------------------------------------------------------------------------------------------


def wait_of(injection: Injection, clock: Queued | None = None) -> Wait | None:
    """How long the long request waited before the engine took it, by the gauges sampled meanwhile and by the engine's
    own `clock`. None: neither says anything.

    In a sample it waits for certain when more wait than there are short requests without a token; it may be waiting
    when anybody does. Gauges may be one engine step old.
    """
    span = injection.prefill
    seen = [sample for sample in samples_within(injection.window.samples, span) if sample.waiting is not None]
    if not seen and clock is None:
        return None
    certain = [s for s in seen if (s.waiting or 0) > _tokenless(injection, s.at_ns)]
    possible = [s for s in seen if (s.waiting or 0) > 0]
    after = [s.at_ns for s in seen if possible and s.at_ns > possible[-1].at_ns]
    least_ns = certain[-1].at_ns - span.start_ns if certain else 0
    most_ns = 0 if seen and not possible else (after[0] if after else span.end_ns) - span.start_ns
    return Wait(
        least_ns=least_ns if clock is None else clock.least_ns,
        most_ns=most_ns if clock is None else clock.most_ns,
        by_clock=clock is not None,
        reasons=tuple(dict.fromkeys(reason for sample in possible for reason in _reasons(sample))),
    )


def _tokenless(injection: Injection, at_ns: int) -> int:
    """Short requests under way that have no token yet."""
    return sum(
        short.timeline.submitted_ns <= at_ns < (short.timeline.first_token_ns or short.timeline.finished_ns)
        for short in injection.shorts
    )


def _reasons(sample: EngineSample) -> list[str]:
    """vLLM 0.32: num_requests_waiting_by_reason{reason="capacity" | "deferred"}. llama.cpp has but one: it defers
    what finds no free slot (server-context.cpp)."""
    if sample.values.get("llamacpp:requests_deferred", 0) > 0:
        return ["no slot is free"]
    return [
        name.partition('reason="')[2].partition('"')[0]
        for name, value in sample.values.items()
        if name.startswith("vllm:num_requests_waiting_by_reason{") and value > 0 and 'reason="' in name
    ]


def _waited(busy: Busy, conditions: Mapping[str, str]) -> Statement:
    every = [body.timeline for window in busy.windows for _, body in window.requests]
    quickest = quickest_before_slot([*every, *(twin.timeline for twin in busy.twins)])
    clocks = {key: queued for window in busy.windows for key, queued in queue_times(window, quickest).items()}
    found = [(item, wait_of(item, clocks.get(item.long.key))) for item in busy.injections]
    waits = [(item, wait) for item, wait in found if wait is not None]
    said = sampled_statement(
        "busy_long_wait",
        [Sampled(value=wait.least_ns / 1e9, key=item.long.key) for item, wait in waits],
        probe=PROBE,
        subject="The long request waited before the engine took it, at least",
        at_tokens=busy.long_tokens,
        conditions=conditions,
        why_none="the engine has neither a gauge of waiting requests nor a queue clock, or they were not read in time",
    )
    if not waits:
        return said
    at_once = sum(wait.most_ns <= AT_ONCE_NS for _, wait in waits)
    reasons = tuple(dict.fromkeys(reason for _, wait in waits for reason in wait.reasons))
    by_clock = sum(wait.by_clock for _, wait in waits)
    how = "the engine's own queue clock" if by_clock == len(waits) else "its gauge of waiting requests"
    if 0 < by_clock < len(waits):
        how += f", and its queue clock for {by_clock}"
    return replace(
        said,
        text=" ".join(
            [
                f"Of {len(waits)} long requests {at_once} entered at once, by {how}.",
                said.text,
                f"At most {show('busy_long_wait', max(wait.most_ns for _, wait in waits) / 1e9)}.",
                *([f"The engine's reason: {', '.join(reasons)}."] if reasons else []),
            ]
        ),
        conditions={**said.conditions, "entered_at_once": f"{at_once} of {len(waits)}"},
    )


# -- findings ---------------------------------------------------------------------------------------------------------


def long_findings(busy: Busy) -> Iterator[Finding]:
    """Refused, starved, taken and never served, stuck in the queue."""
    tokens = format_tokens(busy.long_tokens)
    refused = [item for item in busy.injections if classify(item.long.timeline) in _REFUSED]
    if refused:
        first = refused[0].long.timeline
        yield Finding(
            id="busy.long_rejected",
            severity=Severity.CAUTION,
            text=(
                f"{len(refused)} of {len(busy.injections)} long requests of {tokens} tokens were refused while short"
                f" ones ran, with HTTP {first.status} after {format_ns(first.e2e_ns)}{quote(first)}; alone the same"
                f" length completed. {retry_words(first)}"
            ),
            evidence=tuple(item.long.key for item in refused),
            details={"status": str(first.status), "outcome": in_words(classify(first))},
        )
    hung = [item for item in busy.injections if classify(item.long.timeline) is Outcome.HUNG]
    causes = _by_cause(hung)
    causes.pop("busy.queue_stuck", None)  # told of all windows, whoever waited there
    for finding_id, items in causes.items():
        first = items[0]
        yield Finding(
            id=finding_id,
            severity=Severity.FAULT,
            text=(
                f"{len(items)} of {len(busy.injections)} long requests of {tokens} tokens"
                f" {_HUNG_WORDS[finding_id].format(n=_flowed(first), time=format_ns(first.long.timeline.e2e_ns))}"
                f"{_alone(busy)}."
            ),
            evidence=tuple(item.long.key for item in items),
            details={"gave_up_after": format_ns(first.long.timeline.e2e_ns)},
        )


_HUNG_WORDS = {
    "busy.long_starved": "never started within {time}, while {n} short ones that came later were served",
    "busy.admitted_then_hung": "were taken ({n} short ones were served meanwhile), and gave no token within {time}",
    "busy.long_hung": "gave neither token nor error within {time}; {n} short ones that came later were served",
}


def _by_cause(hung: Sequence[Injection]) -> dict[str, list[Injection]]:
    found: dict[str, list[Injection]] = {}
    for item in hung:
        found.setdefault(_cause(item), []).append(item)
    return found


def _cause(injection: Injection) -> str:
    """Why a long request gave nothing: gauges first, the wire second, what else went on third."""
    seen = [s for s in samples_within(injection.window.samples, injection.prefill) if s.waiting is not None]
    late = seen[len(seen) // 2 :]  # gauges are a step old; what stays so is meant
    if late and all(stuck(sample) for sample in late):
        return "busy.queue_stuck"
    if late and sum(sample.waiting == 0 for sample in late) >= _SOME * len(late):
        return "busy.admitted_then_hung"  # it would be in the queue in every one of them
    if injection.long.timeline.first_event_ns is not None and not late:
        return "busy.admitted_then_hung"
    return "busy.long_starved" if _flowed(injection) >= _FLOWED else "busy.long_hung"


def stuck(sample: EngineSample) -> bool:
    """Somebody waits, nobody runs, and no memory is in use: nothing that could end the wait."""
    return (sample.waiting or 0) > 0 and sample.running == 0 and (sample.kv_usage or 0.0) <= _QUIET_KV


def queue_stuck(windows: Sequence[Window], idle_ns: int | None, finding_id: str) -> Iterator[Finding]:
    """A queue that does not move although nothing runs: longer than any one engine step can have been (a gauge may be
    one step old, and no step is longer than the long prompt's whole prefill)."""
    found = [(window, run) for window in windows if len(run := _longest_stuck(window.samples)) >= _STUCK_SAMPLES]
    long = [(window, run[-1].at_ns - run[0].at_ns, run) for window, run in found]
    long = [item for item in long if item[1] > max(_STUCK_NS, 2 * (idle_ns or 0))]
    if long:
        _, took, run = max(long, key=lambda item: item[1])
        yield Finding(
            id=finding_id,
            severity=Severity.FAULT,
            text=(
                f"For {format_ns(took)} up to {max(sample.waiting or 0 for sample in run)} requests waited while"
                f" nothing ran and no KV memory was in use ({len(run)} samples in a row): the queue was stuck."
            ),
            evidence=tuple(item[0].key for item in long),
        )


def _longest_stuck(samples: Sequence[EngineSample]) -> list[EngineSample]:
    longest: list[EngineSample] = []
    run: list[EngineSample] = []
    for sample in samples:
        run = [*run, sample] if stuck(sample) else []
        longest = max(longest, run, key=len)
    return longest


def _flowed(injection: Injection) -> int:
    """Short requests that were sent after the long one and completed before it was given up."""
    span: Span = injection.prefill
    return sum(
        short.done and span.holds(short.timeline.submitted_ns) and short.timeline.finished_ns <= span.end_ns
        for short in injection.shorts
    )


def _alone(busy: Busy) -> str:
    idle = busy.idle_ns
    return "" if idle is None else f"; alone its first token took {format_ns(idle)}"


def retry_words(timeline: RequestTimeline) -> str:
    """``Retry-After: 5.`` or that there was none."""
    after = timeline.headers.get("retry-after")
    return f"Retry-After: {after}." if after else "It did not say when to come again."


def _outcomes(items: Sequence[Injection]) -> str:
    return counted(item.long.timeline for item in items if not item.long.done) or "none failed"
