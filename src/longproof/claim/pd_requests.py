"""What each request through a prefill/decode pair shows: whose time it took, and where its prompt's KV came from.

Names as `engines.pd_handover` writes them into `engine_timings`, and as vLLM 0.32 exposes them (v1/metrics/stats.py:
prompt tokens by source; kv_connector/v1/nixl/stats.py), each side's with its prefix.
"""

from __future__ import annotations

from dataclasses import dataclass

from longproof.claim.view import EvidenceView
from longproof.domain.engine_metrics import growth
from longproof.domain.events import EndedBy, EngineSample, RequestTimeline
from longproof.domain.outcome import Outcome, classify, completed_as_asked
from longproof.evidence.records import RequestBody

PROBE = "disaggregated"
_BY_SOURCE = "decode.vllm:prompt_tokens_by_source_total"
_BYTES, _SECONDS = "decode.vllm:nixl_bytes_transferred_sum", "decode.vllm:nixl_xfer_time_seconds_sum"
_PREFILL_NS, _DECODE_TTFT_NS = "pd_prefill_ns", "pd_decode_ttft_ns"
_PREFILL_ERROR, _BOOTSTRAP_ERROR, _DECODE_ERROR = "pd_prefill", "pd_bootstrap", "pd_decode"


@dataclass(frozen=True, slots=True, kw_only=True)
class Handed:
    """One request through both sides. Times in seconds. `external`, `computed`: prompt tokens that the decode side took
    over and computed itself; `bytes_moved`, `transfer_s`: what its connector transferred meanwhile. None = the metrics
    do not say, which they do only of requests that ran alone."""

    key: str
    length: int
    timeline: RequestTimeline
    prefill_s: float | None
    decode_ttft_s: float | None
    external: float | None
    computed: float | None
    bytes_moved: float | None
    transfer_s: float | None

    @property
    def good(self) -> bool:
        return completed_as_asked(self.timeline)

    @property
    def failed_at(self) -> str | None:
        """``prefill``, ``bootstrap`` or ``transfer``: where it failed; None for one that completed, was refused, or ran
        out of time."""
        kind = self.timeline.error.type if self.timeline.error is not None else None
        if kind == _BOOTSTRAP_ERROR:
            return "bootstrap"
        if kind == _DECODE_ERROR and classify(self.timeline) in (Outcome.ERROR_IN_STREAM, Outcome.SERVER_ERROR):
            return "transfer" if self.bytes_moved else "bootstrap"
        gone = (Outcome.UNREACHABLE, Outcome.NOT_A_STREAM)
        broke = kind == _PREFILL_ERROR or (self.prefill_s is None and classify(self.timeline) in gone)
        return "prefill" if broke else None

    @property
    def late_at(self) -> str | None:
        """In which stage its time ran out; None where it did not."""
        if self.timeline.ended_by is not EndedBy.TIMEOUT:
            return None
        if self.prefill_s is None:
            return "prefill"
        return "decode" if self.timeline.first_token_ns is not None else "transfer"


def handed_of(view: EvidenceView) -> list[Handed]:
    """All requests that went through both sides, in order; those sent together included."""
    found = [(key, body) for key, body in view.requests(PROBE) if body.cell.get("arm") in ("pair", "together")]
    return [_handed(key, body) for key, body in found]


def _handed(key: str, body: RequestBody) -> Handed:
    timings = body.timeline.engine_timings
    before, after = body.before, body.after
    return Handed(
        key=key,
        length=int(body.cell["length"]),
        timeline=body.timeline,
        prefill_s=_seconds(timings.get(_PREFILL_NS)),
        decode_ttft_s=_seconds(timings.get(_DECODE_TTFT_NS)),
        external=_source(before, after, "external_kv_transfer"),
        computed=_source(before, after, "local_compute"),
        bytes_moved=None if before is None or after is None else growth(before, after, _BYTES),
        transfer_s=None if before is None or after is None else growth(before, after, _SECONDS),
    )


def _source(before: EngineSample | None, after: EngineSample | None, source: str) -> float | None:
    """How much one label set grew: prompt tokens from one source."""
    if before is None or after is None:
        return None
    names = [name for name in after.values if name.startswith(f"{_BY_SOURCE}{{") and f'source="{source}"' in name]
    return sum(after.values[name] - before.values.get(name, 0.0) for name in names) if names else None


def _seconds(ns: float | None) -> float | None:
    return None if ns is None else ns / 1e9
