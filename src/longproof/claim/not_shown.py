"""What a claim does not show, derived from what was not run or did not come out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from longproof.claim.cached import cached_reports
from longproof.claim.metric import Kind
from longproof.claim.metrics import METRICS
from longproof.claim.statements import NotShown, Standing, Statement
from longproof.claim.view import EvidenceView
from longproof.domain.measure import Unknown
from longproof.domain.request import Route
from longproof.domain.units import format_tokens
from longproof.evidence.records import NoteBody, RequestBody, SessionBody
from longproof.stats.quantile import samples_for_upper

_TAIL = 0.95
_NEVER_ASKED = {
    "quality": (
        "That answers are right, at any length: no answer was checked, so nothing says how well the window is used.",
        "ask questions whose answers are known, at each length and depth",
    ),
    "busy": (
        "What happens under load: every request had the server to itself, and none had to queue or share its memory.",
        "prove again while other requests run",
    ),
    "overload": (
        "What happens when more is asked than fits: whether the server queues, refuses or breaks.",
        "send more requests together than the KV pool holds",
    ),
    "reclaim": (
        "That memory comes back when a client goes away in the middle of a request.",
        "cancel requests during prefill and decode, then ask the full length again",
    ),
    "restart": (
        "That the server does the same after a restart.",
        "restart it and prove again into another directory",
    ),
    "sustained": (
        "That it stays so over hours: leaks and slow drift take longer than this run.",
        "prove again after hours of work",
    ),
}
"""Probes that may not have run, in the order of how much a user would want to know."""
_PROBE_WORDS = {
    "accounting": "Whether prompts are read whole and counted right",
    "boundary": "How long a prompt the server completes",
    "speed": "How fast cold prompts are answered",
    "warmth": "What a repeated prompt costs",
    "quality": "Whether answers are right, and up to which length",
    "disaggregated": "What goes from the prefill server to the decode server",
    "busy": "What happens to a long request, and to short ones, while others run",
    "reclaim": "Whether memory comes back when a client goes away",
    "restart": "Whether the server does the same after a restart",
    "sustained": "Whether it stays so over time",
    "overload": "What happens when more is asked than fits",
    "sweep": "How speed changes with length, concurrency and cache",
    "conversation": "What the later turns of a conversation cost",
}


def not_shown_of(view: EvidenceView, statements: Sequence[Statement]) -> Iterator[NotShown]:
    """All lines that follow from the evidence, the most important first. Topics are stable."""
    yield from _unfinished(view)
    yield from _left_out(view)
    yield from _window(view)
    yield from _repeats(statements)
    yield from _coldness(view)
    yield from _never_asked(view)
    yield from _route(view)
    yield from _sessions(view)
    yield from _unknown_facts(view)
    yield NotShown(
        topic="elsewhere",
        text="What another client sees: times include this client's own path to the server, and no other.",
        how="prove from where the clients are",
    )


def _unfinished(view: EvidenceView) -> Iterator[NotShown]:
    if view.complete:
        return
    reasons = [note.detail.get("reason") for note in _notes(view, "engine_gone")]
    why = f": {reasons[-1]}" if reasons else "; it was interrupted, or still goes on"
    yield NotShown(
        topic="unfinished",
        text=f"All that this run had not asked yet: it did not reach the end of its protocol{why}.",
        how="run the same command again: it resumes and repeats nothing",
    )


def _left_out(view: EvidenceView) -> Iterator[NotShown]:
    """Probes that were left out, not reached, or cut short by the budget."""
    for probe, reason in sorted(view.header.protocol.not_run.items()):
        yield NotShown(topic=probe, text=f"{_about(probe)}: {reason}.", how=f"run the probe '{probe}'")
    regained = {note.probe for note in _notes(view, "regained")}
    for note in _notes(view, "dropped"):
        if note.probe in regained:
            continue
        yield NotShown(topic=note.probe, text=f"{_about(note.probe)}: {note.detail['reason']}.", how="raise --budget")
    for note in _notes(view, "budget_spent"):
        reason = note.detail.get("reason", "the budget was spent")
        yield NotShown(
            topic=f"budget.{note.probe}",
            text=f"{_about(note.probe)}, beyond what the budget held: {reason}.",
            how="raise --budget",
        )
    asked = {record.body.probe for record in view.records if isinstance(record.body, RequestBody)}
    for step in view.header.protocol.steps:
        if step.probe not in asked:
            yield NotShown(
                topic=step.probe,
                text=f"{_about(step.probe)}: it was planned, and no request of it was sent.",
                how="run the same command again, with a larger budget where that stopped it",
            )


def _window(view: EvidenceView) -> Iterator[NotShown]:
    wanted, limit = view.header.protocol.context_tokens, view.limit_tokens()
    if wanted is None or (limit is not None and limit <= wanted):
        return
    told = "the server does not tell its limit" if limit is None else f"the server's limit is {format_tokens(limit)}"
    yield NotShown(
        topic="window",
        text=f"Anything above {format_tokens(wanted)} tokens: the window was cut there, and {told}.",
        how="raise --context, or leave it out",
    )


def _repeats(statements: Sequence[Statement]) -> Iterator[NotShown]:
    shown = [item for item in statements if item.standing is Standing.SHOWN]
    single = [item for item in shown if item.n == 1 and METRICS[item.metric].kind is not Kind.EXACT]
    if single:
        names = dict.fromkeys(item.metric for item in single)
        yield NotShown(
            topic="repeats",
            text=f"How much it varies: n = 1 for {', '.join(names)} at one length or more.",
            how="--repeats 3 or more",
        )
    most = max((item.n for item in shown if METRICS[item.metric].kind is Kind.SAMPLES), default=0)
    needed = samples_for_upper(_TAIL)
    if 0 < most < needed:
        yield NotShown(
            topic="tail",
            text=(
                f"How slow the slowest are: an upper bound of a 95th percentile takes n = {needed} at one length, and"
                f" the most taken was n = {most}."
            ),
            how=f"--repeats {needed} with few --lengths",
        )


def _coldness(view: EvidenceView) -> Iterator[NotShown]:
    asked = [body for _, body in view.requests("speed") if body.cell.get("arm") == "cold"]
    silent = [body for body in asked if body.timeline.ttft_ns is not None and cached_reports(body).most is None]
    if silent:
        yield NotShown(
            topic="cold_proof",
            text=(
                f"That prompts were cold by the server's own word: it reported no cached tokens for {len(silent)} of"
                f" {len(asked)} cold requests. Coldness rests on a fresh nonce in the first block."
            ),
            how="let the server report cached tokens (usage or metrics)",
        )


def _never_asked(view: EvidenceView) -> Iterator[NotShown]:
    asked = {record.body.probe for record in view.records if isinstance(record.body, RequestBody)}
    for probe, (text, how) in _NEVER_ASKED.items():
        if probe not in asked:
            yield NotShown(topic=probe, text=text, how=how)


def _route(view: EvidenceView) -> Iterator[NotShown]:
    used = {body.timeline.route for _, body in view.all_requests()} or {view.header.protocol.route}
    for route, path in ((Route.CHAT, "chat/completions"), (Route.COMPLETIONS, "completions")):
        if route not in used:
            yield NotShown(
                topic="route",
                text=f"The same over /v1/{path}: templates, limits and caches may treat it differently.",
                how=f"--route {route.value}",
            )


def _sessions(view: EvidenceView) -> Iterator[NotShown]:
    sessions = sum(isinstance(record.body, SessionBody) for record in view.records)
    if sessions > 1:
        yield NotShown(
            topic="sessions",
            text=f"That nothing changed between the {sessions} sessions of this run but what the fingerprint compares.",
            how="prove again without interruption",
        )


def _unknown_facts(view: EvidenceView) -> Iterator[NotShown]:
    readings = view.header.deployment.readings()
    names = [name for name, reading in readings if isinstance(reading, Unknown)]
    if names:
        yield NotShown(
            topic="facts",
            text=(
                f"That a server differing only in these facts does the same; they are unknown: {', '.join(names)}."
                " The fingerprint cannot tell such servers apart."
            ),
            how="see what each is missing under 'unknown'; the engine's start-up log or flags may tell",
        )


def _about(probe: str) -> str:
    return _PROBE_WORDS.get(probe, f"What the probe '{probe}' asks")


def _notes(view: EvidenceView, what: str) -> list[NoteBody]:
    return [record.body for record in view.records if isinstance(record.body, NoteBody) and record.body.what == what]
