"""Reads what `probe/conversation` asked: what each turn cost, and whether later turns paid for what was already there.

A conversation is one observation: its turns resemble each other. The server's own report of cached tokens is believed
where it admits to a cache; that nothing is reused must also show in the times.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from longproof.claim.cached import shared_prefix_tokens
from longproof.claim.findings.conversation_talks import PROBE, Talk, Turn, prices, talks_of
from longproof.claim.metrics import METRICS
from longproof.claim.sampled import Sampled, describe_spread, sampled_statement
from longproof.claim.statements import Finding, NotShown, Severity, Standing, Statement
from longproof.claim.view import EvidenceView
from longproof.domain.measure import Interval, Measured, Provenance, Unknown, value_or_none
from longproof.domain.units import format_tokens
from longproof.stats import mean
from longproof.stats.ratio import paired_ratio
from longproof.stats.tables import fisher_higher
from longproof.stats.two_samples import mann_whitney

ALPHA = 0.01
_LITTLE = 0.1
_KEPT = 0.8
_LOST = 0.5
_FULL_PRICE = 0.5
_FULL_PRICE_UNTOLD = 0.7
"""Without a report of cached tokens only the times speak, and must be clearer."""
_MORE_LOST = 0.3


def read(view: EvidenceView) -> Iterator[Statement | Finding | NotShown]:
    """Statements per turn and number of conversations, and the two ways in which a cache fails a conversation."""
    held = talks_of(view)
    for concurrency, talks in held.items():
        yield from _turns(concurrency, talks)
    shared = shared_prefix_tokens(view, PROBE)
    cold = list(_every_turn_cold(held, shared))
    yield from cold
    if not cold:
        yield from _cache_lost(view, held)
    yield from _server_gone(view)
    yield from _not_held(view)


def _turns(concurrency: int, talks: Sequence[Talk]) -> Iterator[Statement]:
    for turn in range(1, max(len(talk.turns) for talk in talks) + 1):
        here = [talk for talk in talks if len(talk.turns) >= turn]
        conditions = _conditions(concurrency, turn, [talk.turns[turn - 1] for talk in here])
        subject = f"turn {turn}, {concurrency} conversations at once" if concurrency > 1 else f"turn {turn}"
        times = [Sampled(value=talk.turns[turn - 1].ttft_s, key=talk.turns[turn - 1].key) for talk in here]
        yield _named(
            sampled_statement(
                "conversation_ttft",
                times,
                probe=PROBE,
                subject=f"Time to first token of {subject}",
                at_tokens=None,
                conditions=conditions,
                why_none="no such turn was answered",
            ),
            concurrency,
            turn,
        )
        if turn > 1:
            yield from _against_first(here, turn, concurrency, subject, conditions)


def _against_first(
    talks: Sequence[Talk], turn: int, concurrency: int, subject: str, conditions: dict[str, str]
) -> Iterator[Statement]:
    found = paired_ratio([(talk.turns[turn - 1].ttft_s, talk.turns[0].ttft_s) for talk in talks])
    assert not isinstance(found, Unknown)  # callers never pass an empty list
    metric = "conversation_ttft_ratio"
    yield Statement(
        id=f"{PROBE}.{metric}.c{concurrency}.turn{turn}",
        metric=metric,
        text=(
            f"Time to first token of {subject} is {found.value:.3g} of that of turn 1"
            f" {describe_spread(metric, found.n, found.interval)}."
        ),
        standing=Standing.SHOWN,
        unit="ratio",
        value=Measured(value=found.value, provenance=Provenance.MEASURED, source=METRICS[metric].formula),
        n=found.n,
        interval=found.interval if isinstance(found.interval, Interval) else None,
        samples=tuple(talk.turns[turn - 1].ttft_s / talk.turns[0].ttft_s for talk in talks),
        conditions=conditions,
        evidence=tuple(key for talk in talks for key in (talk.turns[0].key, talk.turns[turn - 1].key)),
    )
    shares: list[Sampled] = []
    for talk in talks:
        before, this = talk.turns[turn - 2], talk.turns[turn - 1]
        if this.cached_tokens is not None and before.prompt_tokens:
            shares.append(Sampled(value=this.cached_tokens / before.prompt_tokens, key=this.key))
    yield _named(
        sampled_statement(
            "conversation_cached_fraction",
            shares,
            probe=PROBE,
            subject=f"Share of the prompt before that was cached by the server's word, {subject}",
            at_tokens=None,
            conditions=conditions,
            why_none="the server reports no cached tokens",
        ),
        concurrency,
        turn,
    )


def _conditions(concurrency: int, turn: int, turns: Sequence[Turn]) -> dict[str, str]:
    lengths = [item.prompt_tokens for item in turns if item.prompt_tokens is not None]
    new = [
        item.prompt_tokens - item.cached_tokens
        for item in turns
        if item.prompt_tokens is not None and item.cached_tokens is not None
    ]
    return {
        "concurrency": str(concurrency),
        "turn": str(turn),
        "load": f"{concurrency} conversations, all at the same turn",
        "prompt_tokens": _mean_tokens(lengths),
        "uncached_tokens": _mean_tokens(new) if len(new) == len(turns) else "not reported",
    }


def _mean_tokens(counts: Sequence[int]) -> str:
    return f"{format_tokens(sum(counts) / len(counts))} (mean)" if counts else "unknown"


def _named(statement: Statement, concurrency: int, turn: int) -> Statement:
    return replace(statement, id=f"{PROBE}.{statement.metric}.c{concurrency}.turn{turn}")


def _every_turn_cold(held: dict[int, list[Talk]], shared: int) -> Iterator[Finding]:
    """With the fewest at once, where a cache has the least to hold: the times are those of a server that computes all
    again, beyond chance, and no report says otherwise."""
    if not held:
        return
    talks = held[min(held)]
    told = [turn.cached_tokens for talk in talks for _, turn in talk.later if turn.cached_tokens is not None]
    shares = [share for talk in talks for share in talk.kept_shares()]
    if any(tokens > shared for tokens in told) and max(shares, default=0.0) >= _LITTLE:
        return
    found = prices(talks)
    lowest = mean.lower_bound([math.log(price) for price in found], 1 - ALPHA)
    full = _FULL_PRICE if told else _FULL_PRICE_UNTOLD
    if isinstance(lowest, Unknown) or len(found) < 3 or math.exp(lowest) < full:
        return
    middle = math.exp(sum(math.log(price) for price in found) / len(found))
    said = "the server reports no cached tokens for them" if told else "the server reports no cached tokens at all"
    yield Finding(
        id="conversation.every_turn_cold",
        severity=Severity.CAUTION,
        text=(
            f"Later turns of a conversation pay for all that was said before: per token they took {middle:.2g} of what"
            f" the first turn took, at least {math.exp(lowest):.2g} with 99 % confidence ({len(found)} conversations),"
            f" and {said}."
        ),
        evidence=tuple(turn.key for talk in talks for turn in talk.turns),
        details={"price": f"{middle:.4g}", "conversations": str(len(found))},
    )


def _cache_lost(view: EvidenceView, held: dict[int, list[Talk]]) -> Iterator[Finding]:
    """Kept with few conversations, lost with more: by the reports, or, where there are none, by the times."""
    levels = sorted(held)
    for at, concurrency in enumerate(levels):
        for fewer in levels[:at]:
            found = _lost_by_report(held[fewer], held[concurrency]) or _lost_by_time(held[fewer], held[concurrency])
            if found is None:
                continue
            how, p = found
            longest = max((turn.prompt_tokens or 0 for talk in held[concurrency] for turn in talk.turns), default=0)
            yield Finding(
                id="conversation.cache_lost",
                severity=Severity.CAUTION,
                text=(
                    f"With {concurrency} conversations at once later turns lose what was cached, with {fewer} they keep"
                    f" it: {how} (p = {p:.2g}). {_room(view, concurrency, longest)}"
                ),
                evidence=tuple(turn.key for talk in held[concurrency] for turn in talk.turns),
                details={"concurrency": str(concurrency), "kept_at": str(fewer)},
            )
            return


def _lost_by_report(few: Sequence[Talk], many: Sequence[Talk]) -> tuple[str, float] | None:
    kept = [share for talk in few for share in talk.kept_shares()]
    shares = [share for talk in many for share in talk.kept_shares()]
    if not kept or not shares or sorted(kept)[len(kept) // 2] < _KEPT:
        return None
    lost_before, lost = sum(share < _LOST for share in kept), sum(share < _LOST for share in shares)
    p = fisher_higher(lost, len(shares), lost_before, len(kept))
    if p > ALPHA or lost / len(shares) - lost_before / len(kept) < _MORE_LOST:
        return None
    return f"{lost} of {len(shares)} later turns found less than half of it, before {lost_before} of {len(kept)}", p


def _lost_by_time(few: Sequence[Talk], many: Sequence[Talk]) -> tuple[str, float] | None:
    if any(talk.kept_shares() for talk in (*few, *many)):
        return None
    cheap, dear = prices(few), prices(many)
    test = mann_whitney(dear, cheap)
    if isinstance(test, Unknown) or test.p_higher > ALPHA:
        return None
    middles = [math.exp(sum(map(math.log, values)) / len(values)) for values in (cheap, dear)]
    if middles[0] >= _LOST or middles[1] < _FULL_PRICE_UNTOLD:
        return None
    return f"per token they took {middles[1]:.2g} of what the first turn took, before {middles[0]:.2g}", test.p_higher


def _room(view: EvidenceView, concurrency: int, longest_tokens: int) -> str:
    """Whether they could have been kept at all."""
    capacity = value_or_none(view.header.deployment.kv_capacity_tokens)
    need = concurrency * longest_tokens
    if capacity is None or not longest_tokens:
        return "The engine does not tell how much its KV pool holds."
    fits = "would hold them" if need <= capacity else "cannot hold them"
    return f"Together they have {format_tokens(need)} tokens; the KV pool of {format_tokens(capacity)} {fits}."


def _server_gone(view: EvidenceView) -> Iterator[Finding]:
    died = [(key, note) for key, note in view.notes(PROBE) if note.what == "died"]
    if died:
        key, note = died[0]
        again = "was started again" if note.detail.get("restarted") else "did not come back"
        yield Finding(
            id="conversation.server_gone",
            severity=Severity.FAULT,
            text=f"The server stopped producing tokens during the conversations and {again}.",
            evidence=(key,),
        )


def _not_held(view: EvidenceView) -> Iterator[NotShown]:
    for _, note in view.notes(PROBE):
        if note.what == "length_unproven":
            yield NotShown(
                topic="conversation_length",
                text=f"What conversations cost: a prompt could not be built ({note.detail.get('reason')}).",
                how="let longproof choose the lengths, or --route completions where the server takes token ids",
            )
            return
