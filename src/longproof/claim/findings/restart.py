"""Reads what `probe/restart` asked: whether the server is the same after it was started anew.

Three kinds of difference, told apart: what it says of itself (facts), what it answers (outcomes, cached tokens), and
how fast (ratios with intervals). The first request after the start enters none of them.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence

from scipy.special import stdtrit

from longproof.claim.restart_figures import LEVEL, PROBE, Compared, Figure, compare
from longproof.claim.sampled import show
from longproof.claim.statements import Finding, NotShown, Severity, Standing, Statement
from longproof.claim.view import EvidenceView
from longproof.domain.measure import Interval, Measured, Provenance, Unknown
from longproof.domain.outcome import Outcome, completed_as_asked
from longproof.domain.outcome_words import in_words
from longproof.domain.units import format_ns, format_tokens
from longproof.evidence.records import NoteBody

_PHASES = {"after": "after the restart", "idle": "after it stood idle"}
_NAMES = {"ttft": "Time to first token", "tpot": "Time per output token"}
_POOL_FACTS = frozenset({"kv_blocks", "kv_capacity_tokens"})
_SAME_POOL = 0.02
"""An engine that measures free memory at each start finds a slightly different pool each time."""
_FIRST_RATIO = 1.5
_FIRST_LEAST_S = 0.1
_LEAST_LATER = 3
_TAIL_CHARS = 300


def read(view: EvidenceView) -> Iterator[Statement | Finding | NotShown]:
    """How the restart went, what changed in facts, answers and speed, and the first request apart."""
    yield from _how(view)
    yield from _changed(view)
    for phase, words in _PHASES.items():
        compared = compare(view, phase)
        yield from _ratios(compared.figures, phase, words)
        yield from _same_answers(compared, phase, words)
        yield from _moved(compared, phase, words)
    yield from _first(view)


def _how(view: EvidenceView) -> Iterator[Statement | Finding | NotShown]:
    for key, note in view.notes(PROBE):
        if note.what == "restarted":
            yield _took(key, note)
            if note.detail["same_process"]:
                yield _failed(key, "ended well, and the process that answers is the one from before", note, fault=False)
        elif note.what == "restart_failed":
            yield _failed(key, str(note.detail["why"]), note, fault=not note.detail["alive"])
        elif note.what == "not_back":
            outcome = in_words(Outcome(str(note.detail["outcome"])))
            yield _failed(key, f"was not followed by one answered request ({outcome})", note, fault=True)
        elif note.what == "no_restarter":
            yield NotShown(
                topic="restart",
                text="That the server does the same after a restart: it is not ours to restart.",
                how="say how with --restart-cmd 'COMMAND', or prove a model that longproof serves itself",
            )


def _took(key: str, note: NoteBody) -> Statement:
    ready_ns, tries = int(note.detail["ready_ns"]), int(note.detail["tries"])
    return Statement(
        id=f"{PROBE}.time",
        metric="restart_time",
        text=(
            f"After a restart by '{note.detail['how']}' the first request was answered {format_ns(ready_ns)} later"
            f" (n = 1; the restart itself took {format_ns(int(note.detail['took_ns']))}, requests sent until then:"
            f" {tries})."
        ),
        standing=Standing.SHOWN,
        unit="s",
        value=Measured(value=ready_ns / 1e9, provenance=Provenance.MEASURED, source="restart begun to first answer"),
        n=1,
        samples=(ready_ns / 1e9,),
        conditions={"how": str(note.detail["how"])},
        evidence=(key, f"{PROBE}/first"),
    )


def _failed(key: str, why: str, note: NoteBody, *, fault: bool) -> Finding:
    output = " ".join(str(note.detail.get("output", "")).split())[-_TAIL_CHARS:]
    said = f' Its last words: "{output}".' if output else ""
    left = "The server did not come back." if fault else "The server still answers."
    how = f" by '{note.detail['how']}'" if "how" in note.detail else ""
    return Finding(
        id="restart.failed",
        severity=Severity.FAULT if fault else Severity.CAUTION,
        text=f"The restart{how} failed: {why}. {left}{said}",
        evidence=(key,),
        details={name: str(value) for name, value in note.detail.items() if name in ("exit_code", "how")},
    )


def _changed(view: EvidenceView) -> Iterator[Finding]:
    notes = [(key, note.detail) for key, note in view.notes(PROBE) if note.what == "fact_changed"]
    if not notes:
        return
    facts = {str(detail["name"]): (str(detail["before"]), str(detail["after"])) for _, detail in notes}
    told = "; ".join(f"{name} was {before} and is {after}" for name, (before, after) in facts.items())
    only_pool = all(name in _POOL_FACTS and _about_same(*values) for name, values in facts.items())
    yield Finding(
        id="restart.changed",
        severity=Severity.CAUTION if only_pool else Severity.FAULT,
        text=(
            f"After the restart the server says other things of itself: {told}. What was proven before it holds for the"
            " configuration from before."
        ),
        evidence=tuple(key for key, _ in notes),
        details={name: f"{before} → {after}" for name, (before, after) in facts.items()},
    )


def _about_same(before: str, after: str) -> bool:
    try:
        return abs(float(after) / float(before) - 1) < _SAME_POOL
    except (ValueError, ZeroDivisionError):
        return False


def _ratios(figures: Sequence[Figure], phase: str, words: str) -> Iterator[Statement]:
    """One statement per speed figure; the longest and the warm pair stand in the findings only where they moved."""
    prefix = "restart" if phase == "after" else "idle"
    for figure in figures:
        if figure.what != "speed" or isinstance(figure.ratio, Unknown):
            continue
        ratio, metric = figure.ratio, f"{prefix}_{figure.name}_ratio"
        spread = ratio.interval if isinstance(ratio.interval, Interval) else None
        between = f", {100 * spread.confidence:.3g} % interval {spread.low:.3g} to {spread.high:.3g}" if spread else ""
        yield Statement(
            id=f"{PROBE}.{metric}.{figure.length}",
            metric=metric,
            text=(
                f"{_named(figure)} {words} was {ratio.value:.3g} times that from before"
                f" (n = {len(figure.before)} and {len(figure.after)}{between})."
            ),
            standing=Standing.SHOWN,
            unit="ratio",
            value=Measured(value=ratio.value, provenance=Provenance.MEASURED, source="geometric means, after / before"),
            n=ratio.n,
            at_tokens=figure.length,
            interval=spread,
            conditions={"cache": "cold", "load": "idle: one request at a time", "compared": f"{words} with before"},
            evidence=figure.keys,
        )


def _named(figure: Figure) -> str:
    what = {"speed": "a cold prompt", "largest": "the largest prompt", "again": "a prompt sent again"}[figure.what]
    return f"{_NAMES[figure.name]} of {what} of {format_tokens(figure.length)} tokens"


def _same_answers(compared: Compared, phase: str, words: str) -> Iterator[Statement]:
    for item in compared.answers:
        if item.what != "largest" or phase != "after":
            continue
        good = sum(answer == "completed" for answer in item.after)
        yield Statement(
            id=f"{PROBE}.largest",
            metric="restart_largest",
            text=(
                f"{words.capitalize()} the largest prompt ({format_tokens(item.length)} tokens) completed"
                f" {good} of {len(item.after)} times; before it {sum(a == 'completed' for a in item.before)} of"
                f" {len(item.before)}."
            ),
            standing=Standing.SHOWN if good == len(item.after) else Standing.REFUTED,
            unit="fraction",
            value=Measured(value=good / len(item.after), provenance=Provenance.MEASURED, source="completed / asked"),
            n=len(item.after),
            at_tokens=item.length,
            samples=tuple(float(answer == "completed") for answer in item.after),
            conditions={"cache": "cold", "load": "idle: one request at a time", "compared": f"{words} with before"},
            evidence=item.keys,
        )


def _moved(compared: Compared, phase: str, words: str) -> Iterator[Finding]:
    """All that moved, in one finding."""
    said: list[str] = []
    keys: list[str] = []
    details: dict[str, str] = {}
    for figure in compared.overall:
        if figure.moved and not isinstance(figure.ratio, Unknown):
            said.append(f"{_NAMES[figure.name]} of cold prompts, all lengths together, {figure.ratio.value:.3g} times")
            details[f"all.{figure.name}"] = f"{figure.ratio.value:.4g}"
            keys += figure.keys
    for figure in compared.figures:
        if figure.moved and not isinstance(figure.ratio, Unknown):
            before, after = (statistics.fmean(side) for side in (figure.before, figure.after))
            times = f"({figure.ratio.value:.3g} times)"
            said.append(f"{_named(figure)} from {show('ttft', before)} to {show('ttft', after)} {times}")
            details[f"{figure.what}.{figure.name}.{figure.length}"] = f"{figure.ratio.value:.4g}"
            keys += figure.keys
    for item in compared.answers:
        if item.moved:
            said.append(
                f"a request of {format_tokens(item.length)} prompt tokens ({item.what}) from '{item.before[0]}' to"
                f" '{item.after[0]}'"
            )
            details[f"{item.what}.outcome.{item.length}"] = f"{item.before[0]} → {item.after[0]}"
            keys += item.keys
    for cache in compared.cached:
        if cache.moved:
            was, now = max(cache.before), max(cache.after)
            said.append(f"cached tokens of a prompt sent again from {format_tokens(was)} to {format_tokens(now)}")
            details[f"again.cached.{cache.length}"] = f"{was} → {now}"
            keys += cache.keys
    if said:
        yield Finding(
            id="restart.moved",
            severity=Severity.CAUTION,
            text=f"{words.capitalize()} these figures had moved beyond their intervals: {'; '.join(said)}.",
            evidence=tuple(dict.fromkeys(keys)),
            details={"phase": phase, **details},
        )


def _first(view: EvidenceView) -> Iterator[Statement | Finding]:
    """The first request after the start against later ones of the same length."""
    found = dict(view.requests(PROBE))
    first = found.get(f"{PROBE}/first")
    if first is None or not completed_as_asked(first.timeline) or not first.timeline.ttft_ns:
        return
    length = int(first.cell["length"])
    later = [
        (key, body.timeline.ttft_ns / 1e9)
        for key, body in found.items()
        if body.cell["phase"] == "after"
        and (body.cell["what"], body.cell["length"]) == ("speed", length)
        and completed_as_asked(body.timeline)
        and body.timeline.ttft_ns
    ]
    if not later:
        return
    seconds, others = first.timeline.ttft_ns / 1e9, [value for _, value in later]
    mean_s = statistics.fmean(others)
    text = (
        f"The first request after the restart took {format_ns(seconds * 1e9)} to its first token,"
        f" {seconds / mean_s:.3g} times what later ones of {format_tokens(length)} tokens took"
        f" (n = 1 and {len(later)})."
    )
    keys = (f"{PROBE}/first", *(key for key, _ in later))
    yield Statement(
        id=f"{PROBE}.first_ratio",
        metric="restart_first_ratio",
        text=text,
        standing=Standing.SHOWN,
        unit="ratio",
        value=Measured(value=seconds / mean_s, provenance=Provenance.MEASURED, source="ttft(first) / mean ttft(later)"),
        n=1,
        samples=(seconds / mean_s,),
        conditions={"cache": "cold", "load": "idle: one request at a time", "length": str(length)},
        evidence=keys,
    )
    if _far_above(seconds, others) and seconds >= _FIRST_RATIO * mean_s and seconds - mean_s >= _FIRST_LEAST_S:
        yield Finding(
            id="restart.slower_first",
            severity=Severity.CAUTION,
            text=f"{text} Whoever comes first after a start waits; send a request of your own before users come.",
            evidence=keys,
        )


def _far_above(first: float, later: Sequence[float]) -> bool:
    """Above what one more request of the same kind reaches once in a hundred: a prediction bound on logarithms."""
    if len(later) < _LEAST_LATER:
        return False
    logs = [math.log(value) for value in later]
    n = len(logs)
    reach = float(stdtrit(n - 1, 1 - LEVEL)) * statistics.stdev(logs) * math.sqrt(1 + 1 / n)
    return math.log(first) > statistics.fmean(logs) + reach
