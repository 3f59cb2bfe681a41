"""What a search is asked and what it answers: the values that pass between its parts and its callers.

Workload + Slo + Hardware + layouts ──▶ Candidate, Candidate, …        best first, each with what it misses
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from longproof.domain.measure import Reading, Unknown
from longproof.errors import UsageError
from longproof.geometry.model import ModelGeometry
from longproof.hardware.device import Device
from longproof.plan.capacity import Capacity, Layout, PlanEngine, Speculation
from longproof.plan.layouts import Arrangement, LayoutSpace
from longproof.plan.perf_estimate import Precision, Rates, TimeEstimate
from longproof.plan.perf_work import ModelWork

CapacityOf: TypeAlias = Callable[[Layout], Capacity]
"""Capacity of one server of a layout. Raises UserError where there is none to tell."""
_NO_PRICE = Unknown(reason="no price per device and hour is known")


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Requests of one kind. `sessions`: how many must run at once; None = as many as fit and keep the SLO."""

    input_tokens: int
    output_tokens: int
    cached_tokens: int = 0
    sessions: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.cached_tokens < self.input_tokens or self.output_tokens < 1 or (self.sessions or 1) < 1:
            raise UsageError(
                f"{self.cached_tokens} cached of {self.input_tokens} input tokens, {self.output_tokens} output tokens "
                f"and {self.sessions} sessions make no workload",
                advice="give fewer cached than input tokens, and at least one output token and session",
            )

    @property
    def total_tokens(self) -> int:
        """Input and output together: what a request occupies at its end."""
        return self.input_tokens + self.output_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """The most a request may wait: for its first token, and from token to token. None = no bound."""

    first_token_seconds: float | None = None
    token_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """`count` devices of one kind. `usd_per_hour` of one of them."""

    device: Device
    count: int
    usd_per_hour: Reading[float] = _NO_PRICE


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchQuestion:
    """Everything a search needs but the capacities. `narrow_cache`: the KV cache is fp8 or smaller."""

    geometry: ModelGeometry
    work: ModelWork
    engine: PlanEngine
    hardware: Hardware
    workload: Workload
    slo: Slo = field(default_factory=Slo)
    space: LayoutSpace = field(default_factory=LayoutSpace)
    precision: Precision = field(default_factory=Precision)
    rates: Rates | None = None
    narrow_cache: bool = False
    speculation: Speculation | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """An arrangement that fits, and how it does.

    `sessions`: running at once over all servers; `holds`: how many the KV caches hold. `first_token`: alone, without
    queueing. `token_seconds`: between tokens under this load, prefills of the others included where they share the
    server. `requests_per_second`: at full load. `device_seconds`: of all devices, per request. `misses`: what of the
    question it does not meet, () = it meets all. `overrun`: the worst ratio of actual to asked, 1 when met.
    """

    arrangement: Arrangement
    devices: int
    sessions: int
    holds: int
    first_token: TimeEstimate
    step: TimeEstimate
    token_seconds: float
    requests_per_second: float
    device_seconds: float
    usd_per_request: Reading[float]
    usd_per_million_output: Reading[float]
    misses: tuple[str, ...] = ()
    overrun: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Unfit:
    """A layout that was tried and cannot serve the request, and why."""

    layout: Layout
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """`ranked`: best first; empty when nothing fits. `tried`: layouts looked at; `unfit`: those that do not fit.

    `explanation`: three sentences: the winner, what it reaches, why it beats the next.
    """

    tried: int
    ranked: tuple[Candidate, ...]
    unfit: tuple[Unfit, ...]
    explanation: tuple[str, ...]

    @property
    def winner(self) -> Candidate | None:
        """The best candidate, whether it meets the SLO or only comes nearest."""
        return self.ranked[0] if self.ranked else None
