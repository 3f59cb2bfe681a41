"""Reads what `probe/warmth` asked: what a repeated prompt costs, and whether the server is truthful about its cache.

Everything is paired: each repeat's warm time is held against the cold time of the very same prompt, and the ratio is
the geometric mean over pairs. Reusing nothing is a fact, not a fault; saying otherwise than doing is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from longproof.claim.cached import CachedReports, cached_reports, shared_prefix_tokens
from longproof.claim.sampled import Sampled, describe_spread, sampled_statement
from longproof.claim.statements import Finding, Severity, Standing, Statement
from longproof.claim.view import EvidenceView
from longproof.domain.measure import Interval, Measured, Provenance, Unknown
from longproof.domain.outcome import completed_as_asked
from longproof.domain.units import format_tokens
from longproof.evidence.records import RequestBody
from longproof.stats.ratio import Ratio, paired_ratio

PROBE = "warmth"
_ARMS = {
    "again": ("warm_ttft_ratio", "cached_fraction", "the same prompt again"),
    "new_tail": ("new_tail_ttft_ratio", "new_tail_cached_fraction", "the same beginning with a new tail"),
}
_CLEARLY_WARM = 0.5
"""Below this share of its cold time a prompt was not computed anew: a repeat that reuses nothing varies by percents."""
_CLEARLY_COLD = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One completed request of the probe: its record, its TTFT in seconds and what the server said of its cache."""

    key: str
    body: RequestBody
    ttft_s: float
    reports: CachedReports

    @property
    def length(self) -> int:
        return int(self.body.cell["length"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """The same prompt cold and in another arm."""

    cold: Seen
    warm: Seen

    @property
    def ratio(self) -> float:
        return self.warm.ttft_s / self.cold.ttft_s


def read(view: EvidenceView) -> Iterator[Statement | Finding]:
    """Ratios and cached shares per length, whether anything is reused at all, and where words and times disagree."""
    seen = _seen(view)
    shared = shared_prefix_tokens(view, PROBE)
    cold = seen.get("cold", {})
    fresh = {cell: item for cell, item in cold.items() if (item.reports.most or 0) <= shared}
    for arm in _ARMS:
        pairs = _pairs(fresh, seen.get(arm, {}))
        for length in sorted({pair.cold.length for pair in pairs}):
            yield from _at_length(arm, length, [pair for pair in pairs if pair.cold.length == length])
    repeats = _pairs(fresh, seen.get("again", {}))
    yield from _reuse(repeats, shared)
    yield from _not_reported(repeats, shared)
    yield from _cached_while_cold([item for cell, item in cold.items() if cell not in fresh], shared)
    yield from _cold_ignored(list(seen.get("forbidden", {}).values()), shared)


def _seen(view: EvidenceView) -> dict[str, dict[tuple[int, int], Seen]]:
    """Completed requests by arm and (length, repeat)."""
    found: dict[str, dict[tuple[int, int], Seen]] = {}
    for key, body in view.requests(PROBE):
        ttft_ns = body.timeline.ttft_ns
        if not ttft_ns or not completed_as_asked(body.timeline):
            continue
        seen = Seen(key=key, body=body, ttft_s=ttft_ns / 1e9, reports=cached_reports(body))
        found.setdefault(str(body.cell["arm"]), {})[int(body.cell["length"]), int(body.cell["repeat"])] = seen
    return found


def _pairs(cold: dict[tuple[int, int], Seen], warm: dict[tuple[int, int], Seen]) -> list[Pair]:
    return [Pair(cold=cold[cell], warm=item) for cell, item in sorted(warm.items()) if cell in cold]


def _at_length(arm: str, length: int, pairs: list[Pair]) -> Iterator[Statement]:
    ratio_metric, cached_metric, what = _ARMS[arm]
    conditions = {"cache": "warm", "load": "idle: one request at a time", "pair": what}
    found = _ratio(pairs)
    yield Statement(
        id=f"{PROBE}.{ratio_metric}.{length}",
        metric=ratio_metric,
        text=(
            f"{what.capitalize()}, {format_tokens(length)} tokens: {found.value:.3g} of the cold time to first token"
            f" {describe_spread(ratio_metric, found.n, found.interval)}."
        ),
        standing=Standing.SHOWN,
        unit="ratio",
        value=Measured(value=found.value, provenance=Provenance.MEASURED, source="geometric mean of warm / cold"),
        n=found.n,
        at_tokens=length,
        interval=found.interval if isinstance(found.interval, Interval) else None,
        samples=tuple(pair.ratio for pair in pairs),
        conditions=conditions,
        evidence=_keys(pairs),
    )
    shares = [
        Sampled(value=pair.warm.reports.most / length, key=pair.warm.key)
        for pair in pairs
        if pair.warm.reports.most is not None
    ]
    sources = dict.fromkeys(source for pair in pairs for source in pair.warm.reports.sources)
    yield sampled_statement(
        cached_metric,
        shares,
        probe=PROBE,
        subject=f"Share taken from the cache by the server's word, {what}, {format_tokens(length)} tokens",
        at_tokens=length,
        conditions={**conditions, "reported_by": " and ".join(sources) or "nothing"},
        why_none="the server reports no cached tokens",
    )


def _reuse(pairs: list[Pair], shared: int) -> Iterator[Statement]:
    """Whether a repeat is cheaper at all."""
    if not pairs:
        return
    found = _ratio(pairs)
    reported = max((pair.warm.reports.most or 0 for pair in pairs), default=0)
    spread = found.interval
    faster = found.value < _CLEARLY_WARM if isinstance(spread, Unknown) else spread.high < 1
    slower = found.value > _CLEARLY_COLD if isinstance(spread, Unknown) else spread.high > _CLEARLY_COLD
    if faster:
        standing, name, says = Standing.SHOWN, "reuse", "A prompt sent again costs less"
    elif slower and reported <= shared:
        standing, name, says = Standing.REFUTED, "no_reuse", "A prompt sent again costs the same: nothing is reused"
    else:
        standing, name, says = Standing.NOT_SHOWN, "reuse", "Whether a prompt sent again costs less was not shown"
    yield Statement(
        id=f"{PROBE}.{name}",
        metric="prefix_reuse",
        text=(
            f"{says}; its time to first token is {found.value:.3g} of the cold one over all lengths"
            f" {describe_spread('prefix_reuse', found.n, spread)}."
        ),
        standing=standing,
        unit="ratio",
        value=Measured(value=found.value, provenance=Provenance.MEASURED, source="geometric mean of again / cold"),
        n=found.n,
        interval=spread if isinstance(spread, Interval) else None,
        samples=tuple(pair.ratio for pair in pairs),
        conditions={"cache": "warm", "load": "idle: one request at a time"},
        evidence=_keys(pairs),
    )


def _not_reported(pairs: list[Pair], shared: int) -> Iterator[Finding]:
    """Usage says that nothing was cached; the engine's own counters, or its speed, say otherwise."""
    silent = [pair for pair in pairs if pair.warm.reports.usage is not None and pair.warm.reports.usage <= shared]
    counted = [pair for pair in silent if (pair.warm.reports.most or 0) > shared]
    if counted:
        most = max(pair.warm.reports.most or 0 for pair in counted)
        yield _hidden(
            counted,
            Severity.FAULT,
            f"usage reports no cached tokens for a repeated prompt, while the engine's own metrics count {most:,}",
        )
        return
    if not silent:
        return
    found = _ratio(silent)
    if found.value >= _CLEARLY_WARM or (isinstance(found.interval, Interval) and found.interval.high >= 1):
        return
    spread = describe_spread("warm_ttft_ratio", found.n, found.interval)
    yield _hidden(
        silent,
        Severity.CAUTION if found.n == 1 else Severity.FAULT,
        f"usage reports no cached tokens for repeated prompts, yet they took {found.value:.3g} of the cold time to"
        f" first token {spread}",
    )


def _hidden(pairs: Sequence[Pair], severity: Severity, words: str) -> Finding:
    return Finding(
        id="warmth.cache_not_reported",
        severity=severity,
        text=f"{words[0].upper()}{words[1:]}: a report of no cached tokens from this server proves nothing.",
        evidence=_keys(pairs),
    )


def _cached_while_cold(items: Sequence[Seen], shared: int) -> Iterator[Finding]:
    if not items:
        return
    most = max(item.reports.most or 0 for item in items)
    yield Finding(
        id="warmth.cached_while_cold",
        severity=Severity.FAULT,
        text=(
            f"{len(items)} prompts that nobody had sent before were reported with up to {most:,} cached tokens; at most"
            f" {shared} (template and nonce) can be shared with earlier ones. These pairs enter no number."
        ),
        evidence=tuple(item.key for item in items),
        details={"cached": str(most), "shareable": str(shared)},
    )


def _cold_ignored(items: Sequence[Seen], shared: int) -> Iterator[Finding]:
    reused = [item for item in items if (item.reports.most or 0) > shared]
    if reused:
        yield Finding(
            id="warmth.cold_ignored",
            severity=Severity.FAULT,
            text=(
                f"A request that forbade the prefix cache was served from it: {reused[0].reports.most:,} of"
                f" {format_tokens(reused[0].length)} tokens by {' and '.join(reused[0].reports.sources)}."
            ),
            evidence=tuple(item.key for item in reused),
        )


def _ratio(pairs: Sequence[Pair]) -> Ratio:
    found = paired_ratio([(pair.warm.ttft_s, pair.cold.ttft_s) for pair in pairs])
    assert not isinstance(found, Unknown)  # callers never pass an empty list
    return found


def _keys(pairs: Sequence[Pair]) -> tuple[str, ...]:
    return tuple(key for pair in pairs for key in (pair.cold.key, pair.warm.key))
