"""May this request be served at all, and is it worth waiting? Asked before room is, in this order:

crowded    too many wait already, or the tenant's budget is spent        429, come back later (400 if never)
unfit      beyond what is proven, or beyond what any replica can hold    400, never
closed     no replica is up, or all have asked to be left alone          503, 429
hopeless   the first token would come after the promise or the deadline  429, come back later
"""

from __future__ import annotations

from dataclasses import replace

from longproof.domain.fleet import ReplicaState
from longproof.domain.units import NS_PER_S
from longproof.policy import refusals
from longproof.policy.actions import Refusal
from longproof.policy.arrivals import Arrival
from longproof.policy.claim_gate import GateAnswer, judge
from longproof.policy.controller_config import ControllerConfig
from longproof.policy.drain import MOST_RETRY_NS
from longproof.policy.placing import Group, Placement
from longproof.policy.queue import Ticket
from longproof.policy.request_state import Request
from longproof.policy.tenants import Tenants

_TYPICAL_OUTPUT_TOKENS = 256
_SHORTEST_SHARE = 0.6
"""Of an estimated length, what the true one may be: estimates err on the long side."""
_ESTIMATED = "its length is estimated, and at least that"


class Entrance:
    """The questions in front of the ledger."""

    def __init__(self, config: ControllerConfig, tenants: Tenants) -> None:
        self.config = config
        self._tenants = tenants

    def gate(self, arrival: Arrival) -> GateAnswer:
        """What the claim makes of it."""
        return judge(self.config.proven.get(arrival.model), arrival.input_tokens, arrival.output_tokens)

    def counted(self, arrival: Arrival) -> bool:
        """Whether it may be sent as it is: its length and, where there are many, the names of its blocks are known."""
        if arrival.exact or arrival.input_tokens < self.config.queue.count_from_tokens:
            return True
        return bool(arrival.by_text and arrival.blocks)

    def claim_ends_nearby(self, arrival: Arrival, gate: GateAnswer) -> bool:
        """Whether the claim would make something else of it, were it as short as its estimate may be wrong."""
        return arrival.by_text > 0 and not arrival.exact and self.gate(_shorter(arrival)) != gate

    def expected_token_ns(self, arrival: Arrival, group: Group) -> int:
        """KV token-nanoseconds it is expected to use: its input while it is prefilled and answered, half its output on
        average, on the group's first replica at leisure."""
        replica = group.replicas[0]
        output = min(arrival.output_tokens, _TYPICAL_OUTPUT_TOKENS)
        stay_ns = replica.prefill.ns(arrival.input_tokens) + output * replica.decode_ns_per_token
        return (arrival.input_tokens + output // 2) * stay_ns

    def expect(self, request: Request, group: Group) -> bool:
        """Books on its tenant's budget what it is expected to use, as far as its length is known by now. Whether there
        is a budget."""
        if request.tenant.rule.budget is None:
            return False
        wanted = self.expected_token_ns(request.arrival, group)
        request.tenant.expect(wanted - request.expected_token_ns)
        request.expected_token_ns = wanted
        return True

    def crowded(self, arrival: Arrival, group: Group, now_ns: int) -> Refusal | None:
        """Too many wait, or the budget is spent."""
        queue, tenant = self.config.queue, self._tenants.of(arrival.tenant)
        waiting = len(group.queue) + group.counting
        if waiting >= queue.most_waiting:
            return refusals.queue_full(
                arrival, waiting, queue.most_waiting, self.typical_wait_ns(group, now_ns), tenant=False
            )
        most = tenant.rule.most_waiting if tenant.rule.most_waiting is not None else queue.most_waiting_per_tenant
        if most is not None and tenant.waiting >= most:
            return refusals.queue_full(arrival, tenant.waiting, most, self.typical_wait_ns(group, now_ns), tenant=True)
        if tenant.rule.budget is not None:
            wanted = self.expected_token_ns(arrival, group)
            wait_ns = tenant.budget_wait_ns(wanted, now_ns)
            if wait_ns > 0:
                return refusals.over_budget(arrival, tenant.available_token_ns(now_ns), wanted, wait_ns)
        return None

    def unfit(self, request: Request, group: Group) -> Refusal | None:
        """It can never be served as asked; for an upper bound: it might not."""
        arrival, gate = request.arrival, request.gate
        if gate.refused is not None:
            return refusals.not_proven(arrival, gate.refused)
        replicas = group.eligible(request)
        if not replicas:
            if arrival.only is not None:
                return refusals.nobody_up(arrival, None)
            return refusals.no_proven_pool(arrival, gate.pool or "")
        if not any(replica.could_hold(arrival.input_tokens, arrival.output_tokens) for replica in replicas):
            return refusals.never_fits(arrival, replicas)
        return None

    def never(self, arrival: Arrival, group: Group) -> Refusal | None:
        """Of one that is turned away for now: whether it would be at any time, as far as its length is known."""
        tenant = self._tenants.of(arrival.tenant)
        request = Request(arrival, tenant, Ticket(arrival.id, tenant, 0, 0, 0, 0), self.gate(arrival))
        return self.unfit(request, group) if arrival.exact else self.surely_unfit(request, group)

    def surely_unfit(self, request: Request, group: Group) -> Refusal | None:
        """Of an estimated length: whether even the shortest it may be is too long. Nobody is made to count that."""
        estimated, gate = request.arrival, request.gate
        if not estimated.by_text or estimated.exact:
            return None
        request.arrival = _shorter(estimated)
        request.gate = self.gate(request.arrival)
        unfit = self.unfit(request, group)
        request.arrival, request.gate = estimated, gate
        return None if unfit is None else replace(unfit, reason=f"{unfit.reason}; {_ESTIMATED}")

    def closed(self, request: Request, group: Group, now_ns: int) -> Refusal | None:
        """Nobody who could hold it may be asked, nor soon."""
        arrival = request.arrival
        able = [r for r in group.eligible(request) if r.could_hold(arrival.input_tokens, arrival.output_tokens)]
        up = [r for r in able if r.state is ReplicaState.UP]
        if able and not up:
            return refusals.nobody_up(arrival, None)
        wait_ns = min((r.not_before_ns for r in up), default=now_ns) - now_ns
        if wait_ns <= self.config.queue.engine_backoff_ns:
            return None
        if any(r.refused_busy for r in up):
            return refusals.engines_busy(arrival, wait_ns)
        return refusals.nobody_up(arrival, wait_ns)

    def wait_ns(self, request: Request, group: Group, placement: Placement, now_ns: int) -> int | None:
        """The estimated wait: until there is room, and until those have gone in who go before it, by the prefill they
        are or by how fast the ledgers empty, whichever is slower. None = no idea."""
        up = [r for r in group.replicas if r.takes_new(now_ns)]
        if not up:
            return max(0, min(r.not_before_ns for r in group.replicas) - now_ns)
        if placement.room_ns is None:
            return None
        ahead = group.queue.ahead_of(request.ticket.work_ns)
        arrival, waits = request.arrival, [ahead.work_ns // len(up)]
        if ahead.tokens:
            output = request.ticket.tokens - arrival.input_tokens
            rate = sum(r.drain_tokens_per_s(now_ns, r.stay_guess_ns(arrival.input_tokens, output)) for r in up)
            if rate > 0:
                waits.append(min(MOST_RETRY_NS, int(ahead.tokens / rate * NS_PER_S)))
        return placement.room_ns + max(waits)

    def hopeless(self, request: Request, placement: Placement, wait_ns: int | None, now_ns: int) -> Refusal | None:
        """Too little of it is cached, or its first token would come too late, by the estimate. Without an estimate
        nobody is refused."""
        arrival, slo, best = request.arrival, self.config.slo, placement.choice.best
        least = slo.min_hit.get(arrival.model) if slo.min_hit else None
        if least is not None and best is not None and best.cached_tokens < least * arrival.input_tokens:
            return refusals.too_cold(arrival, best.cached_tokens, least, placement.choice.scores)
        if wait_ns is None or best is None or (slo.ttft_ns is None and arrival.deadline_ns is None):
            return None
        waited_ns = now_ns - request.ticket.arrived_ns
        # the router's prediction has the wait for room in it, ours the whole wait
        predicted_ns = max(wait_ns, best.room_ns) + best.predicted_ttft_ns - best.room_ns
        if arrival.deadline_ns is not None and now_ns + predicted_ns > arrival.deadline_ns:
            left_ns = arrival.deadline_ns - now_ns
            return refusals.too_late(arrival, predicted_ns, left_ns, placement.choice.scores, deadline=True)
        if slo.ttft_ns is None:
            return None
        limit_ns = slo.ttft_ns + slo.ttft_ns_per_token * best.uncached_tokens
        if waited_ns + predicted_ns > limit_ns:
            return refusals.too_late(
                arrival, waited_ns + predicted_ns, limit_ns, placement.choice.scores, deadline=False
            )
        return None

    def late(self, request: Request, group: Group, now_ns: int, *, deadline: bool) -> Refusal:
        """It has waited as long as it may."""
        arrival, arrived_ns, limit_ns = request.arrival, request.ticket.arrived_ns, self.config.queue.longest_wait_ns
        if deadline and arrival.deadline_ns is not None:
            limit_ns = max(0, arrival.deadline_ns - arrived_ns)
        wait_ns = self.typical_wait_ns(group, now_ns)
        return refusals.waited_too_long(arrival, now_ns - arrived_ns, limit_ns, wait_ns, deadline=deadline)

    def typical_wait_ns(self, group: Group, now_ns: int) -> int | None:
        """When the next of the group's replicas frees what an average request holds, by its ledger's drain rate; None
        when nobody holds anything."""
        waits: list[int] = []
        for replica in group.replicas:
            state = max(replica.ledger.states(), key=lambda s: s.requests)
            if state.requests:
                mean = max(1, state.held_blocks // state.requests)
                guess_ns = replica.stay_guess_ns(0, _TYPICAL_OUTPUT_TOKENS)
                waits.append(replica.drain.wait_ns(mean, state.held_blocks, now_ns, guess_ns))
        return min(waits, default=None)


def _shorter(arrival: Arrival) -> Arrival:
    return replace(arrival, input_tokens=int(arrival.input_tokens * _SHORTEST_SHARE))
