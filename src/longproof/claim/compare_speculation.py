"""What an engine's own counters say about speculation while it was asked: was it on, and did it guess well?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from longproof.claim.view import EvidenceView
from longproof.domain.events import EngineSample
from longproof.evidence.records import RequestBody, SamplesBody

_DRAFTED = "vllm:spec_decode_num_draft_tokens_total"
_ACCEPTED = "vllm:spec_decode_num_accepted_tokens_total"
"""vLLM 0.32, v1/spec_decode/metrics.py: there only where speculation is configured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """Tokens drafted and accepted from the first sample of the engine's metrics to the last."""

    drafted_tokens: int
    accepted_tokens: int

    @property
    def accepted_share(self) -> float | None:
        """None where nothing was drafted."""
        return self.accepted_tokens / self.drafted_tokens if self.drafted_tokens else None


def speculation_of(view: EvidenceView) -> Speculation | None:
    """None where the engine has no such counters, or was restarted meanwhile."""
    samples = [sample for record in view.records for sample in _samples(record.body)]
    told = [found for sample in samples if (found := _counted(sample.values)) is not None]
    if not told:
        return None
    drafted, accepted = told[-1][0] - told[0][0], told[-1][1] - told[0][1]
    return Speculation(drafted_tokens=drafted, accepted_tokens=accepted) if min(drafted, accepted) >= 0 else None


def _samples(body: object) -> list[EngineSample]:
    if isinstance(body, RequestBody):
        return [sample for sample in (body.before, body.after) if sample is not None]
    return list(body.samples) if isinstance(body, SamplesBody) else []


def _counted(values: Mapping[str, float]) -> tuple[int, int] | None:
    drafted = [value for name, value in values.items() if name.partition("{")[0] == _DRAFTED]
    accepted = [value for name, value in values.items() if name.partition("{")[0] == _ACCEPTED]
    return (round(sum(drafted)), round(sum(accepted))) if drafted and accepted else None
