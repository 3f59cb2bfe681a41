"""What of two proofs belongs together: the same question of the same repeat, asked on either side."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from longproof.claim.cached import cached_reports, shared_prefix_tokens
from longproof.claim.view import EvidenceView, Window
from longproof.domain.events import RequestTimeline
from longproof.domain.outcome import completed_as_asked, tokens_produced
from longproof.evidence.records import IN_TURNS, RequestBody

SIDES = "compare"
"""The probe that asks both sides in turns."""
_ARMS = {SIDES: {"pair"}, "speed": {"cold"}, "warmth": {"cold", "again", "new_tail"}}
_COLD = {"pair", "cold"}
_WINDOWS = ("sweep",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One question on both sides. `cell` names what is compared together with `length`; `a`, `b` hold what was
    measured, in seconds or tokens per second, by metric. A metric that one side lacks is in neither. `done`: whether
    each side completed as asked."""

    cell: str
    length: int
    keys: tuple[str, str]
    done: tuple[bool, bool]
    a: Mapping[str, float]
    b: Mapping[str, float]
    single: tuple[RequestBody, RequestBody] | None = None


def pairs_of(a: EvidenceView, b: EvidenceView) -> list[Pair]:
    """All pairs, in the order of A's records: single requests, then windows under load."""
    return [*_singles(a, b), *_windows(a, b)]


def cut_short(view: EvidenceView, pairs: Sequence[Pair]) -> str | None:
    """How much a budget let be asked of both sides in turns; None where it did not end the run."""
    for _, note in view.notes(SIDES):
        if note.what == "budget_spent":
            asked = sum(pair.keys[0].startswith(f"{SIDES}/") for pair in pairs)
            parameters = next(step.parameters for step in view.header.protocol.steps if step.probe == SIDES)
            lengths, rounds = parameters["lengths"], parameters["rounds"]
            planned = len(lengths) * int(rounds) if isinstance(lengths, list) and isinstance(rounds, int) else asked
            return f"The budget ended it after {asked} of {planned} questions: {note.detail['reason']}."
    if any(note.what == IN_TURNS for _, note in view.notes("run")):
        for _, note in view.notes("quality"):
            if note.what == "budget_spent":
                asked = sum(1 for _ in view.requests("quality"))
                return f"The budget ended it after {asked} questions of quality: {note.detail['reason']}."
    return None


def _singles(a: EvidenceView, b: EvidenceView) -> Iterator[Pair]:
    for probe, arms in _ARMS.items():
        shared = max(shared_prefix_tokens(view, probe) for view in (a, b))
        theirs = dict(b.requests(probe))
        for key, mine in a.requests(probe):
            other = theirs.get(key)
            arm = str(mine.cell.get("arm", ""))
            if other is None or mine.planned_ns is not None or arm not in arms:
                continue
            if arm in _COLD and any((cached_reports(body).most or 0) > shared for body in (mine, other)):
                continue  # it was not cold: what it took belongs to no cell
            done = completed_as_asked(mine.timeline), completed_as_asked(other.timeline)
            yield Pair(
                cell="cold" if arm == "pair" else f"{probe} {arm}",
                length=int(mine.cell["length"]),
                keys=(key, key),
                done=done,
                a=_times(mine.timeline) if all(done) else {},
                b=_times(other.timeline) if all(done) else {},
                single=(mine, other),
            )


def _windows(a: EvidenceView, b: EvidenceView) -> Iterator[Pair]:
    for probe in _WINDOWS:
        theirs = {window.key: window for window in b.windows(probe)}
        for mine in a.windows(probe):
            other = theirs.get(mine.key)
            if other is not None:
                cell = mine.body.cell
                yield Pair(
                    cell=f"{probe} {cell['cache']}, {cell['concurrency']} at once",
                    length=int(cell["length"]),
                    keys=(mine.key, other.key),
                    done=(_all_done(mine), _all_done(other)),
                    a=_of_window(mine),
                    b=_of_window(other),
                )


def _times(timeline: RequestTimeline) -> dict[str, float]:
    found = {"ttft_ratio": timeline.ttft_ns, "tpot_ratio": timeline.tpot_ns}
    return {name: ns / 1e9 for name, ns in found.items() if ns}


def _of_window(window: Window) -> dict[str, float]:
    """Medians of the completed requests, and the output of all of them per second."""
    done = [body.timeline for _, body in window.requests if completed_as_asked(body.timeline)]
    of_metric: dict[str, Callable[[RequestTimeline], float | None]] = {
        "ttft_ratio": lambda timeline: timeline.ttft_ns,
        "tpot_ratio": lambda timeline: timeline.tpot_ns,
    }
    found: dict[str, float] = {}
    for name, measure in of_metric.items():
        values = [value / 1e9 for timeline in done if (value := measure(timeline))]
        if values:
            found[name] = statistics.median(values)
    tokens = sum(tokens_produced(timeline) or 0 for timeline in done)
    if tokens:
        begun = min(timeline.submitted_ns for timeline in done)
        ended = max(timeline.finished_ns for timeline in done)
        found["output_rate_ratio"] = tokens / (max(1, ended - begun) / 1e9)
    return found


def _all_done(window: Window) -> bool:
    return all(completed_as_asked(body.timeline) for _, body in window.requests)
