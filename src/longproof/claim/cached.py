"""How many prompt tokens a server says it took from its cache, by every way it has of saying so."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from longproof.claim.view import EvidenceView
from longproof.domain.engine_metrics import engine_cached_tokens
from longproof.evidence.records import RequestBody

_SHARED_TOKENS_WHEN_UNTOLD = 64
"""Where nobody counts the template for us: the longest common default system message of current models, and a nonce."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedReports:
    """Cached tokens of one request: by `usage`, by the engine's own `timings` of it (llama.cpp), and by the growth of
    its `counter` between two scrapes. None = it does not say."""

    usage: int | None
    timings: int | None
    counter: int | None

    @property
    def most(self) -> int | None:
        """The largest of the reports: whoever admits to a cache is believed. None = no report at all."""
        found = [tokens for tokens in (self.usage, self.timings, self.counter) if tokens is not None]
        return max(found) if found else None

    @property
    def sources(self) -> tuple[str, ...]:
        """Which ways the server reported."""
        named = (("usage", self.usage), ("timings", self.timings), ("metrics", self.counter))
        return tuple(name for name, tokens in named if tokens is not None)


def cached_reports(body: RequestBody) -> CachedReports:
    """All reports of one request. The counter needs samples before and after it."""
    timeline = body.timeline
    timings = timeline.engine_timings.get("cache_n")
    counter = None
    if body.before is not None and body.after is not None:
        counter = engine_cached_tokens(body.before, body.after)
    return CachedReports(
        usage=None if timeline.usage is None else timeline.usage.cached_tokens,
        timings=None if timings is None else round(timings),
        counter=counter,
    )


def shared_prefix_tokens(view: EvidenceView, probe: str) -> int:
    """The longest beginning that a fresh prompt can share with an earlier one: template tokens before the nonce."""
    for _, note in view.notes(probe):
        if note.what == "shared_prefix":
            return int(note.detail["tokens"])
    return _SHARED_TOKENS_WHEN_UNTOLD


def how_cold(reports: Iterable[CachedReports]) -> str:
    """What coldness rests on, as a condition of a statement."""
    found = list(reports)
    if any(report.most is None for report in found):
        return "fresh nonce; the server does not report cached tokens"
    most = max((report.most or 0 for report in found), default=0)
    sources = " and ".join(dict.fromkeys(source for report in found for source in report.sources))
    said = "no cached tokens" if most == 0 else f"at most {most} cached tokens, the template's"
    return f"fresh nonce; {said} by {sources}"
