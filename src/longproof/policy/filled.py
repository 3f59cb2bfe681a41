"""How much of what requests hold is in the cache by now: the part of the books that an engine's usage figure shows.

counting, or behind others        nothing: its engine has not begun with it
prefilling, first of its replica  as many steps as it should have done since the one before it was done, and the
                                  step at hand, whose blocks are taken when it begins; what is left of that step
                                  goes to the next
streaming                         its input and what was heard of its output
answering unseen                  its input and what streams beside it would have by now
"""

from __future__ import annotations

from collections.abc import Iterable

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
    left = 0 if step is None else step
    for place, request in enumerate(requests):
        done = 0
        if place == 0 and request.prefill_ns:
            began_ns = max(request.dispatched_ns, replica.prefilled_at_ns)
            share = min(1.0, max(0, now_ns - began_ns) / request.prefill_ns)
            done = int(share * request.booked_tokens)
            done -= done % step if step else 0
        taken = min(left, request.booked_tokens - done)
        left -= taken
        known = request.arrival.input_tokens - request.booked_tokens
        filled[request.arrival.id] = known + done + taken if done + taken else 0
