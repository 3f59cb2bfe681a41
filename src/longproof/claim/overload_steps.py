"""What stands in the evidence of the overload probe, step by step, and what of it was good enough."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from longproof.claim.busy_phases import Asked
from longproof.claim.load_spans import Span, client_was_late, counter_growth, late_within_ns, preemptions
from longproof.claim.view import EvidenceView, Window
from longproof.domain.events import EngineSample, RequestTimeline
from longproof.domain.outcome import Outcome, classify
from longproof.domain.outcome_words import counted
from longproof.evidence.records import SessionBody
from longproof.stats.quantile import sample_quantile

PROBE = "overload"
_TAIL = 0.95
_REFUSED = (Outcome.REFUSED_BUSY, Outcome.REFUSED_OTHER, Outcome.REFUSED_LENGTH)
_COMPUTED = (("llamacpp:prompt_tokens_total", ""), ("sglang:realtime_tokens_total", 'mode="prefill_compute"'))
"""(counter, label) that see a prompt as often as it is computed. vLLM 0.32 has none: a request's prefill is counted
before its first preemption only (v1/core/sched/scheduler.py, `prefill_stats.set`), so prompt_tokens_total,
prompt_tokens_by_source_total and iteration_tokens_total see a prompt once, and the prefix cache's counts of preempted
requests are not exported (v1/metrics/stats.py, `PrefixCacheStats.preempted_queries`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """What is good enough. `how` says where the limits come from."""

    ttft_s: float | None
    tpot_s: float | None
    how: str

    def kept(self, timeline: RequestTimeline) -> bool:
        """Whether a completed request kept it. A time that is not known breaks no limit."""
        late = self.ttft_s is not None and (timeline.ttft_ns or 0) > self.ttft_s * 1e9
        slow = self.tpot_s is not None and (timeline.tpot_ns or 0) > self.tpot_s * 1e9
        return not late and not slow


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSeen:
    """One step of the load. `label` is its size in words, `name` in its key."""

    window: Window
    name: str
    label: str
    asked: tuple[Asked, ...]

    @property
    def done(self) -> list[Asked]:
        """Completed with all output."""
        return [item for item in self.asked if item.done]

    def good(self, slo: Slo) -> list[Asked]:
        """Completed in time."""
        return [item for item in self.done if slo.kept(item.timeline)]

    def of(self, *outcomes: Outcome) -> list[Asked]:
        """Those that ended so."""
        return [item for item in self.asked if classify(item.timeline) in outcomes]

    @property
    def refused(self) -> list[Asked]:
        return self.of(*_REFUSED)

    @property
    def took_s(self) -> float:
        """From the window's start to the last completion, the step's length at least: what is given up later on is
        waited for, and nobody works meanwhile."""
        start, planned = self.window.body.started_ns, int(self.window.body.load.get("for_ns", 0))
        last = max((item.timeline.finished_ns - start for item in self.done), default=0)
        return max(planned, last, 1) / 1e9

    @property
    def output_tokens(self) -> int:
        """Of completed requests."""
        return sum(item.timeline.usage.completion_tokens or 0 for item in self.done if item.timeline.usage is not None)

    @property
    def preemptions(self) -> int | None:
        return preemptions(self.window.samples)

    @property
    def recomputed_tokens(self) -> int | None:
        """Prompt tokens computed beyond those asked for: none where nothing was preempted. None where the engine does
        not show work done twice."""
        samples = self.window.samples
        grown = next((found for name in _COMPUTED if (found := _growth(samples, *name)) is not None), None)
        if grown is None:
            return 0 if self.preemptions == 0 else None
        asked = sum(
            (item.timeline.prompt_tokens_sent or 0) - ((item.timeline.usage and item.timeline.usage.cached_tokens) or 0)
            for item in self.asked
            if item.timeline.first_token_ns is not None
        )
        return max(0, round(grown - asked))

    @property
    def most_recomputed_tokens(self) -> int | None:
        """What the preemptions can have cost at most: each the longest request, prompt and output. None where they are
        not counted."""
        longest = max(
            ((item.timeline.prompt_tokens_sent or 0) + item.timeline.max_tokens for item in self.asked), default=0
        )
        return None if self.preemptions is None else self.preemptions * longest

    @property
    def waiting(self) -> list[EngineSample]:
        """Samples with a gauge of waiting requests, while new ones were sent."""
        body = self.window.body
        end = body.started_ns + int(body.load.get("for_ns", 0))
        return [sample for sample in self.window.samples if sample.waiting is not None and sample.at_ns <= end]

    @property
    def outcomes(self) -> str:
        """``3 refused as busy, 1 hung without a token``"""
        return counted(item.timeline for item in self.asked if not item.done)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """What came after the load, one request at a time. `asked` are (request, how late the client was meanwhile, ns).
    `band_*_ns`: the idle server's longest times and half as long again. `interrupted`: the run went on in another
    session, so no time since the load's end is known."""

    windows: tuple[Window, ...]
    asked: tuple[tuple[Asked, int], ...]
    band_ttft_ns: int
    band_tpot_ns: int
    in_a_row: int
    most_ns: int
    ended_ns: int
    interrupted: bool

    @property
    def late(self) -> bool:
        """Whether the client itself was short of a processor meanwhile."""
        return client_was_late(*(window.body for window in self.windows))

    def quick(self, item: Asked, late_ns: int) -> bool:
        """As on the idle server, but for what the client was late by."""
        timeline = item.timeline
        tokens = max(1, len(timeline.chunks) - 1)
        return (
            item.done
            and (timeline.ttft_ns or 0) - late_ns <= self.band_ttft_ns
            and (timeline.tpot_ns or 0) - late_ns / tokens <= self.band_tpot_ns
        )

    @property
    def verdicts(self) -> list[bool]:
        """Quick or not, in order."""
        return [self.quick(item, late_ns) for item, late_ns in self.asked]

    @property
    def recovered_ns(self) -> int | None:
        """From the load's end to the first of `in_a_row` quick requests; None: it did not come to that."""
        verdicts = self.verdicts
        for at in range(len(verdicts) - self.in_a_row + 1):
            if all(verdicts[at : at + self.in_a_row]):
                return self.asked[at][0].timeline.submitted_ns - self.ended_ns
        return None

    @property
    def slow_first(self) -> int:
        """How many of the first requests in a row were not quick."""
        verdicts = self.verdicts
        return verdicts.index(True) if True in verdicts else len(verdicts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Overload:
    """All of it; `steps` from the smallest."""

    idle: StepSeen
    steps: tuple[StepSeen, ...]
    slo: Slo
    recovery: Recovery | None


def overload_of(view: EvidenceView) -> Overload | None:
    """The probe's records in order; None where not even the idle step stands."""
    seen = [_step(window) for window in view.windows(PROBE)]
    idle = next((step for step in seen if step.window.body.cell.get("phase") == "idle"), None)
    if idle is None:
        return None
    steps = [step for step in seen if step.window.body.cell.get("phase") == "step"]
    steps.sort(key=lambda step: int(step.window.body.cell.get("number", 0)))
    return Overload(idle=idle, steps=tuple(steps), slo=_slo(idle), recovery=_recovery(view, steps))


def _step(window: Window) -> StepSeen:
    load = window.body.load
    if "rate_per_s" in load:
        name, label = f"{load['rate_per_s']:g}_per_s", f"{load['rate_per_s']:g} requests a second"
    else:
        name, label = str(load.get("concurrency")), f"{load.get('concurrency')} at a time"
    asked = tuple(Asked(key=key, timeline=body.timeline) for key, body in window.requests)
    return StepSeen(window=window, name=name, label=label, asked=asked)


def _slo(idle: StepSeen) -> Slo:
    load = idle.window.body.load
    given_ttft, given_tpot = load.get("slo_ttft_s"), load.get("slo_tpot_s")
    if given_ttft is not None or given_tpot is not None:
        return Slo(
            ttft_s=None if given_ttft is None else float(given_ttft),
            tpot_s=None if given_tpot is None else float(given_tpot),
            how="as given",
        )
    times = float(load.get("slo_times", 5.0))
    ttft = sample_quantile([item.timeline.ttft_ns / 1e9 for item in idle.done if item.timeline.ttft_ns], _TAIL)
    tpot = sample_quantile([item.timeline.tpot_ns / 1e9 for item in idle.done if item.timeline.tpot_ns], _TAIL)
    return Slo(
        ttft_s=times * ttft if isinstance(ttft, float) else None,
        tpot_s=times * tpot if isinstance(tpot, float) else None,
        how=f"{times:g} times the idle p95",
    )


def _recovery(view: EvidenceView, steps: Sequence[StepSeen]) -> Recovery | None:
    band = next((note.detail for _, note in view.notes(PROBE) if note.what == "band"), None)
    windows = [window for window in view.windows(PROBE) if window.body.cell.get("phase") == "recovery"]
    windows.sort(key=lambda window: int(window.body.cell.get("number", 0)))
    asked = [
        (Asked(key=key, timeline=body.timeline), late_within_ns(window.body, _span(body.timeline)))
        for window in windows
        for key, body in window.requests
    ]
    if band is None or not steps or not asked:
        return None
    last = steps[-1].window
    where = [record.seq for record in view.records if record.key in (last.key, windows[-1].key)]
    sessions = [record.seq for record in view.records if isinstance(record.body, SessionBody)]
    return Recovery(
        windows=tuple(windows),
        asked=tuple(asked),
        band_ttft_ns=int(band["ttft_ns"]),
        band_tpot_ns=int(band["tpot_ns"]),
        in_a_row=int(band["in_a_row"]),
        most_ns=int(band["most_ns"]),
        ended_ns=last.body.ended_ns,
        interrupted=any(min(where) < seq < max(where) for seq in sessions),
    )


def _span(timeline: RequestTimeline) -> Span:
    return Span(start_ns=timeline.submitted_ns, end_ns=timeline.finished_ns)


def _growth(samples: Sequence[EngineSample], name: str, label: str) -> float | None:
    """Like `counter_growth`, of the label sets that have `label`."""
    slim = [
        replace(sample, values={key: value for key, value in sample.values.items() if label in key})
        for sample in samples
    ]
    return counter_growth(slim, name)
