"""What the models pass around: one request, and what became of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from longproof.domain.units import NS_PER_MS


@dataclass(slots=True, eq=False)
class Job:
    """One request. `blocks` are the names of its whole blocks (a trace's last, partial block is one of them).
    `following`: at the end of the answer, when the client comes back and with what."""

    id: str
    input_tokens: int
    output_tokens: int
    blocks: tuple[int, ...]
    kind: str = ""
    session: str | None = None
    following: Callable[[int], tuple[int, Job] | None] | None = None
    arrived_ns: int = 0
    first_token_ns: int | None = None
    cached_tokens: int = 0
    replica: str = ""
    refused: str = ""


@dataclass(slots=True)
class Outcome:
    """All requests of one run, and the uncached tokens each replica prefilled."""

    jobs: list[Job] = field(default_factory=list[Job])
    uncached_tokens: dict[str, int] = field(default_factory=dict[str, int])
    ended_ns: int = 0
    longest_queue: int = 0

    def answered(self, kind: str | None = None) -> list[Job]:
        """Requests whose first token came."""
        return [job for job in self.jobs if job.first_token_ns is not None and kind in (None, job.kind)]

    def refused(self) -> list[Job]:
        """Requests that were turned away."""
        return [job for job in self.jobs if job.refused]

    @property
    def hit_share(self) -> float:
        """Cached over prompt tokens of all that were answered."""
        done = self.answered()
        return sum(job.cached_tokens for job in done) / max(1, sum(job.input_tokens for job in done))

    @property
    def imbalance(self) -> float:
        """Uncached tokens of the busiest replica over the mean."""
        work = list(self.uncached_tokens.values())
        return max(work) * len(work) / max(1, sum(work))

    def ttft_ms(self, quantile: float, kind: str | None = None) -> float:
        """A quantile of the time to first token, the wait in the gateway included."""
        times = sorted((job.first_token_ns or 0) - job.arrived_ns for job in self.answered(kind))
        return times[min(len(times) - 1, int(quantile * len(times)))] / NS_PER_MS if times else float("nan")
