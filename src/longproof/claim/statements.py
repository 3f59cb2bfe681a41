"""The vocabulary of a claim. A claim is what these statements say, under these conditions, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from longproof.domain.measure import Interval, Measured, Unknown


class Standing(StrEnum):
    """What the evidence does for a statement."""

    SHOWN = "shown"
    REFUTED = "refuted"
    NOT_SHOWN = "not shown"


class Severity(StrEnum):
    """How much a finding matters to someone relying on the deployment."""

    FAULT = "fault"
    """The server broke its word: results through it cannot be trusted as they are."""
    CAUTION = "caution"
    """It did something a user must know about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """One sentence with its evidence.

    `metric` names what was measured (see `claim.metrics`); `at_tokens` the length it holds for, None = not tied to a
    length. `value` carries the number in the metric's unit. `n` counts the observations; `interval` is None when n is
    too small for one, and the text then says "n = 1". `conditions` are those beyond the claim's own (cold or warm, load
    …). `evidence` are record keys.
    """

    id: str
    metric: str
    text: str
    standing: Standing
    unit: str
    value: Measured[float] | Unknown
    n: int
    at_tokens: int | None = None
    interval: Interval | None = None
    samples: tuple[float, ...] = ()
    conditions: dict[str, str] = field(default_factory=dict[str, str])
    evidence: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The server did something else than it said. `id` is stable (``accounting.input_truncated_head``)."""

    id: str
    severity: Severity
    text: str
    evidence: tuple[str, ...]
    details: dict[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True, kw_only=True)
class NotShown:
    """One line of "What this does not show", derived from what was not run. `topic` is stable; `how` says what would
    show it."""

    topic: str
    text: str
    how: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What may be said about one deployment, and what may not.

    `conditions` hold for every statement. `complete`: the protocol ran to its end. `samples` and `interval`s stay with
    their statements. The same evidence gives the same bytes.
    """

    format: int
    longproof_version: str
    headline: str
    target: str
    fingerprint_digest: str
    facts: dict[str, str]
    unknown: dict[str, str]
    conditions: dict[str, str]
    complete: bool
    statements: tuple[Statement, ...]
    findings: tuple[Finding, ...]
    not_shown: tuple[NotShown, ...]
    evidence_sha256: str

    def statement(self, metric: str, at_tokens: int | None = None) -> Statement | None:
        """The statement of a metric at a length, or None."""
        for item in self.statements:
            if item.metric == metric and item.at_tokens == at_tokens:
                return item
        return None
