"""Reads what `probe/speed` asked: times and rates of cold, completed requests, by length.

What was refused or broke enters no rate: it lowers the success rate and is counted beside every number. A sample for
which the server reports more cached tokens than template and nonce can have in common with earlier prompts was not
cold: it is left out, and that is a finding.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from longproof.claim.cached import CachedReports, cached_reports, how_cold, shared_prefix_tokens
from longproof.claim.findings.growth import first_run, growth
from longproof.claim.sampled import Sampled, sampled_statement
from longproof.claim.statements import Finding, NotShown, Severity, Standing, Statement
from longproof.claim.view import EvidenceView
from longproof.domain.engine_metrics import engine_ttft_ns
from longproof.domain.events import RequestTimeline
from longproof.domain.measure import Measured, Provenance
from longproof.domain.outcome import completed_as_asked
from longproof.domain.outcome_words import counted
from longproof.domain.units import format_tokens
from longproof.evidence.records import RequestBody
from longproof.stats import mean
from longproof.stats.proportion import clopper_pearson

PROBE = "speed"
_NS_PER_S = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdRequest:
    """One request of the cold arm: its record, and what the server said of its cache."""

    key: str
    body: RequestBody
    reports: CachedReports

    @property
    def timeline(self) -> RequestTimeline:
        return self.body.timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class AtLength:
    """All cold requests of one length: `kept` enter the numbers, `warm` and `failed` do not."""

    length: int
    kept: tuple[ColdRequest, ...]
    warm: tuple[ColdRequest, ...]
    failed: tuple[ColdRequest, ...]

    @property
    def sent(self) -> int:
        return len(self.kept) + len(self.warm) + len(self.failed)


def read(view: EvidenceView) -> Iterator[Statement | Finding | NotShown]:
    """Statements per length, how TTFT grows with it, the first run apart, and samples that were not cold."""
    groups = _by_length(view)
    for group in groups:
        yield from _at_length(view, group)
    yield from growth({group.length: _ttft(group) for group in groups})
    yield from first_run(view, {group.length: _ttft(group) for group in groups})
    yield from _not_cold(view, groups)
    yield from _not_measured(view, {group.length for group in groups})


def _by_length(view: EvidenceView) -> list[AtLength]:
    shared = shared_prefix_tokens(view, PROBE)
    found: dict[int, list[ColdRequest]] = {}
    for key, body in view.requests(PROBE):
        if body.cell.get("arm") == "cold":
            request = ColdRequest(key=key, body=body, reports=cached_reports(body))
            found.setdefault(int(body.cell["length"]), []).append(request)
    groups: list[AtLength] = []
    for length, requests in sorted(found.items()):
        done = [request for request in requests if completed_as_asked(request.timeline)]
        warm = [request for request in done if (request.reports.most or 0) > shared]
        groups.append(
            AtLength(
                length=length,
                kept=tuple(request for request in done if request not in warm),
                warm=tuple(warm),
                failed=tuple(request for request in requests if request not in done),
            )
        )
    return groups


def _at_length(view: EvidenceView, group: AtLength) -> Iterator[Statement]:
    conditions = _conditions(view, group)
    tokens = f"a cold prompt of {format_tokens(group.length)} tokens"
    missing = _left_out(group) or "no such request"
    ttft = _ttft(group)
    tpot = [_sample(request, request.timeline.tpot_ns) for request in group.kept if request.timeline.tpot_ns]
    by_metric = {
        "ttft": (f"Time to first token of {tokens}", ttft, missing),
        "e2e": (
            f"End to end, {tokens} and {view.header.protocol.output_tokens} output tokens",
            [_sample(request, request.timeline.e2e_ns) for request in group.kept],
            missing,
        ),
        "prefill_rate": (
            f"Prompt tokens per second up to the first token, queueing and that token included, {tokens}",
            [Sampled(value=group.length / sample.value, key=sample.key) for sample in ttft],
            missing,
        ),
        "tpot": (
            f"Time per output token after the first, behind {tokens}",
            tpot,
            missing if not group.kept else "no usage, or fewer than two output tokens",
        ),
        "decode_rate": (
            f"Output tokens per second after the first, one request alone, behind {tokens}",
            [Sampled(value=1 / sample.value, key=sample.key) for sample in tpot],
            missing if not group.kept else "no usage, or fewer than two output tokens",
        ),
    }
    for metric, (subject, samples, why_none) in by_metric.items():
        yield sampled_statement(
            metric,
            samples,
            probe=PROBE,
            subject=subject,
            at_tokens=group.length,
            conditions=conditions,
            why_none=why_none,
        )
    yield _itl(group, tokens, conditions)
    yield from _engine_gap(group, tokens, conditions)
    yield _success(group)


def _itl(group: AtLength, tokens: str, conditions: dict[str, str]) -> Statement:
    """Gaps between tokens, only where each chunk held one. Gaps of one answer depend on each other, so the interval
    is that of the answers' means."""
    answers = [request for request in group.kept if len(request.timeline.chunks) > 1]
    single = [request for request in answers if _one_token_per_chunk(request.timeline)]
    gaps = {request.key: _gaps(request.timeline) for request in single} if len(single) == len(answers) else {}
    return sampled_statement(
        "itl",
        [Sampled(value=gap, key=key) for key, found in gaps.items() for gap in found],
        probe=PROBE,
        subject=f"Gap between one output token and the next, behind {tokens}",
        at_tokens=group.length,
        conditions={**conditions, "answers": str(len(gaps))},
        why_none=(_left_out(group) or "no such request") if not answers else "chunks are not one token each by usage",
        interval=mean.interval([sum(found) / len(found) for found in gaps.values()]),
    )


def _one_token_per_chunk(timeline: RequestTimeline) -> bool:
    return timeline.usage is not None and timeline.usage.completion_tokens == len(timeline.chunks)


def _gaps(timeline: RequestTimeline) -> list[float]:
    chunks = timeline.chunks
    return [(after.at_ns - before.at_ns) / _NS_PER_S for before, after in pairwise(chunks)]


def _engine_gap(group: AtLength, tokens: str, conditions: dict[str, str]) -> Iterator[Statement]:
    """The client's TTFT against the engine's own of the same request. Silent where the engine has no such clock."""
    samples: list[Sampled] = []
    clocks: list[str] = []
    for request in group.kept:
        found = _engine_clock(request)
        if found is not None and request.timeline.ttft_ns is not None:
            engine_ns, clock = found
            samples.append(_sample(request, request.timeline.ttft_ns - engine_ns))
            clocks.append(clock)
    if samples:
        yield sampled_statement(
            "engine_ttft_gap",
            samples,
            probe=PROBE,
            subject=f"The client saw the first token of {tokens} later than the engine's own clock",
            at_tokens=group.length,
            conditions={**conditions, "engine_clock": " and ".join(dict.fromkeys(clocks))},
            why_none="the engine does not tell",
        )


def _engine_clock(request: ColdRequest) -> tuple[float, str] | None:
    """(ns, which clock). llama.cpp's prompt_ms ends after the first token is sampled and begins when a slot takes the
    prompt: tokenizing, template and queueing are not in it (tools/server/server-context.cpp, b11434)."""
    before, after = request.body.before, request.body.after
    if before is not None and after is not None:
        measured = engine_ttft_ns(before, after)
        if measured is not None:
            return measured, "its time-to-first-token histogram"
    prompt_ms = request.timeline.engine_timings.get("prompt_ms")
    return None if prompt_ms is None else (prompt_ms * 1e6, "timings.prompt_ms, without tokenizing and queueing")


def _success(group: AtLength) -> Statement:
    good = group.sent - len(group.failed)
    why = f" ({_outcomes(group.failed)})" if group.failed else ""
    every = (*group.kept, *group.warm, *group.failed)
    return Statement(
        id=f"{PROBE}.success_rate.{group.length}",
        metric="success_rate",
        text=(
            f"{good} of {group.sent} prompts of {format_tokens(group.length)} tokens completed with all the output"
            f" asked for{why}."
        ),
        standing=Standing.SHOWN,
        unit="fraction",
        value=Measured(value=good / group.sent, provenance=Provenance.MEASURED, source="completed / sent"),
        n=group.sent,
        at_tokens=group.length,
        interval=clopper_pearson(good, group.sent),
        samples=tuple(0.0 if request in group.failed else 1.0 for request in every),
        evidence=tuple(request.key for request in every),
    )


def _not_cold(view: EvidenceView, groups: list[AtLength]) -> Iterator[Finding]:
    warm = [request for group in groups for request in group.warm]
    if not warm:
        return
    worst = max(warm, key=lambda request: request.reports.most or 0)
    shared = shared_prefix_tokens(view, PROBE)
    yield Finding(
        id="speed.cached_while_cold",
        severity=Severity.FAULT,
        text=(
            f"{len(warm)} prompts that nobody had sent before were reported with cached tokens, up to"
            f" {format_tokens(worst.reports.most or 0)} by {' and '.join(worst.reports.sources)}; fresh prompts share"
            f" at most {shared} tokens (template and nonce) with earlier ones. The report is wrong, or the server"
            " reused what it must not. These samples enter no number."
        ),
        evidence=tuple(request.key for request in warm),
        details={"cached": str(worst.reports.most), "shareable": str(shared)},
    )


def _not_measured(view: EvidenceView, measured: set[int]) -> Iterator[NotShown]:
    reasons: dict[int, str] = {}
    for _, note in view.notes(PROBE):
        length = note.detail.get("length")
        if note.what == "length_unproven" and isinstance(length, int) and length not in measured:
            reasons.setdefault(length, str(note.detail.get("reason", "")))
    for length, reason in sorted(reasons.items()):
        yield NotShown(
            topic=f"speed_at_{length}",
            text=f"Speed at {format_tokens(length)} tokens: no prompt of that length could be promised ({reason}).",
            how="choose other --lengths, or --route completions where the server takes token ids",
        )


def _conditions(view: EvidenceView, group: AtLength) -> dict[str, str]:
    conditions = {
        "cache": "cold",
        "cold_by": how_cold(request.reports for request in group.kept) if group.kept else "no cold sample",
        "load": "idle: one request at a time",
        "output_tokens": str(view.header.protocol.output_tokens),
    }
    left_out = _left_out(group)
    return {**conditions, "left_out": left_out} if left_out else conditions


def _left_out(group: AtLength) -> str:
    """What does not enter the numbers, and why: ``1 hung without a token, 2 not cold``."""
    parts = [_outcomes(group.failed)] if group.failed else []
    return ", ".join([*parts, f"{len(group.warm)} not cold"] if group.warm else parts)


def _outcomes(requests: tuple[ColdRequest, ...]) -> str:
    return counted(request.timeline for request in requests)


def _ttft(group: AtLength) -> list[Sampled]:
    return [_sample(request, request.timeline.ttft_ns) for request in group.kept if request.timeline.ttft_ns]


def _sample(request: ColdRequest, ns: float | None) -> Sampled:
    assert ns is not None  # callers filter; narrows the type
    return Sampled(value=ns / _NS_PER_S, key=request.key)
