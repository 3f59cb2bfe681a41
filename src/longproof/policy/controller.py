"""The gateway's decisions: timestamped inputs in, actions out. No I/O, no clock, no chance; the same inputs give the
same actions (`policy.decision_record` replays them).

    on_arrival ──▶ may it at all? ──▶ is there room? ──▶ Dispatch
                     entrance            placing:           │ on_first_token, on_output   the ledger follows
                        │                router + ledger    │ on_refused_by_engine        back to the queue
                        │                   │ no            ▼ on_finish                   room for others
                     Refusal             Wait: queue ──▶ Dispatch | Refusal, by whatever frees room or runs out

Room is taken before anything is counted: a request whose length is only bounded holds its bound, is counted, and is
then placed by its true length. An input about a request that is unknown or has ended changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from longproof.domain.events import EngineSample
from longproof.domain.fleet import FleetSnapshot, ReplicaState
from longproof.domain.kv_event import KvEvent
from longproof.domain.units import NS_PER_MS, NS_PER_S
from longproof.policy import refusals
from longproof.policy.actions import Action, Decision, Refusal, Wait
from longproof.policy.arrivals import Arrival, Ended, EndKind
from longproof.policy.bookings import Bookings, with_length
from longproof.policy.choice import Router
from longproof.policy.claim_gate import ProvenLimits
from longproof.policy.controller_config import ControllerConfig
from longproof.policy.entrance import Entrance
from longproof.policy.expiries import Expiries
from longproof.policy.filled import filled_tokens, see_prefill
from longproof.policy.fleet_view import FleetView
from longproof.policy.output_measure import OutputMeasure
from longproof.policy.peers import NOTHING, FleetUse
from longproof.policy.placing import NOBODY, Group, Placement, Placing, groups_of
from longproof.policy.queue import Ticket
from longproof.policy.replica import Replica
from longproof.policy.request_state import Phase, Request
from longproof.policy.tally import Tally
from longproof.policy.tenants import Tenants
from longproof.policy.waiting_room import WaitingRoom

_ENGINE_BUSY_NS = NS_PER_S  # for so long an engine that refused without a Retry-After is left alone


class Controller:
    """One fleet. Not thread-safe: one event loop calls it. A `now_ns` before the last one is taken as the last one."""

    def __init__(self, config: ControllerConfig, router: Router) -> None:
        self.config = config
        self._router = router
        self._replicas = {rule.name: Replica(rule, config) for rule in config.replicas}
        self._groups = groups_of(config, self._replicas)
        self._group_list = tuple(dict.fromkeys(self._groups.values()))
        self._tenants = Tenants(config)
        self._outputs = OutputMeasure()
        self._placing = Placing(router, self._outputs, config.slo, config.queue)
        self._entrance = Entrance(config, self._tenants)
        self._bookings = Bookings(self._replicas, router, self._outputs, self._placing, config.queue)
        self._requests: dict[str, Request] = {}
        self._tally = Tally()
        self._room = WaitingRoom(self._requests, self._placing, self._bookings, self._tally)
        self._expiries = Expiries(config.queue.longest_wait_ns)
        self._now_ns = self._number = 0

    # ── requests ──────────────────────────────────────────────────────────────────────────────────────────────────

    def on_arrival(self, arrival: Arrival, now_ns: int) -> Decision:
        """A request came in. Raises ValueError for an id that is in use: our bug."""
        now_ns = self._at(now_ns)
        if arrival.id in self._requests:
            raise ValueError(f"request {arrival.id} arrived twice")
        self._tally.arrived += 1
        group = self._groups.get(arrival.model)
        if group is None:
            return self._tally.refuse(refusals.unknown_model(arrival))
        crowded = self._entrance.crowded(arrival, group, now_ns)
        if crowded is not None:
            return self._tally.refuse(self._entrance.never(arrival, group) or crowded)
        return self._decide(self._enter(arrival, group, now_ns), group, now_ns)

    def on_counted(
        self, request_id: str, input_tokens: int, blocks: tuple[int, ...], now_ns: int, *, by_text: int = 0
    ) -> list[Action]:
        """Its exact length, and the names of its blocks, became known; or the best that anybody knows. `by_text`: see
        `Arrival`."""
        now_ns = self._at(now_ns)
        request = self._requests.get(request_id)
        if request is None or request.arrival.exact:
            return []
        with_length(request, input_tokens, blocks, by_text=by_text)
        group = self._groups[request.arrival.model]
        self._bookings.changes += self._entrance.expect(request, group)
        if request.on_engine:
            self._bookings.recharge(request, now_ns)
            return self._pump(group, now_ns)
        held_at = request.replica
        if request.phase is Phase.COUNTING:
            group.counting -= 1
            self._bookings.leave(request, now_ns)
            request.phase = Phase.DECIDING
        else:
            self._bookings.unqueue(request, group)
        request.counted = True
        request.gate = self._entrance.gate(request.arrival)
        return self._decided(request, group, now_ns, held_at=held_at)

    def on_first_token(self, request_id: str, now_ns: int) -> list[Action]:
        """Its prefill is done."""
        now_ns = self._at(now_ns)
        request = self._requests.get(request_id)
        if request is None or request.phase is not Phase.PREFILLING or request.replica is None:
            return []
        replica = self._replicas[request.replica]
        if request.arrival.streamed:
            request.stretch = replica.first_token(request.uncached_tokens, request.dispatched_ns, now_ns)
        else:  # the whole answer: it says nothing of how long its prefill took
            replica.worked()
        self._bookings.prefilled(request, now_ns)
        return self._pump(self._groups[request.arrival.model], now_ns)

    def on_output(self, request_id: str, output_tokens: int, now_ns: int) -> list[Action]:
        """It has produced so many tokens in all: what it holds grows."""
        now_ns = self._at(now_ns)
        request = self._requests.get(request_id)
        if request is None or not request.on_engine or output_tokens <= request.output_tokens:
            return []
        actions = self.on_first_token(request_id, now_ns) if request.phase is Phase.PREFILLING else []
        if not self._bookings.grow(request, output_tokens, now_ns):
            self._tally.growth_shortages += 1
        return actions

    def on_refused_by_engine(self, request_id: str, retry_after_ns: int | None, now_ns: int) -> list[Action]:
        """Its replica answered 429 or 503, or could not be reached, before it began: the next one is tried, this one
        not before `retry_after_ns` from now."""
        now_ns = self._at(now_ns)
        request = self._requests.get(request_id)
        if request is None or not request.on_engine:  # its prefill may be taken as done: nobody saw a first token
            return []
        self._tally.engine_refusals += 1
        pause_ns = _ENGINE_BUSY_NS if retry_after_ns is None else max(1, retry_after_ns)
        if request.replica is not None:
            self._replicas[request.replica].refused(pause_ns, now_ns)
        self._bookings.unsend(request, now_ns)
        group = self._groups[request.arrival.model]
        if request.attempts > 2 * len(group.replicas):
            busy = refusals.engines_busy(request.arrival, pause_ns)
            return [self._turn_away(request, group, busy, now_ns), *self._pump(group, now_ns)]
        return self._decided(request, group, now_ns)

    def on_finish(self, request_id: str, end: Ended, now_ns: int) -> list[Action]:
        """It is over. A second end changes nothing."""
        now_ns = self._at(now_ns)
        request = self._requests.pop(request_id, None)
        if request is None:
            return []
        group = self._groups[request.arrival.model]
        if request.phase is Phase.COUNTING:
            group.counting -= 1
        if request.on_engine:
            self._learn(request, end, now_ns)
        self._tally.end(end.kind if request.on_engine else EndKind.CANCELLED, request)
        self._bookings.drop(request, group, now_ns)
        return self._pump(group, now_ns)

    def cancel(self, request_id: str, now_ns: int) -> list[Action]:
        """The client left."""
        return self.on_finish(request_id, Ended(kind=EndKind.CANCELLED), now_ns)

    def kv_token_ms(self, request_id: str, now_ns: int) -> int | None:
        """Token-milliseconds of KV cache that a request has occupied so far; None when it is unknown or over, so ask
        before `on_finish`."""
        request = self._requests.get(request_id)
        return None if request is None else request.occupied_token_ns(now_ns) // NS_PER_MS

    # ── replicas and time ─────────────────────────────────────────────────────────────────────────────────────────

    def on_sample(self, replica: str, sample: EngineSample, now_ns: int) -> list[Action]:
        """An engine's metrics. KeyError for a replica that is not in the configuration."""
        now_ns = self._at(now_ns)
        found = self._replicas[replica]
        found.sampled(sample, found.ledger.used_blocks(self._lengths(found)), now_ns)
        if found.usage is not None and found.prefilling:
            see_prefill(found, self._there(found), found.usage, now_ns)
        return self._pump_all(now_ns)

    def on_kv_event(self, replica: str, event: KvEvent, now_ns: int) -> None:
        """What an engine's prefix cache holds has changed."""
        self._router.on_kv_event(replica, event, self._at(now_ns))

    def on_peers(self, use: FleetUse, gateways: int, now_ns: int, *, told: bool) -> list[Action]:
        """What other gateways before the same engines have booked in all. `gateways`: how many there are, this one
        included; `told`: they know all that is booked here."""
        now_ns = self._at(now_ns)
        for name, replica in self._replicas.items():
            replica.peers_told(use.replicas.get(name, NOTHING), gateways, told=told)
        self._router.on_peers(use, now_ns)
        self._tenants.on_peers(use.tenants, now_ns)
        return self._pump_all(now_ns)

    def own_use(self) -> FleetUse:
        """What is booked here, for `on_peers` of others."""
        replicas = {name: replica.use() for name, replica in self._replicas.items()}
        return FleetUse(replicas=replicas, tenants=self._tenants.use(self._now_ns))

    @property
    def changes(self) -> tuple[int, int]:
        """Rise whenever `own_use` may have changed; the second when more was booked."""
        return self._bookings.changes, self._bookings.takes

    def on_replica(
        self, replica: str, state: ReplicaState, now_ns: int, *, until_ns: int | None = None
    ) -> list[Action]:
        """A replica's state. BROKEN with `until_ns` ends by itself. RESTARTED means up, with all it held lost: its
        requests hold nothing any more, and end when their connections do."""
        now_ns = self._at(now_ns)
        found = self._replicas[replica]
        found.state = state
        if state is ReplicaState.RESTARTED:
            found.state = ReplicaState.UP
            for request in self._requests.values():
                if request.replica == replica:
                    self._bookings.lost(request, now_ns)
            found.lost_everything()
            self._router.forget(replica)
        elif state is ReplicaState.BROKEN and until_ns is not None:
            found.state = ReplicaState.UP
            found.leave_alone(until_ns)
        if found.state is not ReplicaState.UP and found.emptying_for is not None:
            for group in self._group_list:
                group.stop_emptying(found.emptying_for)
        return self._pump_all(now_ns)

    def on_claims(self, proven: Mapping[str, ProvenLimits], now_ns: int) -> None:
        """What claims say has changed: one has expired, or an engine is no longer the one it was made of."""
        self._at(now_ns)
        self.config = self._entrance.config = replace(self.config, proven=proven)

    def on_tick(self, now_ns: int) -> list[Action]:
        """Time has passed: deadlines, ageing, back-offs that end, prefills whose end nobody sees."""
        now_ns = self._at(now_ns)
        actions: list[Action] = []
        for request_id, is_deadline in self._expiries.due(now_ns):
            request = self._requests.get(request_id)
            if request is not None and not request.on_engine:
                group = self._groups[request.arrival.model]
                late = self._entrance.late(request, group, now_ns, deadline=is_deadline)
                actions.append(self._turn_away(request, group, late, now_ns))
        for replica in self._replicas.values():
            replica.apply_caution(now_ns)
            for request_id in replica.ledger.requests():
                request = self._requests[request_id]
                unseen = request.phase is Phase.PREFILLING and not request.arrival.streamed
                if unseen and now_ns >= request.prefilled_by_ns:
                    self._bookings.prefilled(request, now_ns)
        return actions + self._pump_all(now_ns)

    def snapshot(self, now_ns: int) -> FleetSnapshot:
        """Everything, as it is."""
        view = FleetView(self.config, self._replicas, self._group_list, self._tenants, self._requests, self._router)
        now_ns = max(now_ns, self._now_ns)
        filled: dict[str, int] = {}
        for replica in self._replicas.values():
            filled |= filled_tokens(replica, self._there(replica), now_ns)
        return view.at(now_ns, self._tally.counters(), filled)

    # ── one request's way ─────────────────────────────────────────────────────────────────────────────────────────

    def _at(self, now_ns: int) -> int:
        if now_ns > self._now_ns:
            self._now_ns = now_ns
        return self._now_ns

    def _enter(self, arrival: Arrival, group: Group, now_ns: int) -> Request:
        tenant = self._tenants.of(arrival.tenant)
        self._tenants.enter(tenant)
        self._number += 1
        ticket = Ticket(arrival.id, tenant, arrival.priority, 0, now_ns, self._number)
        request = Request(
            arrival,
            tenant,
            ticket,
            self._entrance.gate(arrival),
            counted=self._entrance.counted(arrival),
            uncached_tokens=arrival.input_tokens,
            held_since_ns=now_ns,
        )
        if self._entrance.claim_ends_nearby(arrival, request.gate):
            request.counted, request.near = False, True
        self._bookings.changes += self._entrance.expect(request, group)
        self._requests[arrival.id] = request
        return request

    def _decide(self, request: Request, group: Group, now_ns: int, *, held_at: str | None = None) -> Decision:
        """Send it, let it wait, or refuse it. `held_at`: the replica that held its upper bound until now, and so has
        room for its true length."""
        unfit = self._entrance.unfit(request, group)
        if unfit is not None:
            if request.may_refuse:
                return self._turn_away(request, group, unfit, now_ns)
            surely = self._entrance.surely_unfit(request, group)
            if surely is not None:
                return self._turn_away(request, group, surely, now_ns)
            request.counted = False
            return self._await_count(request, group, "its exact length decides whether it fits", reserved=False)
        placement = self._room.find(request, group, now_ns, look=True)
        if placement.choice is NOBODY:
            closed = self._entrance.closed(request, group, now_ns)
            if closed is not None:
                return self._turn_away(request, group, closed, now_ns)
        meant = placement.choice is NOBODY or placement.choice.replica == held_at
        if placement.replica is None and held_at is not None and meant and self._replicas[held_at].takes_new(now_ns):
            placement = Placement(self._replicas[held_at], placement.choice, 0)
        wait_ns: int | None = 0
        if placement.replica is None:
            self._bookings.size(request, group)
            wait_ns = self._entrance.wait_ns(request, group, placement, now_ns)
        if request.counted:
            hopeless = self._entrance.hopeless(request, placement, wait_ns, now_ns)
            if hopeless is not None:
                return self._turn_away(request, group, hopeless, now_ns)
        if placement.replica is not None and self._placing.take(request, placement.replica):
            self._bookings.book(request, placement.replica, now_ns)
            if request.counted:
                return self._room.send(request, placement, group, now_ns)
            return self._await_count(
                request, group, "its upper bound is held; its exact length is wanted", reserved=True
            )
        ahead = group.queue.ahead_of(request.ticket.work_ns).requests
        self._bookings.queue(request, group)
        self._expiries.watch(request)
        request.reason = placement.why_not
        return Wait(
            id=request.arrival.id,
            reason=request.reason,
            count=not request.counted,
            exact=request.near or not request.arrival.by_text,
            ahead=ahead,
            wait_ns=wait_ns,
            scores=placement.choice.scores,
        )

    def _decided(self, request: Request, group: Group, now_ns: int, *, held_at: str | None = None) -> list[Action]:
        decision = self._decide(request, group, now_ns, held_at=held_at)
        actions: list[Action] = [] if isinstance(decision, Wait) else [decision]
        return actions + self._pump(group, now_ns)

    def _await_count(self, request: Request, group: Group, reason: str, *, reserved: bool) -> Wait:
        request.phase = Phase.COUNTING
        group.counting += 1
        self._expiries.watch(request)
        exact = request.near or not reserved
        return Wait(id=request.arrival.id, reason=reason, count=True, exact=exact, reserved=reserved)

    def _turn_away(self, request: Request, group: Group, refusal: Refusal, now_ns: int) -> Refusal:
        if request.phase is Phase.COUNTING:
            group.counting -= 1
        self._bookings.drop(request, group, now_ns)
        del self._requests[request.arrival.id]
        return self._tally.refuse(refusal)

    def _learn(self, request: Request, end: Ended, now_ns: int) -> None:
        """What its end says about outputs, service, its replica and what is cached there."""
        if end.kind is EndKind.COMPLETED:
            output = request.output_tokens if end.output_tokens is None else end.output_tokens
            self._outputs.produced(request.arrival.tenant, request.arrival.model, output)
            if request.phase is Phase.PREFILLING:
                self._bookings.prefilled(request, now_ns)
        if request.replica is not None:
            replica = self._replicas[request.replica]
            if end.kind is EndKind.FAILED:
                replica.failed(request.dispatched_ns, now_ns)
            elif end.kind is EndKind.COMPLETED:
                replica.worked()
            if request.stretch is not None and end.cached_tokens is not None:
                uncached = max(0, request.arrival.input_tokens - end.cached_tokens)
                replica.prefill_was(request.stretch, uncached - request.uncached_tokens)
        self._bookings.ended(request, end, now_ns)

    def _pump(self, group: Group, now_ns: int) -> list[Action]:
        """Room may have come free on the group's replicas: for those who wait for it, then for other models'."""
        actions = self._room.pump(group, now_ns) if len(group.queue) else []
        for other in group.neighbours:
            if len(other.queue):
                actions += self._room.pump(other, now_ns)
        return actions

    def _pump_all(self, now_ns: int) -> list[Action]:
        waiting = [group for group in self._group_list if len(group.queue)]
        return [action for group in waiting for action in self._room.pump(group, now_ns)]

    def _there(self, replica: Replica) -> list[Request]:
        return [self._requests[request_id] for request_id in replica.ledger.requests()]

    def _lengths(self, replica: Replica) -> dict[str, int]:
        """Tokens by request that are in a cache by now; of those nobody sees the output of, what they may become."""
        return {r.arrival.id: r.held_tokens for r in self._there(replica) if r.on_engine and r.arrival.streamed}
