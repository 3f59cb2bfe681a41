"""The sweep's requests by cell: what enters the numbers, what was not cold, what failed."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from longproof.claim.cached import cached_reports, shared_prefix_tokens
from longproof.claim.view import EvidenceView, Window
from longproof.domain.engine_metrics import engine_cached_tokens
from longproof.domain.events import RequestTimeline
from longproof.domain.outcome import completed_as_asked
from longproof.evidence.records import RequestBody

PROBE = "sweep"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """One request of a cell. `cached_tokens`: what the server says it reused, None = it does not say."""

    key: str
    body: RequestBody
    cached_tokens: int | None

    @property
    def timeline(self) -> RequestTimeline:
        return self.body.timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class CellSeen:
    """One cell over all its rounds: `kept` enters the numbers, `warm` (cold arm, yet cached) and `failed` do not."""

    length: int
    concurrency: int
    cache: str
    windows: tuple[Window, ...]
    kept: tuple[Sent, ...]
    warm: tuple[Sent, ...]
    failed: tuple[Sent, ...]

    @property
    def sent(self) -> int:
        return len(self.kept) + len(self.warm) + len(self.failed)

    @property
    def name(self) -> str:
        """``4096.c8.cold``: the end of its statements' ids."""
        return f"{self.length}.c{self.concurrency}.{self.cache}"

    def cached_share(self) -> float | None:
        """Share of the prompts' tokens that were cached by the server's word, over the requests that say so, or, where
        none does, by the growth of the engine's counter over the windows. None = it says nothing."""
        told = [request.cached_tokens / self.length for request in self.kept if request.cached_tokens is not None]
        if told:
            return sum(told) / len(told)
        grown = [
            engine_cached_tokens(window.samples[0], window.samples[-1]) if len(window.samples) > 1 else None
            for window in self.windows
        ]
        known = [tokens for tokens in grown if tokens is not None]
        sent = sum(window.body.requests for window in self.windows) * self.length
        return sum(known) / sent if known and len(known) == len(grown) and sent else None


def cells_of(view: EvidenceView) -> list[CellSeen]:
    """All cells that have a window, in order of length, concurrency and cache."""
    shared = shared_prefix_tokens(view, PROBE)
    found: dict[tuple[int, int, str], list[Window]] = {}
    for window in view.windows(PROBE):
        cell = window.body.cell
        found.setdefault((int(cell["length"]), int(cell["concurrency"]), str(cell["cache"])), []).append(window)
    return [_cell(at, tuple(windows), shared) for at, windows in sorted(found.items())]


def gaps_of(timeline: RequestTimeline) -> list[float] | None:
    """Seconds between its chunks, where each chunk holds one token; else None."""
    if timeline.usage is None or timeline.usage.completion_tokens != len(timeline.chunks):
        return None
    return [(after.at_ns - before.at_ns) / 1e9 for before, after in pairwise(timeline.chunks)]


def _cell(at: tuple[int, int, str], windows: tuple[Window, ...], shared: int) -> CellSeen:
    length, concurrency, cache = at
    requests = [
        Sent(key=key, body=body, cached_tokens=cached_reports(body).most)
        for window in windows
        for key, body in window.requests
    ]
    done = [request for request in requests if completed_as_asked(request.timeline)]
    warm = [request for request in done if cache == "cold" and (request.cached_tokens or 0) > shared]
    return CellSeen(
        length=length,
        concurrency=concurrency,
        cache=cache,
        windows=windows,
        kept=tuple(request for request in done if request not in warm),
        warm=tuple(warm),
        failed=tuple(request for request in requests if request not in done),
    )
