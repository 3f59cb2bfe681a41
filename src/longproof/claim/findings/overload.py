"""Reads what `probe/overload` asked: where goodput peaks, what gives beyond it, and how the server comes back.

Only requests that completed within the limits are good. That they come late beyond capacity is no fault: an honest
queue does that, and the numbers say it. A finding is what costs work, or leaves a client without an answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from longproof.claim.findings.busy_long import queue_stuck
from longproof.claim.findings.overload_recovery import recovery_findings, recovery_statement
from longproof.claim.findings.refusals import error_after_200, retry_after_missing
from longproof.claim.load_spans import client_was_late, late_share
from longproof.claim.overload_steps import PROBE, Overload, Slo, StepSeen, overload_of
from longproof.claim.statements import Finding, NotShown, Severity, Standing, Statement
from longproof.claim.view import EvidenceView
from longproof.claim.wording import many
from longproof.domain.measure import Measured, Provenance, Unknown
from longproof.domain.outcome import Outcome
from longproof.domain.units import format_ns, format_tokens
from longproof.stats.proportion import clopper_pearson
from longproof.stats.rates import p_not_below, rate_interval

ALPHA = 0.01
_HALF = 0.5
"""Goodput below this share of its peak has collapsed …"""
_WORK = 0.7
"""… and not for lateness alone when completed work, too, is below this share of *its* peak."""
_THRASH = 0.5
"""Preemptions per completed request, at least: more work is taken away than a small pool explains."""
_NAMED = 20


def read(view: EvidenceView) -> Iterator[Statement | Finding | NotShown]:
    """Statements per step, the peak, recovery, findings."""
    overload = overload_of(view)
    if overload is None or not overload.steps:
        yield from _not_run(view)
        return
    for step in _all(overload):
        yield from _step(step, overload.slo)
    yield _peak(overload)
    yield _preemptions(overload)
    yield _recomputed(overload)
    yield from recovery_statement(overload)
    yield from _findings(view, overload)
    yield from _not_run(view)
    late = [step.label for step in _all(overload) if client_was_late(step.window.body)]
    if late:
        yield NotShown(
            topic="overload_client",
            text=f"What gives with {', '.join(late)}: the client itself was short of a processor then.",
            how="run the client on a machine of its own, or give it more processors",
        )
    peak = _best(overload)
    if peak is overload.steps[-1]:
        yield NotShown(
            topic="overload_peak",
            text=f"Where goodput peaks: it was highest at the largest load that was tried, {peak.label}.",
            how="raise --concurrency or --rate",
        )


def _all(overload: Overload) -> list[StepSeen]:
    return [overload.idle, *overload.steps]


def _name(overload_step: StepSeen) -> str:
    return "idle" if overload_step.window.body.cell.get("phase") == "idle" else overload_step.name


# -- statements -------------------------------------------------------------------------------------------------------


def _conditions(step: StepSeen, slo: Slo) -> dict[str, str]:
    load = step.window.body.load
    limits = [
        f"{name} ≤ {format_ns(value * 1e9)}" for name, value in (("TTFT", slo.ttft_s), ("TPOT", slo.tpot_s)) if value
    ]
    return {
        "load": step.label,
        "prompt_tokens": str(load.get("prompt_tokens")),
        "output_tokens": str(load.get("output_tokens")),
        "slo": f"{', '.join(limits) or 'none'} ({slo.how})",
        "cache": "cold",
        "seed": str(load.get("seed", 0)),
    }


def _step(step: StepSeen, slo: Slo) -> Iterator[Statement]:
    good, done, sent = len(step.good(slo)), len(step.done), len(step.asked)
    conditions = _conditions(step, slo)
    failed = f"; not completed: {step.outcomes}" if step.outcomes else ""
    yield Statement(
        id=f"{PROBE}.overload_goodput.{_name(step)}",
        metric="overload_goodput",
        text=(
            f"With {step.label}: {good / step.took_s:.3g} good requests a second; of {sent} sent {done} completed,"
            f" {good} of them in time{failed}.{_queue(step)}{_taken_away(step)}"
        ),
        standing=Standing.SHOWN,
        unit="req/s",
        value=Measured(value=good / step.took_s, provenance=Provenance.MEASURED, source="good requests / time"),
        n=sent,
        interval=rate_interval(good, step.took_s),
        conditions=conditions,
        evidence=(step.window.key,),
    )
    yield Statement(
        id=f"{PROBE}.overload_throughput.{_name(step)}",
        metric="overload_throughput",
        text=f"With {step.label}: {step.output_tokens / step.took_s:,.4g} output tokens a second, completed requests.",
        standing=Standing.SHOWN,
        unit="tok/s",
        value=Measured(
            value=step.output_tokens / step.took_s, provenance=Provenance.MEASURED, source="output tokens / time"
        ),
        n=done,
        conditions=conditions,
        evidence=(step.window.key,),
    )
    if sent:
        yield Statement(
            id=f"{PROBE}.overload_served.{_name(step)}",
            metric="overload_served",
            text=f"With {step.label}: {done} of {sent} requests completed{failed}.",
            standing=Standing.SHOWN,
            unit="fraction",
            value=Measured(value=done / sent, provenance=Provenance.MEASURED, source="completed / sent"),
            n=sent,
            interval=clopper_pearson(done, sent),
            conditions=conditions,
            evidence=(step.window.key,),
        )


def _queue(step: StepSeen) -> str:
    """`` Up to 12 waited, 1.5 more every second.``"""
    samples = step.waiting
    most = max((sample.waiting or 0 for sample in samples), default=0)
    if not samples:
        return " How many waited is not known: no such gauge."
    if most == 0:
        return " Nobody waited in any sample."
    growth = _slope([(sample.at_ns / 1e9, float(sample.waiting or 0)) for sample in samples])
    grew = f", {growth:+.2g} a second" if growth is not None else ""
    return f" Up to {most} waited in the engine{grew}."


def _slope(points: Sequence[tuple[float, float]]) -> float | None:
    """Least squares."""
    if len(points) < 3:
        return None
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread else None


def _taken_away(step: StepSeen) -> str:
    return f" {many(step.preemptions, 'preemption')}." if step.preemptions else ""


def _best(overload: Overload) -> StepSeen:
    return max(_all(overload), key=lambda step: len(step.good(overload.slo)) / step.took_s)


def _peak(overload: Overload) -> Statement:
    best = _best(overload)
    good = len(best.good(overload.slo))
    if not good:
        return Statement(
            id=f"{PROBE}.overload_peak",
            metric="overload_peak",
            text="No request of any step completed within the limits.",
            standing=Standing.NOT_SHOWN,
            unit="req/s",
            value=Unknown(reason="no good request"),
            n=0,
        )
    return Statement(
        id=f"{PROBE}.overload_peak",
        metric="overload_peak",
        text=f"Goodput was highest with {best.label}: {good / best.took_s:.3g} good requests a second (n = {good}).",
        standing=Standing.SHOWN,
        unit="req/s",
        value=Measured(value=good / best.took_s, provenance=Provenance.MEASURED, source="max of overload_goodput"),
        n=good,
        interval=rate_interval(good, best.took_s),
        conditions=_conditions(best, overload.slo),
        evidence=(best.window.key,),
    )


def _preemptions(overload: Overload) -> Statement:
    return _counted(
        overload,
        "overload_preemptions",
        "preemptions",
        [step.preemptions for step in overload.steps],
        "Preemptions over all steps, as the engine counted them: {n}.",
        "the engine does not count preemptions",
    )


def _recomputed(overload: Overload) -> Statement:
    counts = [step.recomputed_tokens for step in overload.steps]
    most = [step.most_recomputed_tokens for step in overload.steps]
    missing = "the engine has no counter that sees prompt tokens computed twice"
    if most and None in counts and None not in most:  # the part that is known would be told as the whole
        bound = sum(tokens or 0 for tokens in most)
        missing += f"; what it preempted was at most {format_tokens(bound)} tokens, prompts and output"
        counts = []
    return _counted(
        overload,
        "overload_recomputed",
        "tokens",
        counts,
        "Prompt tokens that the engine computed beyond those asked for: {n}.",
        missing,
    )


def _counted(
    overload: Overload, metric: str, unit: str, counts: Sequence[int | None], text: str, missing: str
) -> Statement:
    known = [count for count in counts if count is not None]
    return Statement(
        id=f"{PROBE}.{metric}",
        metric=metric,
        text=text.format(n=format_tokens(sum(known))) if known else f"Not known: {missing}.",
        standing=Standing.SHOWN if known else Standing.NOT_SHOWN,
        unit=unit,
        value=Measured(value=float(sum(known)), provenance=Provenance.REPORTED, source="the engine's own counters")
        if known
        else Unknown(reason=missing),
        n=len(known),
        evidence=tuple(step.window.key for step in overload.steps) if known else (),
    )


# -- findings ---------------------------------------------------------------------------------------------------------


def _findings(view: EvidenceView, overload: Overload) -> Iterator[Finding]:
    asked = [item for step in _all(overload) for item in step.asked]
    yield from _crash(view, overload)
    yield from _given_way(overload)
    yield from _timeouts(overload)
    yield from retry_after_missing(asked, "overload.retry_after_missing")
    yield from error_after_200(asked, "overload.error_after_200")
    alone_ns = max((item.timeline.e2e_ns for item in overload.idle.done), default=0)
    for step in overload.steps:  # no engine step takes longer than all that are under way, one after the other
        together = int(step.window.body.load.get("concurrency", len(step.asked)))
        stuck = list(queue_stuck([step.window], together * alone_ns // 2, "overload.queue_stuck"))
        if stuck:
            yield from stuck
            break
    yield from recovery_findings(overload)


def _crash(view: EvidenceView, overload: Overload) -> Iterator[Finding]:
    gone = [(step, item) for step in overload.steps for item in step.of(Outcome.UNREACHABLE)]
    died = [key for key, note in view.notes(PROBE) if note.what == "died"]
    if gone or died:
        where = f" with {gone[0][0].label}" if gone else ""
        yield Finding(
            id="overload.crash",
            severity=Severity.FAULT,
            text=(
                f"The server went away under load{where}: {len(gone)} requests found nobody listening"
                f"{', and it produced no token afterwards' if died else ''}."
            ),
            evidence=(*(item.key for _, item in gone[:_NAMED]), *died),
        )


def _given_way(overload: Overload) -> Iterator[Finding]:
    """Thrash or collapse: goodput beyond the peak is below half of it, and that is not lateness alone."""
    peak, slo = _best(overload), overload.slo
    beyond = overload.steps[overload.steps.index(peak) + 1 :] if peak in overload.steps else overload.steps
    fallen = [step for step in beyond if _below(len(step.good(slo)), step, len(peak.good(slo)), peak, _HALF)]
    thrashing = [step for step in fallen if _thrashes(step)]
    busiest = max(_all(overload), key=lambda step: len(step.done) / step.took_s)
    sound = [step for step in fallen if not client_was_late(step.window.body)]
    idle_work = [step for step in sound if _below(len(step.done), step, len(busiest.done), busiest, _WORK)]
    best = len(peak.good(slo)) / peak.took_s
    if thrashing:
        worst = max(thrashing, key=lambda step: step.preemptions or 0)
        yield Finding(
            id="overload.thrash",
            severity=Severity.FAULT,
            text=(
                f"With {worst.label} the engine counted {many(worst.preemptions or 0, 'preemption')} for"
                f" {many(len(worst.done), 'completed request')}, and goodput fell to"
                f" {len(worst.good(slo)) / worst.took_s:.3g} a second from {best:.3g} with {peak.label}: it"
                " takes memory from what runs and computes it again."
            ),
            evidence=tuple(step.window.key for step in (peak, *thrashing)),
            details={"preemptions": str(worst.preemptions), "completed": str(len(worst.done))},
        )
    if idle_work:
        worst = min(idle_work, key=lambda step: len(step.good(slo)) / step.took_s)
        yield Finding(
            id="overload.collapse",
            severity=Severity.CAUTION,
            text=(
                f"With {worst.label} goodput fell to {len(worst.good(slo)) / worst.took_s:.3g} a second, below half of"
                f" the {best:.3g} with {peak.label}; completed requests, late ones too, fell to"
                f" {len(worst.done) / worst.took_s:.3g} a second from {len(busiest.done) / busiest.took_s:.3g} with"
                f" {busiest.label}: work is lost, not only late."
            ),
            evidence=tuple(step.window.key for step in (peak, *idle_work)),
        )


def _below(count: int, step: StepSeen, of_count: int, of_step: StepSeen, share: float) -> bool:
    """Whether its rate is below `share` of the other's, in the time that the client had a processor."""
    seen_s = step.took_s * max(0.01, 1 - late_share(step.window.body))
    return p_not_below(count, seen_s, of_count, of_step.took_s, share) < ALPHA


def _thrashes(step: StepSeen) -> bool:
    taken = step.preemptions or 0
    return taken > 0 and rate_interval(taken, max(1, len(step.done)), 1 - 2 * ALPHA).low >= _THRASH


def _timeouts(overload: Overload) -> Iterator[Finding]:
    late = [(step, item) for step in overload.steps for item in step.of(Outcome.HUNG, Outcome.TIMED_OUT)]
    if late:
        step = late[0][0]
        yield Finding(
            id="overload.timeouts",
            severity=Severity.CAUTION,
            text=(
                f"{len(late)} requests were neither refused nor served in time, the first with {step.label}: given up"
                f" after {float(step.window.body.load.get('timeout_s', 0)):.3g} s."
            ),
            evidence=tuple(item.key for _, item in late[:_NAMED]),
            details={"requests": str(len(late))},
        )


def _not_run(view: EvidenceView) -> Iterator[NotShown]:
    notes = {note.what: note for _, note in view.notes(PROBE)}
    if "fails_alone" in notes:
        yield NotShown(
            topic="overload_fails_alone",
            text="What more load does: not even one request at a time completed.",
            how="mend that first",
        )
    if "futile" in notes:
        yield NotShown(
            topic="overload_futile",
            text=f"Larger loads than {notes['futile'].detail.get('step')}: two steps in a row completed nothing.",
            how="raise --timeout to wait longer",
        )
    if "length_unproven" in notes:
        reason = notes["length_unproven"].detail.get("reason")
        yield NotShown(
            topic="overload_unproven",
            text=f"What overload does: a length could not be promised ({reason}).",
            how="choose other lengths, or --route completions where the server takes token ids",
        )
