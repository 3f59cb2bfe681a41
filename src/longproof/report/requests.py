"""What the records say of single requests: the edge, the search, the counts, the stages they went through. Facts, no
averages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from longproof.claim.view import EvidenceView
from longproof.domain.events import RequestTimeline
from longproof.domain.outcome import Outcome, classify
from longproof.evidence.records import RequestBody
from longproof.report.numbers import short_ns

AFTER_WAITING = "first token"
POSITIONS = ("limit-2", "limit-1", "limit", "limit+1", "far")


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """What happened to one request at the edge. `words` are the server's own, verbatim; "" when it said nothing."""

    key: str
    position: str
    prompt_tokens: int
    asked_tokens: int
    outcome: Outcome
    status: int | None
    produced_tokens: int | None
    finish_reason: str | None
    took_ns: int
    words: str
    in_stream: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """One total of the boundary search: which requests asked for it, in the order sent, and how each ended."""

    total_tokens: int
    prompt_tokens: int
    output_tokens: int
    outcomes: tuple[Outcome, ...]
    keys: tuple[str, ...]

    @property
    def tally(self) -> list[tuple[Outcome, int]]:
        """(outcome, how often), most frequent first."""
        return Counter(self.outcomes).most_common()


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """Prompt tokens of one request: sent by our count, used by the server's."""

    key: str
    probe: str
    sent: int
    used: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A state that requests reach, and what ended those that came no further: (outcome, how many)."""

    name: str
    reached: int
    left: tuple[tuple[Outcome, int], ...]


def edges(view: EvidenceView) -> list[Edge]:
    """The accounting probe's requests around the limit, shortest first."""
    found = [_edge(key, body) for key, body in view.requests("accounting") if body.cell.get("arm") == "edge"]
    return sorted(found, key=lambda edge: (edge.prompt_tokens, edge.key))


def search(view: EvidenceView) -> list[Search]:
    """The totals that the boundary search tried, in the order in which each was first asked."""
    found: dict[int, list[tuple[str, RequestBody]]] = {}
    for key, body in view.requests("boundary"):
        found.setdefault(int(body.cell["total"]), []).append((key, body))
    return [
        Search(
            total_tokens=total,
            prompt_tokens=int(asked[0][1].cell.get("prompt", total)),
            output_tokens=int(asked[0][1].cell.get("output", asked[0][1].timeline.max_tokens)),
            outcomes=tuple(classify(body.timeline) for _, body in asked),
            keys=tuple(key for key, _ in asked),
        )
        for total, asked in found.items()
    ]


def trials(view: EvidenceView) -> list[tuple[int, Outcome]]:
    """(total, outcome) of every request of the boundary search, in the order sent."""
    return [(int(body.cell["total"]), classify(body.timeline)) for _, body in view.requests("boundary")]


def counts(view: EvidenceView) -> list[Count]:
    """Every request that we counted and whose usage the server reported, in the order sent."""
    return [
        Count(
            key=key,
            probe=body.probe,
            sent=body.timeline.prompt_tokens_sent,
            used=body.timeline.usage.prompt_tokens,
        )
        for key, body in view.all_requests()
        if body.timeline.prompt_tokens_sent is not None
        and body.timeline.usage is not None
        and body.timeline.usage.prompt_tokens is not None
    ]


def counts_by_probe(found: Sequence[Count]) -> list[tuple[str, int, int, int, int]]:
    """(probe, requests, equal, smallest, largest) of the counts, in the order in which the probes first appear."""
    probes: dict[str, list[Count]] = {}
    for count in found:
        probes.setdefault(count.probe, []).append(count)
    return [
        (name, len(of), sum(count.sent == count.used for count in of), min(c.sent for c in of), max(c.sent for c in of))
        for name, of in probes.items()
    ]


def representatives(view: EvidenceView) -> list[tuple[int, str, RequestTimeline]]:
    """(length, key, timeline) of one cold speed request per length: the one whose time to first token is the (lower)
    median."""
    by_length: dict[int, list[tuple[int, str, RequestTimeline]]] = {}
    for key, body in view.requests("speed"):
        first = body.timeline.ttft_ns
        if first is not None and body.cell.get("arm", "cold") == "cold" and "length" in body.cell:
            by_length.setdefault(int(body.cell["length"]), []).append((first, key, body.timeline))
    chosen: list[tuple[int, str, RequestTimeline]] = []
    for length, found in sorted(by_length.items()):
        _, key, timeline = sorted(found, key=lambda item: item[:2])[(len(found) - 1) // 2]
        chosen.append((length, key, timeline))
    return chosen


def stages(view: EvidenceView) -> list[Stage]:
    """Submitted → answered 200 → first token → completed, over all requests of the run, with what ended the others."""
    left: list[Counter[Outcome]] = [Counter(), Counter(), Counter(), Counter()]
    for _, body in view.all_requests():
        outcome = classify(body.timeline)
        left[_reached(body.timeline, outcome)][outcome] += 1
    names = ("submitted", "answered 200", AFTER_WAITING, "completed")
    totals = [sum(sum(counter.values()) for counter in left[at:]) for at in range(len(left))]
    return [
        Stage(
            name=name,
            reached=total,
            left=()
            if name == "completed"
            else tuple(sorted(counter.items(), key=lambda item: (-item[1], item[0].value))),
        )
        for name, total, counter in zip(names, totals, left, strict=True)
    ]


def words_of(timeline: RequestTimeline) -> str:
    """The server's own words about a request that failed, else what the transport said, else nothing."""
    if timeline.error is not None:
        return timeline.error.message or timeline.error.body
    return timeline.transport_error or ""


def describe_edge(edge: Edge) -> str:
    """What was seen, in one line: ``HTTP 200, 2 of 16 tokens, finish_reason length, 812 ms``."""
    parts = ["no HTTP answer" if edge.status is None else f"HTTP {edge.status}"]
    if edge.in_stream:
        parts.append("then an error inside the stream")
    if edge.produced_tokens is not None:
        parts.append(f"{edge.produced_tokens} of {edge.asked_tokens} tokens")
    if edge.finish_reason is not None:
        parts.append(f"finish_reason {edge.finish_reason}")
    return ", ".join([*parts, f"after {short_ns(edge.took_ns)}"])


def _edge(key: str, body: RequestBody) -> Edge:
    timeline = body.timeline
    return Edge(
        key=key,
        position=str(body.cell.get("position", "")),
        prompt_tokens=int(body.cell.get("prompt", timeline.prompt_tokens_sent or 0)),
        asked_tokens=timeline.max_tokens,
        outcome=classify(timeline),
        status=timeline.status,
        produced_tokens=timeline.usage.completion_tokens if timeline.usage is not None else None,
        finish_reason=timeline.finish_reason,
        took_ns=timeline.e2e_ns,
        words=words_of(timeline),
        in_stream=timeline.error is not None and timeline.error.in_stream,
    )


def _reached(timeline: RequestTimeline, outcome: Outcome) -> int:
    if outcome is Outcome.COMPLETED:
        return 3
    if timeline.first_token_ns is not None:
        return 2
    return 1 if timeline.status == 200 else 0
