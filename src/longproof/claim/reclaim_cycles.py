"""What each cycle of the reclaim probe shows: when we left, when the gauges were back, and the floor they came to.

    base ── sent ──╮ peak
                   left ─────╮
                    │◀ back ▶╰── floor

A gauge is at least a scrape old: "back" is the time of the sample after the first that shows it, an upper bound.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from longproof.claim.view import EvidenceView, Window
from longproof.domain.engine_metrics import growth
from longproof.domain.events import EngineSample, RequestTimeline
from longproof.domain.outcome import completed_as_asked
from longproof.evidence.records import RequestBody

PROBE = "reclaim"
RSS = "process_resident_memory_bytes"
_OUTPUT = ("vllm:generation_tokens_total", "llamacpp:n_decode_total")
"""Counters that move with every token. llama.cpp's counter of output moves when a request ends; its steps are counted
as they come, and no step gives a request more than one token (without a draft)."""
_NEARLY = 0.1
_STILL_HELD = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Idle:
    """What the cancelled requests take when nobody cancels them: times in ns, means over the references."""

    ttft_ns: float
    decode_ns: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Cycle:
    """One request that was left. `back_ns`: after leaving, until the gauges were where they had been; None = not while
    we watched, which was `watched_ns`. `seen`: a gauge had moved at all. `before_tokens_ns`: what prefill was still to
    do, and `decode_ns` what decode was, had we stayed. `left`: requests left in this cycle, those that filled the queue
    included. `waited`: the waiting gauge showed somebody. `output_after`: the share of its remaining output that the
    engine's own counter says was generated all the same, None = no such counter."""

    key: str
    stage: str
    by: str
    evidence: tuple[str, ...]
    left: int
    back_ns: int | None
    watched_ns: int
    seen: bool
    waited: bool
    before_tokens_ns: float
    decode_ns: float
    kv_base: float | None
    kv_peak: float | None
    kv_floor: float | None
    rss_floor: float | None
    output_after: float | None

    @property
    def at_least_ns(self) -> int:
        """How long it took, or at least how long it took."""
        return self.watched_ns if self.back_ns is None else self.back_ns

    @property
    def went_on(self) -> float | None:
        """The share of the decode still to do that went by before the gauges were back: near 0 for an engine that
        notices, 1 for one that goes on to the natural end. None where there was next to none to do."""
        return None if self.decode_ns <= 0 else (self.at_least_ns - self.before_tokens_ns) / self.decode_ns


def idle_of(view: EvidenceView) -> Idle | None:
    """The references of the cancelled length; None without one that completed."""
    done = [body.timeline for key, body in view.requests(PROBE) if key.startswith(f"{PROBE}/idle/")]
    kept = [timeline for timeline in done if completed_as_asked(timeline) and timeline.ttft_ns is not None]
    if not kept:
        return None
    ttft_ns = statistics.fmean(timeline.ttft_ns or 0 for timeline in kept)
    return Idle(ttft_ns=ttft_ns, decode_ns=statistics.fmean(timeline.e2e_ns for timeline in kept) - ttft_ns)


def cycles_of(view: EvidenceView, idle: Idle) -> list[Cycle]:
    """All cycles in which we really left, in order; not those that the largest request followed at once."""
    nudges = {key.removesuffix("/nudge"): body for key, body in view.requests(PROBE) if key.endswith("/nudge")}
    memory = {
        key.removesuffix("/memory"): float(note.detail["memory_bytes"])
        for key, note in view.notes(PROBE)
        if note.what == "memory"
    }
    windows = [window for window in view.windows(PROBE) if "then" not in window.body.cell]
    found = [_cycle(window, idle, nudges.get(window.key), memory.get(window.key)) for window in windows]
    return [cycle for cycle in found if cycle is not None]


def _cycle(window: Window, idle: Idle, nudge: RequestBody | None, owned_bytes: float | None) -> Cycle | None:
    left = [(key, body) for key, body in window.requests if body.left_ns is not None]
    ours = next((body for _, body in left if body.cell["role"] == "cancelled"), None)
    if ours is None or ours.left_ns is None:
        return None
    left_ns = max(body.left_ns or 0 for _, body in left)
    sent_ns = min(body.timeline.submitted_ns for _, body in left)
    before = [sample for sample in window.samples if sample.at_ns < sent_ns]
    during = [sample for sample in window.samples if sample.at_ns >= sent_ns]
    base = _base(before)
    last = window.samples[-1] if window.samples else None
    stage = str(window.body.cell["stage"])
    to_do = _to_do(stage, ours.timeline, left_ns, idle)
    rested = nudge.after if nudge is not None and nudge.after is not None else last
    kv_base = None if base is None else base.kv_usage
    kv = [sample.kv_usage for sample in during if sample.kv_usage is not None]
    seen = base is not None and (any(_above(sample, base) for sample in during) or _fell(kv, kv_base))
    back_ns = None
    if base is not None and seen:
        back_ns = _back_ns(during, base, left_ns, window.body.ended_ns)
    return Cycle(
        key=window.key,
        stage=stage,
        by=str(window.body.cell["by"]),
        evidence=tuple(key for key, _ in left),
        left=len(left),
        back_ns=back_ns,
        watched_ns=window.body.ended_ns - left_ns,
        seen=seen,
        waited=any((sample.waiting or 0) > 0 for sample in during),
        before_tokens_ns=to_do[0],
        decode_ns=to_do[1],
        kv_base=kv_base,
        kv_peak=max(kv, default=None),
        kv_floor=None if rested is None else rested.kv_usage,
        rss_floor=owned_bytes if owned_bytes is not None or rested is None else rested.values.get(RSS),
        output_after=_output_after(during, ours.timeline),
    )


def _base(before: Sequence[EngineSample]) -> EngineSample | None:
    """The quietest sample from before sending. The last one counts only where it is alone: stamped before it was
    asked for, it may have been answered after the request came."""
    quiet = before[:-1] or before
    return min(quiet, key=lambda sample: (sample.running or 0, sample.kv_usage or 0.0), default=None)


def _to_do(stage: str, timeline: RequestTimeline, left_ns: int, idle: Idle) -> tuple[float, float]:
    """Prefill and decode still to do when we left, in ns."""
    if stage == "queued":
        return idle.ttft_ns, idle.decode_ns
    if stage == "decode":
        share = 1 - len(timeline.chunks) / max(1, timeline.max_tokens)
        return 0.0, idle.decode_ns * share
    return max(0.0, idle.ttft_ns - (left_ns - timeline.submitted_ns)), idle.decode_ns


def _back_ns(during: Sequence[EngineSample], base: EngineSample, left_ns: int, ended_ns: int) -> int | None:
    """From leaving until the sample after the first from which on all show an engine at rest."""
    kv = [sample.kv_usage for sample in during if sample.kv_usage is not None]
    level = kv[-1] + _NEARLY * (max(kv) - kv[-1]) if _fell(kv, base.kv_usage) else None
    first = len(during)
    while first > 0 and _rests(during[first - 1], base, level) and during[first - 1].at_ns > left_ns:
        first -= 1
    if first == len(during):
        return None
    return (during[first + 1].at_ns if first + 1 < len(during) else ended_ns) - left_ns


def _fell(kv: Sequence[float], base: float | None) -> bool:
    """Whether KV usage rose and fell again. What rose and stayed is no time but a floor: see `reclaim_floor`."""
    if base is None or not kv or max(kv) <= base:
        return False
    return kv[-1] < base + _STILL_HELD * (max(kv) - base)


def _output_after(during: Sequence[EngineSample], timeline: RequestTimeline) -> float | None:
    """At most; by the engine's own counter, which also counts for requests that nobody waits for."""
    found = [growth(during[0], during[-1], name) for name in _OUTPUT] if during else []
    grown = next((value for value in found if value is not None), None)
    remaining = timeline.max_tokens - len(timeline.chunks)
    return None if grown is None or remaining <= 0 else (grown - len(timeline.chunks)) / remaining


def _rests(sample: EngineSample, base: EngineSample, level: float | None) -> bool:
    if _above(sample, base):
        return False
    return level is None or sample.kv_usage is None or sample.kv_usage <= level


def _above(sample: EngineSample, base: EngineSample) -> bool:
    """Whether more runs or waits than before."""
    return (sample.running or 0) > (base.running or 0) or (sample.waiting or 0) > (base.waiting or 0)
