"""Two readings of cold TTFT that compare requests: how it grows with length, and how the run's first request
differs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from longproof.claim.sampled import Sampled
from longproof.claim.statements import Standing, Statement
from longproof.claim.view import EvidenceView
from longproof.domain.events import RequestTimeline
from longproof.domain.measure import Interval, Measured, Provenance, Unknown
from longproof.domain.outcome import completed_as_asked
from longproof.domain.units import format_ns, format_tokens
from longproof.stats.ratio import unpaired_ratio


def growth(by_length: Mapping[int, Sequence[Sampled]]) -> Iterator[Statement]:
    """From each length to the next: the power of the length that TTFT grows with. Above 1 the prefill of longer prompts
    costs more per token."""
    lengths = [length for length in sorted(by_length) if by_length[length]]
    for shorter, longer in pairwise(lengths):
        above, below = by_length[longer], by_length[shorter]
        found = unpaired_ratio([sample.value for sample in above], [sample.value for sample in below])
        assert not isinstance(found, Unknown)  # both sides have samples
        stretch = math.log(longer / shorter)
        power = math.log(found.value) / stretch
        spread = found.interval if isinstance(found.interval, Unknown) else _as_power(found.interval, stretch)
        sizes = f"n = {len(below)} and {len(above)}"
        if isinstance(spread, Interval):
            sizes += f", {100 * spread.confidence:g} % interval {spread.low:.2f} to {spread.high:.2f}"
        yield Statement(
            id=f"speed.ttft_exponent.{longer}",
            metric="ttft_exponent",
            text=(
                f"From {format_tokens(shorter)} to {format_tokens(longer)} tokens cold TTFT grew"
                f" {found.value:.3g} times, as length to the power {power:.2f} ({sizes})."
            ),
            standing=Standing.SHOWN,
            unit="power",
            value=Measured(value=power, provenance=Provenance.DERIVED, source="log(TTFT ratio) / log(length ratio)"),
            n=found.n,
            at_tokens=longer,
            interval=spread if isinstance(spread, Interval) else None,
            conditions={"cache": "cold", "load": "idle: one request at a time", "from_tokens": str(shorter)},
            evidence=tuple(sample.key for sample in (*below, *above)),
        )


def first_run(view: EvidenceView, by_length: Mapping[int, Sequence[Sampled]]) -> Iterator[Statement]:
    """The first request of the run against later cold ones of its length. It enters no other number."""
    compared = _calibration(view) or _speed_warmup(view, by_length)
    if compared is None:
        return
    (key, first), later = compared
    ratio = first / (sum(sample.value for sample in later) / len(later))
    yield Statement(
        id="speed.first_run_ratio",
        metric="first_run_ratio",
        text=(
            f"The first request of the run took {format_ns(first * 1e9)} to its first token,"
            f" {ratio:.3g} times what later ones of the same length took (n = 1 and {len(later)})."
        ),
        standing=Standing.SHOWN,
        unit="ratio",
        value=Measured(value=ratio, provenance=Provenance.MEASURED, source="ttft(first) / mean ttft(later)"),
        n=1,
        samples=(ratio,),
        conditions={"cache": "cold", "load": "idle: one request at a time", "compared_with": f"{len(later)} later"},
        evidence=(key, *(sample.key for sample in later)),
    )


def _calibration(view: EvidenceView) -> tuple[tuple[str, float], list[Sampled]] | None:
    """The run's two calibration requests have the same length; the first of them is the first of all."""
    found = [
        Sampled(value=seconds, key=key)
        for key, body in view.requests("calibration")
        if "length" in body.cell and (seconds := _seconds(body.timeline)) is not None
    ]
    return ((found[0].key, found[0].value), found[1:]) if len(found) > 1 else None


def _speed_warmup(
    view: EvidenceView, by_length: Mapping[int, Sequence[Sampled]]
) -> tuple[tuple[str, float], list[Sampled]] | None:
    for key, body in view.requests("speed"):
        seconds = _seconds(body.timeline)
        if body.cell.get("arm") == "warmup" and seconds is not None:
            later = by_length.get(int(body.cell["length"]), ())
            return ((key, seconds), list(later)) if later else None
    return None


def _seconds(timeline: RequestTimeline) -> float | None:
    done = completed_as_asked(timeline) and timeline.ttft_ns is not None
    return timeline.ttft_ns / 1e9 if done and timeline.ttft_ns is not None else None


def _as_power(interval: Interval, stretch: float) -> Interval:
    return Interval(
        low=math.log(interval.low) / stretch,
        high=math.log(interval.high) / stretch,
        confidence=interval.confidence,
        method=interval.method,
    )
