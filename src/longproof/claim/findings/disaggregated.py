"""Reads what `probe/disaggregated` asked: whether KV goes from one side to the other, whole, and worth its while.

What an answer says of cached tokens proves no transfer; the decode side's own count of computed tokens does. Texts are
compared only where the decode side repeats its own: greedy decoding is not bit-stable on every engine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from longproof.claim.findings.disaggregated_alone import against_alone
from longproof.claim.findings.words import told
from longproof.claim.pd_requests import PROBE, Handed, handed_of
from longproof.claim.sampled import Sampled, sampled_statement
from longproof.claim.statements import Finding, NotShown, Severity, Standing, Statement
from longproof.claim.view import EvidenceView
from longproof.domain.measure import Measured, Provenance
from longproof.domain.outcome import tokens_produced
from longproof.domain.outcome_words import counted
from longproof.domain.units import format_bytes, format_ns, format_tokens
from longproof.stats.proportion import clopper_pearson

_COMPUTED_AGAIN = 0.5
"""The last, partial block may be computed on the decode side; half a prompt is no partial block."""
_STAGES = {
    "prefill": "the prefill side had not answered",
    "transfer": "the prefill side had handed over, and the decode side had not given a token",
    "decode": "tokens came, but not all of them",
}
_FAILED = {
    "prefill": ("disaggregated.prefill_failed", "failed on the prefill side"),
    "bootstrap": ("disaggregated.bootstrap_failed", "failed between the sides before anything was transferred"),
    "transfer": ("disaggregated.transfer_failed", "failed on the decode side while its KV was transferred"),
}


def read(view: EvidenceView) -> Iterator[Statement | Finding | NotShown]:
    """Times of each side, what was transferred, how often it worked, and each failure by its stage."""
    handed = handed_of(view)
    if not handed:
        yield from _no_pair(view)
        return
    for length in sorted({item.length for item in handed}):
        yield from _at_length([item for item in handed if item.length == length], length)
    yield from _failures(handed)
    yield from _timeouts(view, handed)
    yield from _recomputed(handed)
    yield from against_alone(view)


def _no_pair(view: EvidenceView) -> Iterator[NotShown]:
    if any(note.what == "no_pair" for _, note in view.notes(PROBE)):
        yield NotShown(
            topic="disaggregated",
            text="Whether KV goes from a prefill server to a decode server: one server was given.",
            how="name both with --prefill URL --decode URL",
        )


def _at_length(handed: Sequence[Handed], length: int) -> Iterator[Statement]:
    single = [item for item in handed if item.good and "/together/" not in item.key]
    conditions = {"cache": "cold", "load": "idle: one request at a time", "through": "prefill and decode side"}
    tokens = f"a prompt of {format_tokens(length)} tokens through both sides"
    moved = [item for item in single if item.external is not None]
    spans = {
        "pd_prefill_time": (f"The prefill side's part, {tokens}", [(i.key, i.prefill_s) for i in single]),
        "pd_decode_ttft": (
            f"The decode side from being asked to its first token, transfer included, {tokens}",
            [(i.key, i.decode_ttft_s) for i in single],
        ),
        "pd_transferred": (
            f"Share of the prompt that the decode side took over instead of computing it, {tokens}",
            [(i.key, (i.external or 0.0) / length) for i in moved],
        ),
    }
    for metric, (subject, values) in spans.items():
        yield sampled_statement(
            metric,
            [Sampled(value=value, key=key) for key, value in values if value is not None],
            probe=PROBE,
            subject=subject,
            at_tokens=length,
            conditions={**conditions, **_transfer(moved)} if metric == "pd_transferred" else conditions,
            why_none="none completed" if not single else "the decode side's metrics do not say",
        )
    yield _success(handed, length)


def _transfer(moved: Sequence[Handed]) -> dict[str, str]:
    """What the connector says that it moved."""
    known = [item for item in moved if item.bytes_moved]
    if not known:
        return {}
    size = sum(item.bytes_moved or 0.0 for item in known) / len(known)
    seconds = [item.transfer_s for item in known if item.transfer_s is not None]
    found = {"transferred": f"{format_bytes(size)} a request"}
    return found | ({"transfer_time": format_ns(1e9 * sum(seconds) / len(seconds))} if seconds else {})


def _success(handed: Sequence[Handed], length: int) -> Statement:
    good = sum(item.good for item in handed)
    others = counted(item.timeline for item in handed if not item.good)
    rest = f"; the others: {others}" if others else ""
    spread = clopper_pearson(good, len(handed))
    return Statement(
        id=f"{PROBE}.pd_success.{length}",
        metric="pd_success",
        text=f"{good} of {len(handed)} prompts of {format_tokens(length)} tokens went through both sides{rest}.",
        standing=Standing.SHOWN if good else Standing.REFUTED,
        unit="fraction",
        value=Measured(value=good / len(handed), provenance=Provenance.MEASURED, source="completed / sent"),
        n=len(handed),
        at_tokens=length,
        interval=spread,
        samples=tuple(float(item.good) for item in handed),
        conditions={"cache": "cold", "through": "prefill and decode side"},
        evidence=tuple(item.key for item in handed),
    )


def _failures(handed: Sequence[Handed]) -> Iterator[Finding]:
    for stage, (finding_id, words) in _FAILED.items():
        failed = [item for item in handed if item.failed_at == stage]
        if not failed:
            continue
        first = failed[0]
        number = 1 + sum(item.length == first.length for item in handed[: handed.index(first)])
        yield Finding(
            id=finding_id,
            severity=Severity.FAULT,
            text=(
                f"{len(failed)} of {len(handed)} requests {words}, first the request no. {number} of"
                f" {format_tokens(first.length)} tokens: {told(first.timeline, tokens_produced(first.timeline))}"
            ),
            evidence=tuple(item.key for item in failed),
            details={"stage": stage, "length": str(first.length), "number": str(number), "failed": str(len(failed))},
        )


def _timeouts(view: EvidenceView, handed: Sequence[Handed]) -> Iterator[Finding]:
    late = [(item.late_at, item) for item in handed if item.late_at is not None]
    if late:
        stages = Counter(stage for stage, _ in late)
        worst = stages.most_common(1)[0][0]
        yield Finding(
            id="disaggregated.timeout",
            severity=Severity.FAULT,
            text=(
                f"{len(late)} of {len(handed)} requests did not end within"
                f" {view.header.protocol.request_timeout_s:g} s: {_STAGES[worst or 'decode']} (stage {worst},"
                f" {stages[worst]} of {len(late)})."
            ),
            evidence=tuple(item.key for _, item in late),
            details={"stage": str(worst), "length": str(late[0][1].length)},
        )


def _recomputed(handed: Sequence[Handed]) -> Iterator[Finding]:
    known = [item for item in handed if item.good and item.computed is not None]
    again = [item for item in known if (item.computed or 0.0) >= _COMPUTED_AGAIN * item.length]
    if again:
        most = max(again, key=lambda item: item.computed or 0.0)
        yield Finding(
            id="disaggregated.recomputed",
            severity=Severity.FAULT,
            text=(
                f"The decode side computed the prompt itself in {len(again)} of {len(known)} requests, up to"
                f" {format_tokens(most.computed or 0)} of {format_tokens(most.length)} tokens by its own count:"
                " what the prefill side did was for nothing."
            ),
            evidence=tuple(item.key for item in again),
            details={"computed": f"{most.computed:.0f}", "length": str(most.length)},
        )
