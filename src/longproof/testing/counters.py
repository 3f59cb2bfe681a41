"""What /metrics is made of: counters and histograms of one life. Times in seconds, because that is what they show."""

from __future__ import annotations

from dataclasses import dataclass, field

from longproof.testing.histogram import (
    FIRST_TOKEN_S,
    INTER_TOKEN_S,
    LATENCY_S,
    PREEMPTIONS,
    TRANSFER_BYTES,
    TRANSFER_S,
    Histogram,
)


def _latency() -> Histogram:
    return Histogram(LATENCY_S)


@dataclass(slots=True, kw_only=True)
class Counters:
    """`external_tokens` came from another engine's KV; they are in neither of the two above. `rejected`: requests over
    the queue limit. `kv_failures`: transfers that failed."""

    processed_tokens: int = 0
    cached_tokens: int = 0
    external_tokens: int = 0
    external_queries: int = 0
    prefill_s: float = 0.0
    output_tokens: int = 0
    decode_s: float = 0.0
    longest_tokens: int = 0
    drafts: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    rejected: int = 0
    kv_failures: int = 0
    kv_expired: int = 0
    leaked_bytes: int = 0
    deferred: int = 0
    finished: dict[str, int] = field(default_factory=dict[str, int])
    ttft: Histogram = field(default_factory=lambda: Histogram(FIRST_TOKEN_S))
    inter_token: Histogram = field(default_factory=lambda: Histogram(INTER_TOKEN_S))
    e2e: Histogram = field(default_factory=_latency)
    queue: Histogram = field(default_factory=_latency)
    prefill: Histogram = field(default_factory=_latency)
    decode: Histogram = field(default_factory=_latency)
    preemptions: Histogram = field(default_factory=lambda: Histogram(PREEMPTIONS))
    transfer: Histogram = field(default_factory=lambda: Histogram(TRANSFER_S))
    transfer_bytes: Histogram = field(default_factory=lambda: Histogram(TRANSFER_BYTES))

    @property
    def prompt_tokens(self) -> int:
        return self.processed_tokens + self.cached_tokens + self.external_tokens

    def finish(self, reason: str) -> None:
        """One more request ended for this reason."""
        self.finished[reason] = self.finished.get(reason, 0) + 1
