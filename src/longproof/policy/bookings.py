"""Every change to where a request is, with all the accounts that change with it.

    what moves                ledger   replica backlog   tenant: running, waiting, held, service   queue
    queue / unqueue                                      waiting                                    ✓
    book / leave                ✓            ✓           running, held
    send, unsend, ended                                  service
    prefilled                   ✓            ✓
    drop (the end)              ✓            ✓           all, budget settled                        ✓

Nothing else touches these accounts, so what one line takes another gives back.
"""

from __future__ import annotations

from dataclasses import replace

from longproof.policy.arrivals import Ended
from longproof.policy.choice import Router
from longproof.policy.controller_config import QueueRule
from longproof.policy.output_measure import OutputMeasure
from longproof.policy.placing import Group, Placing
from longproof.policy.replica import Replica
from longproof.policy.request_state import Phase, Request

_SOON = 0.25
"""Whose prefill runs alone also answers alone, if all it may answer takes no more than this of its prefill's time: its
long context slows every step of those beside it, and they would hardly wait longer."""
_OUTPUT_WEIGHT = 2
"""An output token counts as so many input tokens of service (as in VTC, arXiv 2401.00588, section 3)."""


class Bookings:
    """Keeps the accounts of all requests in step."""

    def __init__(
        self,
        replicas: dict[str, Replica],
        router: Router,
        outputs: OutputMeasure,
        placing: Placing,
        queue: QueueRule,
    ) -> None:
        self._replicas = replicas
        self._router = router
        self._outputs = outputs
        self._placing = placing
        self._rule = queue
        self.changes = self.takes = 0
        """How often anything that others are told of has changed, and how often more was booked at a replica."""

    def queue(self, request: Request, group: Group) -> None:
        """It waits from now on."""
        request.tenant.waiting += 1
        request.phase = Phase.WAITING
        self.size(request, group)
        group.queue.add(request.ticket)

    def unqueue(self, request: Request, group: Group) -> None:
        """It waits no longer."""
        group.queue.remove(request.ticket)
        request.tenant.waiting -= 1
        request.phase = Phase.DECIDING

    def book(self, request: Request, replica: Replica, now_ns: int) -> None:
        """Its room at `replica` is taken; its prefill is charged there from now on."""
        self.changes += 1
        self.takes += 1
        request.replica, request.booked_ns = replica.name, now_ns
        if request.counted:
            request.booked_tokens = request.uncached_tokens
            request.prefill_ns = replica.prefill.ns(request.uncached_tokens, request.cached_tokens)
        else:  # an upper bound holds blocks, but is no work: it would keep others from a replica it may never go to
            request.booked_tokens = request.prefill_ns = 0
        replica.begin_prefill(request.booked_tokens, request.prefill_ns, now_ns)
        request.prefilled_by_ns = replica.busy_until_ns
        request.tenant.running += 1
        request.hold(request.arrival.input_tokens, now_ns)

    def send(self, request: Request, replica: Replica, now_ns: int) -> None:
        """It goes to the engine."""
        if request.counted and self._placing.runs_alone(request, replica):
            replica.stand_alone(request.arrival.id, now_ns)
        request.phase = Phase.PREFILLING
        request.sent_to = replica.name
        request.dispatched_ns = now_ns
        request.attempts += 1
        output = self._outputs.expected(request.arrival.tenant, request.arrival.model) or 0
        request.service_ns = request.prefill_ns + _output_service(replica, min(output, request.arrival.output_tokens))
        request.tenant.serve(request.service_ns)
        self._router.on_dispatch(request.arrival, replica.name, now_ns)

    def prefilled(self, request: Request, now_ns: int) -> None:
        """Its first token came, or by now should have."""
        self.changes += 1
        assert request.replica is not None
        replica = self._replicas[request.replica]
        replica.end_prefill(request.booked_tokens, request.prefill_ns, request.dispatched_ns, now_ns)
        if request.arrival.output_tokens * replica.decode_ns_per_token > _SOON * request.prefill_ns:
            replica.stand_no_longer_alone(request.arrival.id, self._rule.overdue_share, now_ns)
        replica.hand_over(request.arrival.id)
        replica.begin_answer()
        request.phase, request.output_at_ns = Phase.DECODING, now_ns

    def leave(self, request: Request, now_ns: int) -> None:
        """It no longer has a place at its replica. Nothing happens if it had none."""
        if request.replica is None:
            return
        self.changes += 1
        replica = self._replicas[request.replica]
        if request.phase is Phase.DECODING:
            replica.end_answer(request.reported_ns, request.foreseen_ns)
            request.reported_ns, request.foreseen_ns = 0, 0.0
        else:
            sent_ns = request.dispatched_ns if request.phase is Phase.PREFILLING else None
            replica.end_prefill(request.booked_tokens, request.prefill_ns, sent_ns, now_ns)
        replica.stand_no_longer_alone(request.arrival.id, self._rule.overdue_share, now_ns)
        replica.release(request.arrival.id, request.booked_ns, now_ns)
        self._off(request, now_ns)
        request.phase = Phase.DECIDING

    def lost(self, request: Request, now_ns: int) -> None:
        """Its replica has forgotten everything, and the replica's own accounts with it."""
        self.changes += 1
        self._off(request, now_ns)
        if request.phase is not Phase.COUNTING:
            request.phase = Phase.LOST

    def recharge(self, request: Request, now_ns: int) -> None:
        """Its true length became known while it is on a replica."""
        if request.replica is None:
            return
        replica = self._replicas[request.replica]
        reached = request.arrival.input_tokens + request.output_tokens
        entry = max(reached, self._placing.entry_tokens(request, replica))
        if replica.correct(request.arrival.id, request.arrival.input_tokens, entry):
            request.charged_tokens = entry
            self.changes += 1
        request.hold(reached, now_ns)

    def grow(self, request: Request, output_tokens: int, now_ns: int) -> bool:
        """It has produced so many tokens. False: the ledger has no room for them."""
        # the first token's time is not in it, but that of the prefill
        more, took_ns = output_tokens - max(1, request.output_tokens), now_ns - request.output_at_ns
        request.output_tokens, request.output_at_ns = output_tokens, now_ns
        if request.replica is None:
            return True
        foreseen_ns = self._replicas[request.replica].decoded(more, took_ns)
        if foreseen_ns:
            request.reported_ns += took_ns
            request.foreseen_ns += foreseen_ns
        tokens = request.arrival.input_tokens + output_tokens
        request.hold(tokens, now_ns)
        if tokens <= request.charged_tokens:
            return True
        if not self._replicas[request.replica].grow(request.arrival.id, tokens):
            return False
        request.charged_tokens = tokens
        self.changes += 1
        return True

    def drop(self, request: Request, group: Group, now_ns: int) -> None:
        """It is over: everything it had is given back."""
        if request.phase is Phase.WAITING:
            self.unqueue(request, group)
        self.leave(request, now_ns)
        request.hold(0, now_ns)
        request.tenant.here -= 1
        request.tenant.settle(request.expected_token_ns, request.used_token_ns, now_ns)
        self.changes += request.expected_token_ns > 0
        group.stop_emptying(request.arrival.id)

    def unsend(self, request: Request, now_ns: int) -> None:
        """The engine refused it: it was not served, and nothing of it is cached there."""
        request.tenant.serve(-request.service_ns)
        request.service_ns = 0
        self._ended_there(request, None, now_ns, kept=False)
        self.leave(request, now_ns)
        request.phase = Phase.DECIDING  # also where its replica had forgotten it before
        request.watched = False  # its time may have come while it was there, where nobody waits

    def ended(self, request: Request, end: Ended, now_ns: int) -> None:
        """It is over at its engine: its tenant's service is corrected, and the router told what is cached now."""
        output = request.output_tokens if end.output_tokens is None else end.output_tokens
        cached = request.cached_tokens if end.cached_tokens is None else end.cached_tokens
        if request.replica is not None:
            replica, uncached = self._replicas[request.replica], max(0, request.arrival.input_tokens - cached)
            work_ns = replica.prefill.ns(uncached, cached) + _output_service(replica, output)
            request.tenant.serve(work_ns - request.service_ns)
            request.service_ns = work_ns
        self._ended_there(request, end.cached_tokens, now_ns, kept=request.phase is Phase.DECODING)

    def size(self, request: Request, group: Group) -> None:
        """Its size in the queue, should it wait: the prefill it would be, and what it would hold, on the group's first
        replica."""
        replica = group.replicas[0]
        request.ticket.work_ns = replica.prefill.ns(request.uncached_tokens, request.cached_tokens)
        request.ticket.tokens = self._placing.entry_tokens(request, replica)

    def _ended_there(self, request: Request, cached_tokens: int | None, now_ns: int, *, kept: bool) -> None:
        if request.sent_to is not None:
            self._router.on_end(request.arrival, request.sent_to, cached_tokens, now_ns, kept=kept)
            request.sent_to = None

    def _off(self, request: Request, now_ns: int) -> None:
        if request.replica is not None:
            request.replica = None
            request.charged_tokens = 0
            request.tenant.running -= 1
            request.hold(0, now_ns)


def with_length(request: Request, input_tokens: int, blocks: tuple[int, ...], *, by_text: int = 0) -> None:
    """Its exact length, from now on; or the best that anybody knows of it."""
    request.arrival = replace(request.arrival, input_tokens=input_tokens, blocks=blocks, exact=True, by_text=by_text)


def _output_service(replica: Replica, output_tokens: int) -> int:
    return int(_OUTPUT_WEIGHT * output_tokens * replica.prefill.ns_per_token)
