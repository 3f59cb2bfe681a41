"""Reads what the long request did to the short ones: their first tokens, their pace, their pauses, by phase.

    prefill    sent while the long one had no token yet         decode    sent while it gave its answer
    alone      the windows before and after, where it was not there

A conclusion holds against the windows before *and* after: where those two differ, the server drifted by itself, and
what lies between them is not the long request's doing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from longproof.claim.busy_phases import PROBE, Asked, Busy
from longproof.claim.load_spans import Span, client_was_late, largest_pause_ns, late_within_ns, longest_silence
from longproof.claim.metrics import METRICS
from longproof.claim.sampled import Sampled, describe_spread, sampled_statement, show
from longproof.claim.statements import Finding, NotShown, Severity, Standing, Statement
from longproof.domain.measure import Interval, Measured, Provenance, Unknown
from longproof.domain.outcome_words import counted
from longproof.domain.units import format_ns, format_tokens
from longproof.stats.proportion import clopper_pearson
from longproof.stats.quantile import sample_quantile
from longproof.stats.ratio import Ratio
from longproof.stats.two_samples import RankTest, mann_whitney, quantile_ratio, ratio_shift

PHASES = ("prefill", "decode")
_PHASE_WORDS = {
    "before": "before the long request",
    "after": "after the long requests",
    "prefill": "sent while the long one was prefilled",
    "decode": "sent while the long one decoded",
}
ALPHA = 0.01
_CONFIDENCE = 0.98
"""Two-sided: either bound alone has 99 %."""
_DRIFT = 1.5
"""A baseline that moves less is taken as the same."""
_BLOCKS = 12
"""Short requests of a closed loop march together, so answers that lie next to each other are no independent samples:
blocks of them are compared, so many a window."""
_PREFILLS = 3.0
"""A short request that waits for a whole long prefill waits that once; longer than so many is not explained by it."""
_SILENT_SHARE = 0.7
_SILENT_TIMES = 4
_SILENT_NS = 200_000_000
"""A pause that people notice."""
_LEAST_INJECTIONS = 2
_TAIL = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """How the background's first tokens changed from the window before to the one after. `tells`: by more than chance,
    and by more than is taken as the same."""

    ratio: Ratio | Unknown
    test: RankTest | Unknown

    @property
    def tells(self) -> bool:
        if isinstance(self.ratio, Unknown) or isinstance(self.test, Unknown):
            return False
        return self.test.p < ALPHA and max(self.ratio.value, 1 / self.ratio.value) > _DRIFT

    @property
    def reason(self) -> Unknown | None:
        """Why nothing can be compared with the baseline, or None."""
        if not self.tells or isinstance(self.ratio, Unknown):
            return None
        return Unknown(reason=f"the baseline drifted by {self.ratio.value:.3g} times")


def drift_of(busy: Busy) -> Drift:
    """The drift of the baseline."""
    before, after = (_blocks(item.settled) if item is not None else [] for item in (busy.before, busy.after))
    return Drift(ratio=ratio_shift(after, before, _CONFIDENCE), test=mann_whitney(after, before))


def drift_statement(busy: Busy, drift: Drift, conditions: Mapping[str, str]) -> Statement:
    """What the server did by itself meanwhile."""
    keys = tuple(item.window.key for item in busy.alone)
    return _ratio_statement(
        "busy_drift",
        drift.ratio,
        subject="The background's time to first token after the long requests, over that before them",
        conditions=conditions,
        evidence=keys,
    )


def short_statements(busy: Busy, drift: Drift, conditions: Mapping[str, str]) -> Iterator[Statement | NotShown]:
    """Times and outcomes of the short requests by phase, and their ratios to those alone."""
    for phase, alone in (("before", busy.before), ("after", busy.after)):
        if alone is not None:
            told = _Told(phase=phase, conditions=conditions, evidence=(alone.window.key,))
            yield from told.times(list(alone.settled), list(alone.settled), _pauses(alone.settled, alone.span))
    windows = tuple(item.window.key for item in busy.injections)
    for phase in PHASES:
        told = _Told(phase=phase, conditions=conditions, evidence=windows)
        sent = [short for item in busy.injections for short in item.sent_in(phase)]
        decoding = [short for item in busy.injections for short in item.decoding_in(phase)]
        pauses = [
            pause for item in busy.injections if (span := item.span(phase)) for pause in _pauses(item.shorts, span)
        ]
        yield from told.times(sent, decoding, pauses)
        yield from told.ratios(busy, drift, sent, decoding)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Told:
    """The statements of one phase."""

    phase: str
    conditions: Mapping[str, str]
    evidence: tuple[str, ...]

    def times(self, sent: Sequence[Asked], decoding: Sequence[Asked], pauses: Sequence[Sampled]) -> Iterator[Statement]:
        words = _PHASE_WORDS[self.phase]
        ttft = [Sampled(value=s, key=item.key) for item in sent if item.done for s in _ttft_s([item])]
        tpot = [Sampled(value=s, key=item.key) for item in decoding if item.done for s in _tpot_s([item])]
        failed = _outcomes(sent)
        left_out = {"left_out": failed} if failed else {}
        missing = failed or "no short request falls into this phase"
        yield self._sampled(
            "busy_short_ttft", f"Time to first token of short requests {words}", ttft, missing, left_out
        )
        yield self._sampled(
            "busy_short_tpot", f"Time per output token of short requests, {_while(self.phase)}", tpot, missing, left_out
        )
        yield self._sampled(
            "busy_short_stall", f"Longest pause within a short answer, {_while(self.phase)}", pauses, missing, {}
        )
        if sent:
            yield self._served(sent, words)

    def _sampled(
        self, metric: str, subject: str, samples: Sequence[Sampled], missing: str, more: Mapping[str, str]
    ) -> Statement:
        said = sampled_statement(
            metric,
            samples,
            probe=PROBE,
            subject=subject,
            at_tokens=None,
            conditions={**self.conditions, "phase": self.phase, **more},
            why_none=missing,
        )
        said = replace(said, id=f"{said.id}.{self.phase}", evidence=self.evidence if samples else ())
        p95 = sample_quantile([sample.value for sample in samples], _TAIL)
        if isinstance(p95, Unknown):
            return said
        worst = max(sample.value for sample in samples)
        return replace(said, text=f"{said.text[:-1]}; p95 {show(metric, p95)}, longest {show(metric, worst)}.")

    def _served(self, sent: Sequence[Asked], words: str) -> Statement:
        good = sum(item.done for item in sent)
        failed = _outcomes(sent)
        return Statement(
            id=f"{PROBE}.busy_short_served.{self.phase}",
            metric="busy_short_served",
            text=f"{good} of {len(sent)} short requests {words} completed{f' ({failed})' if failed else ''}.",
            standing=Standing.SHOWN,
            unit="fraction",
            value=Measured(value=good / len(sent), provenance=Provenance.MEASURED, source="completed / sent"),
            n=len(sent),
            interval=clopper_pearson(good, len(sent)),
            conditions={**self.conditions, "phase": self.phase},
            evidence=self.evidence,
        )

    def ratios(self, busy: Busy, drift: Drift, sent: Sequence[Asked], decoding: Sequence[Asked]) -> Iterator[Statement]:
        """How the phase compares with the windows alone; nothing of what has no samples."""
        settled = [short for item in busy.alone for short in item.settled]
        words = _PHASE_WORDS[self.phase]
        compared: dict[str, tuple[Ratio | Unknown, str]] = {
            "busy_short_ttft_ratio": (
                ratio_shift(_ttft_s(sent), _ttft_s(settled), _CONFIDENCE),
                f"A short request {words} gets its first token later than without it, by the factor",
            ),
            "busy_short_ttft_p95_ratio": (
                quantile_ratio(_ttft_s(sent), _ttft_s(settled), _TAIL, _CONFIDENCE),
                f"The 95th percentile of that time, for short requests {words}, over that without it",
            ),
            "busy_short_tpot_ratio": (
                ratio_shift(_tpot_s(decoding), _tpot_s(settled), _CONFIDENCE),
                f"An output token of a short request takes longer {_while(self.phase)}, by the factor",
            ),
        }
        for metric, (ratio, subject) in compared.items():
            if not (decoding if metric == "busy_short_tpot_ratio" else sent):
                continue
            said = _ratio_statement(
                metric,
                drift.reason or ratio,
                subject=subject,
                conditions={**self.conditions, "phase": self.phase},
                evidence=(*(item.window.key for item in busy.alone), *self.evidence),
            )
            yield replace(said, id=f"{said.id}.{self.phase}")


# -- ratios -----------------------------------------------------------------------------------------------------------


def _ratio_statement(
    metric: str,
    ratio: Ratio | Unknown,
    *,
    subject: str,
    conditions: Mapping[str, str],
    evidence: tuple[str, ...],
) -> Statement:
    """A ratio with its interval; without an interval it is not shown."""
    interval = ratio if isinstance(ratio, Unknown) else ratio.interval
    unknown = Statement(
        id=f"{PROBE}.{metric}",
        metric=metric,
        text=f"{subject}: not shown, {interval.reason if isinstance(interval, Unknown) else ''}.",
        standing=Standing.NOT_SHOWN,
        unit="ratio",
        value=interval if isinstance(interval, Unknown) else Unknown(reason=""),
        n=0 if isinstance(ratio, Unknown) else ratio.n,
        conditions=dict(conditions),
        evidence=evidence,
    )
    if isinstance(ratio, Unknown) or not isinstance(interval, Interval):
        return unknown
    return replace(
        unknown,
        text=f"{subject}: {ratio.value:.3g} {describe_spread(metric, ratio.n, interval)}.",
        standing=Standing.SHOWN,
        value=Measured(value=ratio.value, provenance=Provenance.MEASURED, source=METRICS[metric].formula),
        interval=interval,
    )


# -- findings ---------------------------------------------------------------------------------------------------------


def short_findings(busy: Busy) -> Iterator[Finding]:
    """Short requests that stood still while the long one was prefilled, or waited for far more than its prefill."""
    said = _stood_still(busy) or _waited_longer(busy)
    if said is not None:
        yield said


def _stood_still(busy: Busy) -> Finding | None:
    """In every long prefill, most of it passed without one chunk for any short request under way.

    The chance of it: windows alone hold N stretches of that length, none of them silent, so one more is silent with a
    probability of at most about 1 / (N + 1); all of k are with its k-th power.
    """
    items = [item for item in busy.injections if item.long.timeline.first_token_ns is not None]
    if len(items) < _LEAST_INJECTIONS or not busy.alone:
        return None
    silences = [longest_silence([short.timeline for short in item.shorts], item.prefill) for item in items]
    usual = max(longest_silence([s.timeline for s in item.shorts], item.span).ns for item in busy.alone)
    watched = sum(item.span.ns for item in busy.alone)
    chance = 1.0
    for item, silence in zip(items, silences, strict=True):
        enough = max(_SILENT_SHARE * item.prefill.ns, _SILENT_TIMES * usual, _SILENT_NS)
        late_ns = late_within_ns(item.window.body, silence)
        if silence.ns - late_ns < enough:  # what the client was away is no silence of the server's
            return None
        chance /= watched // silence.ns + 1
    if chance > ALPHA:
        return None
    longest = max(silences, key=lambda silence: silence.ns)
    share = min(s.ns / item.prefill.ns for item, s in zip(items, silences, strict=True))
    return Finding(
        id="busy.short_starved",
        severity=Severity.CAUTION,
        text=(
            f"While a prompt of {format_tokens(busy.long_tokens)} tokens was prefilled no short request under way got"
            f" a single token for up to {format_ns(longest.ns)}, at least {share:.0%} of the prefill, in each of"
            f" {len(items)} prefills; without it the longest such pause was {format_ns(usual)}."
        ),
        evidence=tuple(item.window.key for item in items),
        details={"silence": format_ns(longest.ns), "usual": format_ns(usual), "p": f"{chance:.2g}"},
    )


def _waited_longer(busy: Busy) -> Finding | None:
    """The tail of first tokens lies beyond what waiting for the long prefill explains, against either baseline."""
    idle_ns = busy.idle_ns
    sent = _ttft_s([short for item in busy.injections for short in item.sent_in("prefill")])
    if idle_ns is None or not busy.alone or len(busy.injections) < _LEAST_INJECTIONS:
        return None
    if client_was_late(*(window.body for window in busy.windows)):
        return None
    for alone in busy.alone:
        base = _ttft_s(alone.settled)
        tail = sample_quantile(base, _TAIL)
        found = quantile_ratio(sent, base, _TAIL, _CONFIDENCE)
        if isinstance(found, Unknown) or isinstance(tail, Unknown) or isinstance(found.interval, Unknown):
            return None
        if found.interval.low * tail <= tail + _PREFILLS * idle_ns / 1e9:
            return None
    p95 = sample_quantile(sent, _TAIL)
    assert not isinstance(p95, Unknown)  # there were enough for an interval
    return Finding(
        id="busy.short_starved",
        severity=Severity.CAUTION,
        text=(
            f"The 95th percentile of short requests' time to first token was {format_ns(p95 * 1e9)} while a prompt of"
            f" {format_tokens(busy.long_tokens)} tokens was prefilled (n = {len(sent)}): more than {_PREFILLS:g} times"
            f" the {format_ns(idle_ns)} that the prefill takes alone, beyond what they take otherwise."
        ),
        evidence=tuple(item.window.key for item in busy.injections),
        details={"p95": format_ns(p95 * 1e9), "prefill_alone": format_ns(idle_ns)},
    )


def _while(phase: str) -> str:
    return _PHASE_WORDS[phase].replace("sent while", "while")


# -- numbers ----------------------------------------------------------------------------------------------------------


def _ttft_s(items: Sequence[Asked]) -> list[float]:
    return [item.timeline.ttft_ns / 1e9 for item in items if item.timeline.ttft_ns]


def _blocks(items: Sequence[Asked]) -> list[float]:
    """Medians of so many blocks of neighbours in time."""
    ordered = _ttft_s(sorted(items, key=lambda item: item.timeline.submitted_ns))
    count = min(_BLOCKS, len(ordered))
    return [median(ordered[k * len(ordered) // count : (k + 1) * len(ordered) // count]) for k in range(count)]


def _tpot_s(items: Sequence[Asked]) -> list[float]:
    return [item.timeline.tpot_ns / 1e9 for item in items if item.timeline.tpot_ns]


def _pauses(shorts: Sequence[Asked], span: Span) -> list[Sampled]:
    found = [(item.key, largest_pause_ns(item.timeline, span)) for item in shorts]
    return [Sampled(value=pause / 1e9, key=key) for key, pause in found if pause]


def _outcomes(items: Sequence[Asked]) -> str:
    return counted(item.timeline for item in items if not item.done)
