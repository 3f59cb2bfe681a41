"""The one sentence above a claim, built from its statements and nothing else."""

from __future__ import annotations

from collections.abc import Sequence

from longproof.claim.statements import Finding, Severity, Standing, Statement
from longproof.claim.view import EvidenceView
from longproof.domain.measure import Measured, value_or_none
from longproof.domain.units import format_ns, format_tokens

_LONGEST_REASON = 200


def headline_of(view: EvidenceView, statements: Sequence[Statement], findings: Sequence[Finding]) -> str:
    """``demo on llama.cpp b7000 served up to 4,096 tokens (prompt + output), 3 of 3 times, one request at a time; a
    cold prompt of 4,000 tokens had its first token after 3.2 s (mean, n = 3).``"""
    parts = [f"{_subject(view)} {_reach(view, statements)}"]
    first_token = _first_token(statements)
    if first_token:
        parts.append(first_token)
    parts += _effective(statements)
    faults = sum(finding.severity is Severity.FAULT for finding in findings)
    if faults:
        parts.append(f"{faults} fault{'s' if faults > 1 else ''} found, so results cannot be trusted as they are")
    sentence = "; ".join(parts) + "."
    return sentence if view.complete else f"Unfinished run: {sentence}"


def _subject(view: EvidenceView) -> str:
    deployment = view.header.deployment
    model = value_or_none(deployment.model) or "A model of unknown name"
    version = value_or_none(deployment.engine_version)
    engine = "an OpenAI-compatible server" if deployment.engine.value == "openai" else deployment.engine.value
    return f"{model} on {engine}{f' {version}' if version else ''}"


def _reach(view: EvidenceView, statements: Sequence[Statement]) -> str:
    context = next((item for item in statements if item.metric == "context" and item.standing is Standing.SHOWN), None)
    if context is not None and isinstance(context.value, Measured):
        tokens = format_tokens(context.value.value)
        return f"served up to {tokens} tokens (prompt + output), {_times(context.n)}, one request at a time"
    if any(item.metric == "context" and _nothing(item) for item in statements):
        return "completed no length that was asked for"
    longest = _longest(statements, "success_rate")
    if longest is None or not isinstance(longest.value, Measured) or longest.at_tokens is None:
        return f"was asked nothing that shows how long a prompt it serves{_why_nothing(view)}"
    good = round(longest.value.value * longest.n)
    return f"completed cold prompts of {format_tokens(longest.at_tokens)} tokens {good} of {longest.n} times"


def _nothing(context: Statement) -> bool:
    """Refuted, or every request was turned away for load: nothing completed either way."""
    return context.standing is Standing.REFUTED or bool(context.standing is Standing.NOT_SHOWN and context.evidence)


def _why_nothing(view: EvidenceView) -> str:
    """Why no prompt of a promised length could be built, where that is so."""
    for _, note in view.notes("calibration"):
        if note.what == "length_unproven":
            reason = " ".join(str(note.detail.get("reason", "")).split())
            return f": {reason[:_LONGEST_REASON]}" if reason else ""
    return ""


def _times(n: int) -> str:
    return "once (n = 1)" if n == 1 else f"{n} of {n} times"


def _first_token(statements: Sequence[Statement]) -> str | None:
    ttft = _longest(statements, "ttft")
    if ttft is None or not isinstance(ttft.value, Measured) or ttft.at_tokens is None:
        return None
    size = "n = 1" if ttft.n == 1 else f"mean, n = {ttft.n}"
    tokens = format_tokens(ttft.at_tokens)
    return f"a cold prompt of {tokens} tokens had its first token after {format_ns(ttft.value.value * 1e9)} ({size})"


def _effective(statements: Sequence[Statement]) -> list[str]:
    """``effective context (85 % right, worst of 4 families) proven to 8,128 and lost by 32,512 tokens``; nothing where
    it was not asked."""
    said = [item for item in statements if item.metric == "effective_context"]
    if not said:
        return []
    reached = {item.standing: item.value.value for item in said if isinstance(item.value, Measured)}
    words = [
        f"{word} {format_tokens(reached[standing])}"
        for standing, word in ((Standing.SHOWN, "proven to"), (Standing.REFUTED, "lost by"))
        if standing in reached
    ]
    found = f"{' and '.join(words)} tokens" if words else "undecided at every length that was asked"
    families = said[0].conditions["families"].split(",")
    whose = families[0] if len(families) == 1 else f"worst of {len(families)} families"
    return [f"effective context ({100 * float(said[0].conditions['threshold']):g} % right, {whose}) {found}"]


def _longest(statements: Sequence[Statement], metric: str) -> Statement | None:
    found = [item for item in statements if item.metric == metric and item.standing is Standing.SHOWN]
    return max(found, key=lambda item: item.at_tokens or 0, default=None)
