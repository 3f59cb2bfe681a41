"""A request through both sides against the same prompt computed by the decode side alone: the same text, and sooner?"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

from longproof.claim.pd_requests import PROBE
from longproof.claim.sampled import describe_spread
from longproof.claim.statements import Finding, Severity, Standing, Statement
from longproof.claim.view import EvidenceView
from longproof.domain.events import RequestTimeline
from longproof.domain.measure import Interval, Measured, Provenance, Unknown
from longproof.domain.outcome import completed_as_asked
from longproof.domain.units import format_tokens
from longproof.stats.ratio import paired_ratio

_LEVEL = 0.01
_SLOWER = 1.25
_SLOWER_S = 0.2
_MOST_DIFFER = 2 / 3
_LEAST_PAIRS = 3
_FROM_THE_START = 0.2
"""Texts of one model that part at a near tie agree up to there; damaged KV shows within the first tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pair:
    """The same prompt through both sides and by the decode side alone; `steady`: asked alone twice, the same text
    twice, None = it was asked once."""

    length: int
    keys: tuple[str, str]
    through: RequestTimeline
    alone: RequestTimeline
    steady: bool | None

    @property
    def same(self) -> bool:
        return self.through.text == self.alone.text

    @property
    def common(self) -> float:
        """The share of the shorter text that both begin with."""
        shorter = min(len(self.through.text), len(self.alone.text))
        alike = zip(self.through.text, self.alone.text, strict=False)
        return sum(1 for _ in takewhile(lambda both: both[0] == both[1], alike)) / shorter if shorter else 0.0


def against_alone(view: EvidenceView) -> Iterator[Statement | Finding]:
    """How the decode side's first token compares with computing the prompt, and whether texts agree."""
    pairs = _pairs(view)
    for length in sorted({pair.length for pair in pairs}):
        yield from _sooner([pair for pair in pairs if pair.length == length], length)
    yield from _texts(pairs)


def _pairs(view: EvidenceView) -> list[_Pair]:
    by_cell = {
        (str(body.cell["arm"]), int(body.cell["length"]), int(body.cell["repeat"])): (key, body.timeline)
        for key, body in view.requests(PROBE)
        if body.cell.get("arm") in ("pair", "alone", "control") and completed_as_asked(body.timeline)
    }
    found: list[_Pair] = []
    for (arm, length, repeat), (key, timeline) in by_cell.items():
        alone = by_cell.get(("alone", length, repeat))
        if arm != "pair" or alone is None:
            continue
        control = by_cell.get(("control", length, repeat))
        steady = None if control is None else control[1].text == alone[1].text
        found.append(_Pair(length=length, keys=(key, alone[0]), through=timeline, alone=alone[1], steady=steady))
    return found


def _sooner(pairs: Sequence[_Pair], length: int) -> Iterator[Statement | Finding]:
    times = [
        (pair.through.engine_timings["pd_decode_ttft_ns"] / 1e9, pair.alone.ttft_ns / 1e9)
        for pair in pairs
        if pair.through.engine_timings.get("pd_decode_ttft_ns") and pair.alone.ttft_ns
    ]
    found = paired_ratio(times, 1 - _LEVEL)
    if isinstance(found, Unknown):
        return
    keys = tuple(key for pair in pairs for key in pair.keys)
    text = (
        f"For {format_tokens(length)} tokens the decode side gave its first token in {found.value:.3g} of the time in"
        f" which it computes the prompt itself {describe_spread('pd_decode_ratio', found.n, found.interval)}."
    )
    yield Statement(
        id=f"{PROBE}.pd_decode_ratio.{length}",
        metric="pd_decode_ratio",
        text=text,
        standing=Standing.SHOWN,
        unit="ratio",
        value=Measured(value=found.value, provenance=Provenance.MEASURED, source="geometric mean of handed / computed"),
        n=found.n,
        at_tokens=length,
        interval=found.interval if isinstance(found.interval, Interval) else None,
        samples=tuple(handed / computed for handed, computed in times),
        conditions={"cache": "cold", "load": "idle: one request at a time", "compared": "the same prompt"},
        evidence=keys,
    )
    excess_s = statistics.fmean(handed - computed for handed, computed in times)
    surely = isinstance(found.interval, Interval) and found.interval.low > 1
    if surely and found.value >= _SLOWER and excess_s >= _SLOWER_S:
        yield Finding(
            id="disaggregated.transfer_slow",
            severity=Severity.CAUTION,
            text=f"{text} Taking KV over costs more than computing it.",
            evidence=keys,
            details={"length": str(length), "ratio": f"{found.value:.4g}"},
        )


def _texts(pairs: Sequence[_Pair]) -> Iterator[Finding]:
    """Only where the decode side alone gave the same text twice, each time it was asked twice."""
    controls = [pair.steady for pair in pairs if pair.steady is not None]
    if not controls or not all(controls) or len(pairs) < _LEAST_PAIRS:
        return
    differ = [pair for pair in pairs if not pair.same]
    if len(differ) < _MOST_DIFFER * len(pairs):
        return
    common = statistics.median(pair.common for pair in differ)
    damaged = common < _FROM_THE_START
    kind = "from the first words on" if damaged else f"after {common:.0%} of it (median)"
    yield Finding(
        id="disaggregated.text_differs",
        severity=Severity.FAULT if damaged else Severity.CAUTION,
        text=(
            f"Through both sides {len(differ)} of {len(pairs)} greedy answers differ from what the decode side alone"
            f" answers, {kind}; alone it repeated itself {len(controls)} of {len(controls)} times. What arrives is not"
            " what it would have computed."
        ),
        evidence=tuple(key for pair in differ for key in pair.keys),
        details={"differ": str(len(differ)), "pairs": str(len(pairs)), "common": f"{common:.3f}"},
    )
