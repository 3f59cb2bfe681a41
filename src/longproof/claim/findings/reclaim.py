"""Reads what `probe/reclaim` asked: how long what a client held outlives the client, and whether all of it comes back.

A time is a fact; an accusation needs more. An engine went on computing only where every cycle of a stage outlasted most
of the decode it was spared, whatever prefill it had begun: a batch under way may end. A leak is a floor of idle KV
usage that rises over the cycles beyond chance (Mann and Kendall, 1 %). Gauges can lie or be missing; then the largest
request, asked at once, is what is left.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from longproof.claim.findings.reclaim_floor import floors
from longproof.claim.findings.reclaim_readmission import readmission
from longproof.claim.reclaim_cycles import PROBE, Cycle, Idle, cycles_of, idle_of
from longproof.claim.sampled import Sampled, sampled_statement
from longproof.claim.statements import Finding, NotShown, Severity, Statement
from longproof.claim.view import EvidenceView
from longproof.domain.measure import Unknown, value_or_none
from longproof.domain.units import format_ns, format_tokens
from longproof.stats import mean

LEVEL = 0.01
_WENT_ON = 0.7
_WENT_ON_AT_LEAST = 0.5
_WELL_BEYOND = 2.0
_LEAST_DECODE_NS = 100_000_000
_DEFAULT_SLOW_S = 5.0
_OWN_PREFILL = 1.5
_LEAST_POOL_SHARE = 0.005
_METRICS = {
    ("queued", "disconnect"): ("reclaim_time_queued", "a client that left while its request waited behind others"),
    ("at_once", "disconnect"): ("reclaim_time_at_once", "a client that left a moment after sending"),
    ("prefill", "disconnect"): ("reclaim_time_prefill", "a client that left during prefill"),
    ("decode", "disconnect"): ("reclaim_time_decode", "a client that left during decode"),
    ("prefill", "abort"): ("abort_time_prefill", "an abort during prefill"),
    ("decode", "abort"): ("abort_time_decode", "an abort during decode"),
}


def read(view: EvidenceView) -> Iterator[Statement | Finding | NotShown]:
    """Times by stage, leaks, re-admission, and what nobody could see."""
    idle = idle_of(view)
    if idle is None:
        yield from _not_asked(view)
        return
    cycles = cycles_of(view, idle)
    groups = {stage: [cycle for cycle in cycles if (cycle.stage, cycle.by) == stage] for stage in _METRICS}
    for stage, group in groups.items():
        if group:
            yield _time(*_METRICS[stage], group)
    yield from _late(view, [group for group in groups.values() if group], idle)
    if cycles and not groups["queued", "disconnect"]:
        yield NotShown(
            topic="reclaim_queued",
            text="What becomes of a request whose client leaves while it waits in the queue: none was made to wait.",
            how="prove a server whose slots or KV pool eight requests fill",
        )
    yield from floors(view, cycles)
    yield from _blind(view, cycles)
    yield from readmission(view)


def _not_asked(view: EvidenceView) -> Iterator[NotShown]:
    if any(True for _ in view.requests(PROBE)) or any(True for _ in view.notes(PROBE)):
        yield NotShown(
            topic="reclaim_reference",
            text="Whether memory comes back from cancelled requests: none of that length completed even when idle.",
            how="prove again with a shorter --context",
        )


def _time(metric: str, what: str, group: Sequence[Cycle]) -> Statement:
    timed = [Sampled(value=cycle.back_ns / 1e9, key=cycle.key) for cycle in group if cycle.back_ns is not None]
    unseen = sum(not cycle.seen for cycle in group)
    stuck = len(group) - len(timed) - unseen
    conditions = {"load": "idle: one request at a time", "by": group[0].by, "cycles": str(len(group))}
    if group[0].stage == "queued":
        conditions["seen_waiting"] = f"{sum(cycle.waited for cycle in group)} of {len(group)}"
        conditions["load"] = "the engine filled by as many requests as fit"
    if unseen:
        conditions["not_seen_by_gauges"] = str(unseen)
    if stuck:
        conditions["not_back_while_watched"] = str(stuck)
    found = sampled_statement(
        metric,
        timed,
        probe=PROBE,
        subject=f"From {what} until the engine's gauges were where they had been, at most",
        at_tokens=None,
        conditions=conditions,
        why_none="no gauge showed the request" if unseen == len(group) else "the gauges did not come back",
    )
    return replace(found, id=f"{PROBE}.{metric.removeprefix('reclaim_')}")


def _late(view: EvidenceView, groups: Sequence[Sequence[Cycle]], idle: Idle) -> Iterator[Finding]:
    """Goes on to the natural end, or simply takes long. Only cycles that a gauge showed count."""
    seen = [kept for group in groups if (kept := [cycle for cycle in group if cycle.seen])]
    went_on = [group for group in seen if _went_on(group)]
    if went_on:
        yield _finding(
            "reclaim.not_noticed",
            Severity.FAULT,
            went_on,
            "the engine went on with the request as if nobody had gone, until about its natural end",
        )
    stated_s = _stated_s(view)
    limit_s = max(stated_s, _OWN_PREFILL * idle.ttft_ns / 1e9)
    slow = [group for group in seen if group not in went_on and _surely_above(group, limit_s)]
    if slow:
        kind = "as stated" if limit_s == stated_s else "as its own prefill takes"
        words = f"the engine held the request for longer than {format_ns(limit_s * 1e9)}, {kind}"
        yield _finding("reclaim.slow", Severity.CAUTION, slow, words)


def _finding(id_: str, severity: Severity, groups: Sequence[Sequence[Cycle]], words: str) -> Finding:
    cases = "; ".join(f"after {_METRICS[g[0].stage, g[0].by][1]} {_span(g)} (n = {len(g)})" for g in groups)
    return Finding(
        id=id_,
        severity=severity,
        text=f"{words[0].upper()}{words[1:]}: {cases}.",
        evidence=tuple(key for group in groups for cycle in group for key in cycle.evidence),
        details={"stages": ", ".join(f"{group[0].stage} by {group[0].by}" for group in groups)},
    )


def _surely_above(group: Sequence[Cycle], limit_s: float) -> bool:
    bound = mean.lower_bound([cycle.at_least_ns / 1e9 for cycle in group], 1 - LEVEL)
    return not isinstance(bound, Unknown) and bound > limit_s


def _went_on(seen: Sequence[Cycle]) -> bool:
    """By time, every cycle ended near the natural end; by the engine's own counter of output, where it has one, it
    produced what nobody waited for."""
    shares = [cycle.went_on for cycle in seen if cycle.decode_ns >= _LEAST_DECODE_NS]
    known = [share for share in shares if share is not None]
    if len(known) < 2 or len(known) < len(seen) or min(known) < _WENT_ON or max(known) > _WELL_BEYOND:
        return False
    if any(cycle.output_after is not None and cycle.output_after < _WENT_ON for cycle in seen):
        return False
    bound = mean.lower_bound(known, 1 - LEVEL)
    return not isinstance(bound, Unknown) and bound > _WENT_ON_AT_LEAST


def _span(group: Sequence[Cycle]) -> str:
    times = sorted(cycle.at_least_ns for cycle in group)
    return f"{format_ns(times[0])} to {format_ns(times[-1])}"


def _stated_s(view: EvidenceView) -> float:
    stated = [float(window.body.load["slow_s"]) for window in view.windows(PROBE) if "slow_s" in window.body.load]
    return stated[0] if stated else _DEFAULT_SLOW_S


def _blind(view: EvidenceView, cycles: Sequence[Cycle]) -> Iterator[Finding | NotShown]:
    """No gauge, or one that does not move while it must."""
    if not cycles:
        return
    if not any(cycle.seen for cycle in cycles) and all(cycle.kv_base is None for cycle in cycles):
        yield NotShown(
            topic="reclaim_gauges",
            text=(
                "How soon memory comes back after a cancel: the server shows no gauge of requests or KV use. What is"
                " shown is that the largest request was admitted afterwards, or not."
            ),
            how="let the server expose its metrics (vLLM does, SGLang --enable-metrics, llama.cpp --metrics --slots)",
        )
        return
    if all(cycle.kv_base is None for cycle in cycles):
        yield NotShown(
            topic="reclaim_kv",
            text=(
                "That each cancelled request gives back all of its KV cache: the server has no gauge of its use. Shown"
                " is how soon it stopped to work, and whether the largest request was admitted afterwards."
            ),
            how="repeat for long: a leak without a gauge shows only when nothing fits any more",
        )
        return
    yield from _frozen(view, cycles)


def _frozen(view: EvidenceView, cycles: Sequence[Cycle]) -> Iterator[Finding]:
    decoding = [cycle for cycle in cycles if cycle.stage == "decode" and cycle.kv_base is not None]
    capacity = value_or_none(view.header.deployment.kv_capacity_tokens)
    lengths = [int(window.body.cell["length"]) for window in view.windows(PROBE)]
    if len(decoding) < 2 or capacity is None or not lengths or max(lengths) < _LEAST_POOL_SHARE * capacity:
        return
    if all(cycle.kv_peak == cycle.kv_base for cycle in decoding):
        yield Finding(
            id="reclaim.blind",
            severity=Severity.CAUTION,
            text=(
                f"The gauge of KV use did not move while requests of {format_tokens(max(lengths))} tokens gave output"
                f" (n = {len(decoding)}); a pool of {format_tokens(capacity)} tokens would show"
                f" {100 * max(lengths) / capacity:.3g} %. It says nothing about leaks."
            ),
            evidence=tuple(key for cycle in decoding for key in cycle.evidence),
            details={"kv_usage": f"{decoding[0].kv_base}"},
        )
