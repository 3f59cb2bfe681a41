"""The times of a proof as points a plan can be calibrated on: cold prompts, and decoded tokens by context."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from longproof.claim.derive import derive
from longproof.domain.measure import Measured
from longproof.errors import EvidenceError
from longproof.plan.perf_calibrate import TimedPoint

_PREFILL, _DECODE = "ttft", "tpot"


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedPoints:
    """Means over the repeats, one point per length. `prefill` includes the path from the client to the server and the
    first token's own step."""

    prefill: tuple[TimedPoint, ...]
    decode: tuple[TimedPoint, ...]


def timed_points(directory: Path) -> TimedPoints:
    """The cold times to first token and times per output token of the evidence in `directory`.

    Raises EvidenceError for evidence that is missing, damaged, or has no timed prompt.
    """
    claim = derive(directory)

    def points(metric: str) -> tuple[TimedPoint, ...]:
        return tuple(
            TimedPoint(tokens=item.at_tokens, seconds=item.value.value)
            for item in claim.statements
            if item.metric == metric and item.at_tokens and isinstance(item.value, Measured) and item.value.value > 0
        )

    found = TimedPoints(prefill=points(_PREFILL), decode=points(_DECODE))
    if not found.prefill and not found.decode:
        raise EvidenceError(
            f"the evidence in {directory} has no timed prompts", advice="prove with the speed probe: --only speed"
        )
    return found
