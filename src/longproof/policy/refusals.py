"""Every refusal the controller can utter: status, code, sentence, numbers, and when to come back."""

from __future__ import annotations

import math

from longproof.domain.shapes import RequestShape
from longproof.domain.units import NS_PER_MS, NS_PER_S, format_ns, format_tokens
from longproof.domain.verdict import AdmissionVerdict, Reject
from longproof.policy.actions import Refusal
from longproof.policy.admission import decide
from longproof.policy.arrivals import Arrival
from longproof.policy.choice import Score
from longproof.policy.claim_gate import Excess
from longproof.policy.drain import LEAST_RETRY_NS, retry_after_ns
from longproof.policy.replica import Replica

BAD_REQUEST = 400
NOT_FOUND = 404
TOO_MANY = 429
UNAVAILABLE = 503


def unknown_model(arrival: Arrival) -> Refusal:
    """Nobody serves the model."""
    return Refusal(
        id=arrival.id, status=NOT_FOUND, code="model_not_found", reason=f"no replica serves the model '{arrival.model}'"
    )


def never_fits(arrival: Arrival, replicas: tuple[Replica, ...]) -> Refusal:
    """Not even an idle replica could hold it: the engine might leave it hanging for ever."""
    largest = max(replicas, key=lambda r: r.longest_tokens or 0)
    verdict: AdmissionVerdict | None = None
    for states, whole in largest.parts():  # a prefill stage holds the input alone
        output_tokens = arrival.output_tokens if whole else 0
        shape = RequestShape(content_tokens=arrival.input_tokens, output_tokens=output_tokens)
        verdict = decide(shape, states, largest.rule.admission)
        if isinstance(verdict, Reject):
            break
    assert isinstance(verdict, Reject)
    return Refusal(
        id=arrival.id,
        status=BAD_REQUEST,
        code="context_length_exceeded",
        reason=verdict.reason,
        limit=verdict.binding.available,
        actual=verdict.binding.needed,
        unit=verdict.binding.unit,
    )


def not_proven(arrival: Arrival, excess: Excess) -> Refusal:
    """Beyond what the claim shows."""
    return Refusal(
        id=arrival.id,
        status=BAD_REQUEST,
        code=excess.code,
        reason=excess.reason,
        limit=excess.limit,
        actual=excess.actual,
        unit="tokens",
    )


def no_proven_pool(arrival: Arrival, pool: str) -> Refusal:
    """The claim sends it to a pool that does not serve the model."""
    return Refusal(
        id=arrival.id,
        status=BAD_REQUEST,
        code="beyond_proven_length",
        reason=f"a request of this length is proven for the pool '{pool}' alone, which does not serve {arrival.model}",
    )


def nobody_up(arrival: Arrival, wait_ns: int | None) -> Refusal:
    """All replicas of the model are down."""
    return Refusal(
        id=arrival.id,
        status=UNAVAILABLE,
        code="no_replica",
        reason=f"no replica of '{arrival.model}' is up",
        retry_after_ns=retry_after_ns(wait_ns),
    )


def engines_busy(arrival: Arrival, wait_ns: int) -> Refusal:
    """Every replica's engine has asked to be left alone for longer than is waited out here."""
    return Refusal(
        id=arrival.id,
        status=TOO_MANY,
        code="engine_busy",
        reason=f"every replica of '{arrival.model}' has asked not to be sent anything for {format_ns(wait_ns)}",
        retry_after_ns=max(LEAST_RETRY_NS, -(-wait_ns // NS_PER_S) * NS_PER_S),  # theirs, however long: it is no guess
    )


def queue_full(arrival: Arrival, waiting: int, limit: int, wait_ns: int | None, *, tenant: bool) -> Refusal:
    """As many wait already as may."""
    whose = f"of tenant '{arrival.tenant}' " if tenant else ""
    return Refusal(
        id=arrival.id,
        status=TOO_MANY,
        code="tenant_queue_full" if tenant else "queue_full",
        reason=f"{format_tokens(waiting)} requests {whose}wait already; at most {format_tokens(limit)} may",
        limit=limit,
        actual=waiting + 1,
        unit="requests",
        retry_after_ns=retry_after_ns(wait_ns),
    )


def over_budget(arrival: Arrival, left_token_ns: int, wanted_token_ns: int, wait_ns: int) -> Refusal:
    """The tenant's KV budget does not cover it yet."""
    left, wanted = max(0, left_token_ns) // NS_PER_S, -(-wanted_token_ns // NS_PER_S)
    return Refusal(
        id=arrival.id,
        status=TOO_MANY,
        code="tenant_kv_budget",
        reason=f"tenant '{arrival.tenant}' has {format_tokens(left)} KV token-seconds left, this request is expected to"
        f" use {format_tokens(wanted)}",
        limit=left,
        actual=wanted,
        unit="token-seconds",
        retry_after_ns=retry_after_ns(wait_ns),
    )


def too_late(
    arrival: Arrival, predicted_ns: int, limit_ns: int, scores: tuple[Score, ...], *, deadline: bool
) -> Refusal:
    """The first token would come too late: refused now, while the client can still go elsewhere."""
    what = "its deadline is" if deadline else "the promise is"
    return Refusal(
        id=arrival.id,
        status=TOO_MANY,
        code="deadline_unreachable" if deadline else "ttft_slo",
        reason=f"the first token is expected in {format_ns(predicted_ns)}; {what} {format_ns(max(0, limit_ns))}",
        limit=max(0, limit_ns) // NS_PER_MS,
        actual=-(-predicted_ns // NS_PER_MS),
        unit="ms",
        retry_after_ns=retry_after_ns(predicted_ns - max(0, limit_ns)),
        scores=scores,
    )


def too_cold(arrival: Arrival, cached_tokens: int, least_share: float, scores: tuple[Score, ...]) -> Refusal:
    """Less of it is cached here than its model's rule asks for."""
    least = math.ceil(least_share * arrival.input_tokens)
    return Refusal(
        id=arrival.id,
        status=TOO_MANY,
        code="cache_hit_floor",
        reason=f"{format_tokens(cached_tokens)} of its {format_tokens(arrival.input_tokens)} input tokens are cached"
        f" here; '{arrival.model}' takes requests from {format_tokens(least)}",
        limit=least,
        actual=cached_tokens,
        unit="tokens",
        retry_after_ns=retry_after_ns(None),
        scores=scores,
    )


def waited_too_long(arrival: Arrival, waited_ns: int, limit_ns: int, wait_ns: int | None, *, deadline: bool) -> Refusal:
    """It waited until its deadline, or as long as anybody may: `limit_ns`. `wait_ns`: what others wait now."""
    why = "until its deadline" if deadline else f"for {format_ns(waited_ns)}, as long as any request may"
    return Refusal(
        id=arrival.id,
        status=UNAVAILABLE,
        code="deadline_passed" if deadline else "queue_timeout",
        reason=f"it waited {why}",
        limit=limit_ns // NS_PER_MS,
        actual=waited_ns // NS_PER_MS,
        unit="ms",
        retry_after_ns=retry_after_ns(wait_ns),
    )
