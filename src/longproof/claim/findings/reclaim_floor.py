"""Whether what an idle engine holds rises from cancel to cancel: KV blocks, and the memory of its process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from longproof.claim.reclaim_cycles import PROBE, Cycle
from longproof.claim.statements import Finding, Severity, Standing, Statement
from longproof.claim.view import EvidenceView
from longproof.domain.measure import Measured, Provenance, Unknown, value_or_none
from longproof.domain.units import format_bytes, format_tokens
from longproof.stats.trend import mann_kendall

_LEVEL = 0.01
_LEAST_FLOORS = 5
"""Five values that only rise come so by chance once in 120: no fewer can decide at 1 %."""
_LEAST_POOL_RISE = 1e-4
_LEAST_BYTES = 16 << 20
_LEAST_BYTES_PER_CANCEL = 1 << 20
_BEYOND_COMPLETED = 2.0
_LATER_SHARE = 0.25
"""A process grows while it warms up; a leak still grows in the second half."""


def floors(view: EvidenceView, cycles: Sequence[Cycle]) -> Iterator[Statement | Finding]:
    """The floor of idle KV usage and of resident memory over all cycles."""
    yield from _kv(view, [cycle for cycle in cycles if cycle.kv_floor is not None and cycle.kv_base is not None])
    yield from _memory([cycle for cycle in cycles if cycle.rss_floor is not None], _per_completed(view))


def _kv(view: EvidenceView, cycles: Sequence[Cycle]) -> Iterator[Statement | Finding]:
    if not cycles:
        return
    series = [cycles[0].kv_base or 0.0, *(cycle.kv_floor or 0.0 for cycle in cycles)]
    capacity = value_or_none(view.header.deployment.kv_capacity_tokens)
    block = value_or_none(view.header.deployment.block_size_tokens) or 1
    cancels = sum(cycle.left for cycle in cycles)
    rise = series[-1] - series[0]
    evidence = tuple(key for cycle in cycles for key in cycle.evidence)
    yield _kv_statement(series, rise, capacity, cancels, tuple(cycle.key for cycle in cycles))
    least = block / capacity / 2 if capacity else _LEAST_POOL_RISE
    if len(series) < _LEAST_FLOORS or rise < least or not _rises(series):
        return
    lost = f"{100 * rise:.3g} % of its KV pool"
    details = {"floor_before": f"{series[0]:.6g}", "floor_after": f"{series[-1]:.6g}", "cancels": str(cancels)}
    outlook = ""
    if capacity:
        tokens = rise * capacity
        lost = f"{format_tokens(tokens)} tokens of its KV pool ({round(tokens / block):,} blocks of {block})"
        details |= {"tokens": f"{tokens:.0f}", "blocks": f"{tokens / block:.0f}"}
        outlook = f" At that rate the pool of {format_tokens(capacity)} tokens is gone after"
        outlook += f" {cancels * capacity / tokens:,.0f} cancelled requests."
    yield Finding(
        id="reclaim.kv_leaked",
        severity=Severity.FAULT,
        text=(
            f"While idle the engine held {lost} more after {cancels} cancelled requests than before the first, rising"
            f" over {len(cycles)} cycles.{outlook}"
        ),
        evidence=evidence,
        details=details,
    )


def _kv_statement(
    series: Sequence[float], rise: float, capacity: int | None, cancels: int, evidence: tuple[str, ...]
) -> Statement:
    per_cancel = None if capacity is None else max(0.0, rise * capacity / cancels)
    held = f"{100 * series[0]:.3g} % before and {100 * series[-1]:.3g} % after {cancels} cancelled requests"
    if per_cancel is None:
        return Statement(
            id=f"{PROBE}.kv_floor",
            metric="kv_lost_per_cancel",
            text=f"Idle KV usage was {held}; the pool's size is not known.",
            standing=Standing.NOT_SHOWN,
            unit="tokens",
            value=Unknown(reason="the pool's size is not known"),
            n=len(series) - 1,
            evidence=evidence,
        )
    return Statement(
        id=f"{PROBE}.kv_floor",
        metric="kv_lost_per_cancel",
        text=f"Idle KV usage was {held}: {per_cancel:.3g} tokens lost per cancel.",
        standing=Standing.SHOWN,
        unit="tokens",
        value=Measured(value=per_cancel, provenance=Provenance.MEASURED, source="rise of idle KV usage × pool"),
        n=len(series) - 1,
        evidence=evidence,
    )


def _memory(cycles: Sequence[Cycle], per_completed: float | None) -> Iterator[Finding]:
    series = [cycle.rss_floor or 0.0 for cycle in cycles]
    if len(series) < _LEAST_FLOORS or per_completed is None:
        return
    cancels = sum(cycle.left for cycle in cycles[1:])
    rise, later = series[-1] - series[0], series[-1] - series[len(series) // 2]
    usual = _BEYOND_COMPLETED * max(0.0, per_completed)
    if rise < max(_LEAST_BYTES, max(_LEAST_BYTES_PER_CANCEL, usual) * cancels) or later < _LATER_SHARE * rise:
        return
    if _rises(series):
        yield Finding(
            id="reclaim.memory_leaked",
            severity=Severity.CAUTION,
            text=(
                f"The engine's process grew from {format_bytes(series[0])} to {format_bytes(series[-1])} over"
                f" {cancels} cancelled requests, and still grew in the second half."
            ),
            evidence=tuple(key for cycle in cycles for key in cycle.evidence),
            details={"bytes": f"{rise:.0f}", "cancels": str(cancels)},
        )


def _per_completed(view: EvidenceView) -> float | None:
    """Bytes that the process grew by per request of the same length that nobody cancelled; None where it is not ours.
    A cache of prompts in host memory (llama.cpp has one) grows with those as well."""
    notes = {key: note for key, note in view.notes(PROBE) if note.what == "memory"}
    before, after = (notes.get(f"{PROBE}/idle/{when}/memory") for when in ("before", "after"))
    n = sum(key.startswith(f"{PROBE}/idle/") for key, _ in view.requests(PROBE))
    if before is None or after is None or not n:
        return None
    return (float(after.detail["memory_bytes"]) - float(before.detail["memory_bytes"])) / n


def _rises(series: Sequence[float]) -> bool:
    p_value = mann_kendall(series)
    return not isinstance(p_value, Unknown) and p_value < _LEVEL
