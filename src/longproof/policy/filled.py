"""How much of what requests hold is in the cache by now: the part of the books that an engine's usage figure shows.

counting, or behind others        nothing: its engine has not begun with it
prefilling, first of its replica  as many steps as it should have done since the one before it was done, and the
                                  step at hand, whose blocks are taken when it begins; what is left of that step
                                  goes to the next
                                  where the engine's own figure told how far it was, it goes on from there, as fast as
                                  it went between the last two figures; also from none of it: the first step's
                                  blocks show when it has ended
streaming                         its input and what was heard of its output
answering unseen                  its input and what streams beside it would have by now
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from longproof.policy.prefill_turns import SeenPrefill
from longproof.policy.replica import Replica
from longproof.policy.request_state import Phase, Request


def filled_tokens(replica: Replica, requests: Iterable[Request], now_ns: int) -> dict[str, int]:
    """Tokens by request, for those that hold anything at `replica`."""
    filled: dict[str, int] = {}
    prefilling: list[Request] = []
    for request in requests:
        if request.phase is Phase.PREFILLING:
            prefilling.append(request)
        elif request.phase is not Phase.DECODING:
            filled[request.arrival.id] = 0
        elif request.arrival.streamed:
            filled[request.arrival.id] = request.held_tokens
        else:
            made = (now_ns - request.output_at_ns) // replica.decode_ns_per_token
            filled[request.arrival.id] = request.arrival.input_tokens + min(made, request.arrival.output_tokens)
    prefilling.sort(key=lambda request: request.dispatched_ns)
    _prefilled(replica, prefilling, filled, now_ns)
    return filled


def _prefilled(replica: Replica, requests: list[Request], filled: dict[str, int], now_ns: int) -> None:
    step = replica.rule.step_tokens
    if step is not None:
        step = max(1, step - replica.decoding)  # each stream has its token of every step
    left = 0 if step is None else step
    for place, request in enumerate(requests):
        done = 0
        seen = replica.prefill_seen if place == 0 else None
        if seen is not None and seen.request_id == request.arrival.id:
            done = min(seen.tokens_at(now_ns), request.booked_tokens)
            left = max(0, left - (request.booked_tokens - done))
            filled[request.arrival.id] = _known(request) + done if done else 0
            continue
        if place == 0 and request.prefill_ns:
            took_ns = now_ns - replica.turns.began_ns(request.dispatched_ns)
            share = min(1.0, max(0, took_ns) / request.prefill_ns)
            done = int(share * request.booked_tokens)
            done -= done % step if step else 0
        taken = min(left, request.booked_tokens - done)
        left -= taken
        filled[request.arrival.id] = _known(request) + done + taken if done + taken else 0


def see_prefill(replica: Replica, requests: Sequence[Request], usage: float, now_ns: int) -> None:
    """The engine's usage, 0 to 1: what of it nobody else can have filled is the first prefill's. Only where one stage
    grows with the length, and the engine's figure counts nothing that is merely cached."""
    growing = [a for a in replica.ledger.accounts.values() if a.pool.need.grows]
    prefilling = [request for request in requests if request.phase is Phase.PREFILLING]
    if len(growing) != 1 or not prefilling or growing[0].pool.need.full_groups != 1:
        return
    first, account = min(prefilling, key=lambda request: request.dispatched_ns), growing[0]
    filled = filled_tokens(replica, requests, now_ns)
    filled[first.arrival.id] = 0
    others = replica.ledger.used_blocks(filled)[account.pool.name] + account.foreign_blocks
    tokens = (round(usage * account.pool.capacity_blocks) - others) * account.pool.need.block_tokens
    done = min(first.booked_tokens, max(0, tokens - _known(first)))
    before = replica.prefill_seen
    if before is None or before.request_id != first.arrival.id:
        before = SeenPrefill(
            request_id=first.arrival.id,
            tokens=0,
            at_ns=replica.turns.began_ns(first.dispatched_ns),
            ns_per_token=first.prefill_ns / max(1, first.booked_tokens),
        )
    replica.prefill_seen = before.then(done, now_ns, replica.rule.step_tokens or account.pool.need.block_tokens)


def _known(request: Request) -> int:
    """Of its input, what was cached when it was sent."""
    return request.arrival.input_tokens - request.booked_tokens
