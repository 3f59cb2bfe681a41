"""Windows under load made by hand, as records: short requests, a long one among them, and the engine's samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from longproof.claim.view import EvidenceView
from longproof.domain.events import EndedBy, EngineSample, RequestTimeline, ServerError
from longproof.evidence.records import Body, NoteBody, RequestBody, SamplesBody, WindowBody
from longproof.testing.builders import build_request, build_timeline, build_view

MS = 1_000_000
S = 1_000_000_000
Entry = tuple[str, Body]


def timeline(
    at_ms: float, *, ttft_ms: float = 20, itl_ms: float = 10, tokens: int = 10, prompt: int = 64
) -> RequestTimeline:
    """A completed request sent at `at_ms`."""
    return build_timeline(
        prompt_tokens=prompt,
        max_tokens=tokens,
        ttft_ns=round(ttft_ms * MS),
        itl_ns=round(itl_ms * MS),
        submitted_ns=round(at_ms * MS),
    )


def hung(at_ms: float, for_ms: float, *, role_chunk: bool = False, prompt: int = 6000) -> RequestTimeline:
    """One that was given up without a token."""
    start = round(at_ms * MS)
    return replace(
        timeline(at_ms, prompt=prompt),
        finished_ns=start + round(for_ms * MS),
        ended_by=EndedBy.TIMEOUT,
        first_event_ns=start + MS if role_chunk else None,
        first_token_ns=None,
        first_answer_token_ns=None,
        chunks=(),
        text="",
        finish_reason=None,
        usage=None,
    )


def refused(at_ms: float, *, status: int = 503, retry_after: str | None = None, prompt: int = 64) -> RequestTimeline:
    """One that was refused for load."""
    return replace(
        hung(at_ms, 2, prompt=prompt),
        ended_by=EndedBy.HTTP_ERROR,
        status=status,
        headers={} if retry_after is None else {"retry-after": retry_after},
        error=ServerError(message="the queue is full"),
    )


def gone(at_ms: float) -> RequestTimeline:
    """One that found nobody."""
    return replace(hung(at_ms, 1, prompt=64), ended_by=EndedBy.UNREACHABLE, status=None)


def in_stream(at_ms: float) -> RequestTimeline:
    """200, then an error before any token."""
    error = ServerError(message="the queue is full", in_stream=True)
    return replace(hung(at_ms, 2, prompt=64), ended_by=EndedBy.DONE, status=200, error=error)


def lockstep(
    start_ms: float, end_ms: float, *, ttft_ms: float = 20, itl_ms: float = 10, every_ms: float = 40
) -> list[RequestTimeline]:
    """Short requests sent `every_ms`, whatever the others do; their times vary by a few per cent in a fixed pattern."""
    found: list[RequestTimeline] = []
    at, i = start_ms, 0
    while at < end_ms:
        wobble = 1 + ((i * 7) % 11 - 5) / 100
        found.append(timeline(at, ttft_ms=ttft_ms * wobble, itl_ms=itl_ms * wobble))
        at, i = at + every_ms, i + 1
    return found


def window(
    key: str,
    probe: str,
    cell: dict[str, int | float | str | bool],
    load: dict[str, int | float | str | bool],
    requests: Sequence[tuple[str, RequestTimeline]],
    *,
    start_ms: float,
    end_ms: float,
    samples: Sequence[EngineSample] = (),
) -> list[Entry]:
    """The records of one window: (role, timeline) requests, samples, and the window itself."""
    prefix = f"{key}#1/"
    entries: list[Entry] = []
    for i, (role, item) in enumerate(requests):
        body: RequestBody = build_request(probe, {**cell, "role": role}, item, planned_ns=item.submitted_ns)
        entries.append((f"{prefix}{role}/{i}", body))
    if samples:
        entries.append((f"{prefix}samples/0", SamplesBody(probe=probe, cell=cell, samples=tuple(samples))))
    body = WindowBody(
        probe=probe,
        cell=cell,
        prefix=prefix,
        load=load,
        started_ns=round(start_ms * MS),
        ended_ns=round(end_ms * MS),
        requests=len(requests),
    )
    return [*entries, (key, body)]


def shorts(items: Sequence[RequestTimeline]) -> list[tuple[str, RequestTimeline]]:
    return [("short", item) for item in items]


def gauges(start_ms: float, end_ms: float, *, every_ms: float = 50, **values: object) -> list[EngineSample]:
    """Samples that all say the same."""
    count = int((end_ms - start_ms) / every_ms)
    return [
        replace(EngineSample(at_ns=round((start_ms + i * every_ms) * MS)), **values)  # type: ignore[arg-type] - fields of it
        for i in range(count)
    ]


def counting(start_ms: float, end_ms: float, name: str, first: float, last: float) -> list[EngineSample]:
    """Two samples between which a counter grew."""
    return [
        EngineSample(at_ns=round(at * MS), running=1, waiting=0, kv_usage=0.1, values={f'{name}{{engine="0"}}': value})
        for at, value in ((start_ms, first), (end_ms, last))
    ]


def note(probe: str, what: str, **detail: int | float | str | bool) -> Entry:
    return (f"{probe}/{what}", NoteBody(probe=probe, what=what, detail=detail))


def view(*groups: Sequence[Entry]) -> EvidenceView:
    return build_view(*(entry for group in groups for entry in group))
