"""Reads how the server came back after the load had stopped."""

from __future__ import annotations

from collections.abc import Iterator

from longproof.claim.overload_steps import PROBE, Overload, Recovery
from longproof.claim.statements import Finding, NotShown, Severity, Standing, Statement
from longproof.domain.measure import Measured, Provenance, Unknown
from longproof.domain.units import format_ns

_IDLE_SAMPLES = 4
"""With fewer the idle server's band is not known."""
_ALPHA = 0.01


def recovery_statement(overload: Overload) -> Iterator[Statement | NotShown]:
    """The time to recover, or that it was not seen."""
    recovery = overload.recovery
    if recovery is None:
        yield NotShown(
            topic="overload_recovery",
            text="How long the server takes to recover: it was not asked after the load.",
            how="run the same command again: it resumes",
        )
        return
    took, why = recovery.recovered_ns, _unknown(overload, recovery)
    known = took is not None and why is None
    edge = f"{format_ns(recovery.band_ttft_ns)} to the first token"
    yield Statement(
        id=f"{PROBE}.overload_recovery",
        metric="overload_recovery",
        text=(
            f"{format_ns(max(0, took or 0))} after the load ended {recovery.in_a_row} requests in a row were as quick"
            f" as on the idle server (at most {edge})."
            if known
            else f"When the server is as quick again as before is not shown: {why or 'it was not seen'}."
        ),
        standing=Standing.SHOWN if known else Standing.NOT_SHOWN,
        unit="s",
        value=Measured(
            value=max(0, took) / 1e9, provenance=Provenance.MEASURED, source="first quick request - end of the load"
        )
        if took is not None and why is None
        else Unknown(reason=why or f"not within {format_ns(recovery.most_ns)}"),
        n=len(recovery.asked),
        conditions={"load": f"after {overload.steps[-1].label}; then one request at a time"},
        evidence=tuple(window.key for window in recovery.windows),
    )


def recovery_findings(overload: Overload) -> Iterator[Finding]:
    """Recovery that is slow, or does not come."""
    recovery = overload.recovery
    if recovery is None or _unknown(overload, recovery) is not None:
        return
    slow_after_ns = int(overload.idle.window.body.load.get("slow_after_ns", 1_000_000_000))
    took = recovery.recovered_ns
    keys = tuple(window.key for window in recovery.windows)
    if took is None:
        watched = recovery.windows[-1].body.ended_ns - recovery.ended_ns
        if _beyond_jitter(overload, recovery.verdicts.count(False)):
            yield Finding(
                id="overload.no_recovery",
                severity=Severity.FAULT,
                text=(
                    f"{format_ns(watched)} after the load had ended the server was still not as quick as before it"
                    f" ({len(recovery.asked)} requests, one at a time; at most"
                    f" {format_ns(recovery.band_ttft_ns)} to the first token was asked for)."
                ),
                evidence=keys,
            )
    elif took > slow_after_ns and _beyond_jitter(overload, recovery.slow_first):
        yield Finding(
            id="overload.slow_recovery",
            severity=Severity.CAUTION,
            text=(
                f"The server needed {format_ns(took)} after the load had ended until it was as quick as before it:"
                f" {recovery.slow_first} requests in a row, one at a time, were slower than any on the idle server by"
                " half or more."
            ),
            evidence=keys,
            details={"recovery": format_ns(took)},
        )


def _beyond_jitter(overload: Overload, slow: int) -> bool:
    """Whether so many slow requests are more than chance: of n + 1 requests alike the last is the slowest with a
    chance of 1 in n + 1, and here it is slower still by half."""
    return slow > 0 and (1 / (len(overload.idle.done) + 1)) ** slow <= _ALPHA


def _unknown(overload: Overload, recovery: Recovery) -> str | None:
    """Why nothing can be said, or None."""
    if recovery.interrupted:
        return "the run was interrupted between the load's end and recovery"
    if recovery.late and (recovery.recovered_ns is None or recovery.slow_first):
        return "the client itself was short of a processor then, and saw answers late"
    if len(overload.idle.done) < _IDLE_SAMPLES:
        return f"only {len(overload.idle.done)} requests completed on the idle server"
    return None
