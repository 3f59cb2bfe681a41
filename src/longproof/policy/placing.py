"""Where one request goes now: which replicas may be asked, what the router makes of them, and whether it fits there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from longproof.domain.units import format_ns
from longproof.frozen import frozen
from longproof.policy.admission import Reservation
from longproof.policy.choice import Choice, Router
from longproof.policy.controller_config import ControllerConfig, QueueRule, SloRule
from longproof.policy.output_measure import OutputMeasure
from longproof.policy.queue import FairQueue
from longproof.policy.replica import Replica
from longproof.policy.request_state import Request

_DISTURBS = "its prefill would slow running streams beyond their promise"
NOBODY = Choice(None, None, (), "no replica may be asked now")
"""The choice where there was nothing to choose from."""


class Group:
    """The replicas that serve a model, and the queue before them. Models that the same replicas serve share one;
    `neighbours` share some of them."""

    def __init__(self, replicas: tuple[Replica, ...], rule: QueueRule) -> None:
        self.replicas = replicas
        self.queue = FairQueue(rule)
        self.neighbours: tuple[Group, ...] = ()
        self.emptying: Replica | None = None
        self.counting = 0

    def stop_emptying(self, request_id: str) -> None:
        """The request is placed, or gone: the replica kept for it is open again."""
        if self.emptying is not None and self.emptying.emptying_for == request_id:
            self.emptying.emptying_for = None
            self.emptying = None

    def eligible(self, request: Request) -> tuple[Replica, ...]:
        """The replicas it may go to at all: those of the pool the claim sends it to, or the one it is meant for."""
        pool, only = request.gate.pool, request.arrival.only
        if pool is None and only is None:
            return self.replicas
        return tuple(r for r in self.replicas if pool in (None, r.pool) and only in (None, r.name))


@frozen()
class Placement:
    """`replica` None: it does not go anywhere now. `choice` is the router's answer, with its scores; `room_ns`: how
    long until some replica has room, 0 = now, None = nothing tells. `capped`: its tenant runs as many as it may."""

    replica: Replica | None
    choice: Choice
    room_ns: int | None = None
    capped: bool = False

    @property
    def disturbs(self) -> bool:
        """Whether it waits for streams to end, and not for room."""
        return self.choice.reason is _DISTURBS

    @property
    def why_not(self) -> str:
        """Why it waits."""
        if self.capped:
            return "its tenant runs as many requests as it may"
        if self.room_ns is None:
            return "no replica may be asked now"
        if self.room_ns > 0:
            return f"no replica has room for it; there is likely to be in {format_ns(self.room_ns)}"
        if self.choice.replica is None:
            return self.choice.reason
        return f"it waits for room at {self.choice.replica}: {self.choice.reason}"


class Placing:
    """The straight line from a request to a replica with its room taken."""

    def __init__(self, router: Router, outputs: OutputMeasure, slo: SloRule, queue: QueueRule) -> None:
        self._router = router
        self._outputs = outputs
        self._slo = slo
        self._queue = queue

    def entry_tokens(self, request: Request, replica: Replica) -> int:
        """What the ledger charges for it there at entry."""
        return self._entry(request, replica.rule.admission.reservation)

    def find(self, request: Request, group: Group, now_ns: int, *, look: bool = False) -> Placement:
        """The replica for it now; takes nothing. `look`: ask the router even where nobody has room, for the scores."""
        replicas = self._candidates(request, group, now_ns)
        room_ns = min([r.room_in_ns for r in replicas if r.room_in_ns is not None], default=None)
        if not replicas or (room_ns != 0 and not look):
            return Placement(None, NOBODY, room_ns)  # nobody to ask, or no use in asking
        choice = self._choose(request, replicas, now_ns)
        if choice.best is not None:
            request.cached_tokens = choice.best.cached_tokens
            request.uncached_tokens = choice.best.uncached_tokens
        chosen = next((r for r in replicas if r.name == choice.replica), None)
        if chosen is None or chosen.room_in_ns != 0:
            return Placement(None, choice, room_ns)
        return Placement(chosen, choice, 0)

    def take(self, request: Request, replica: Replica) -> bool:
        """Take its room there. False: there is none after all."""
        entry = self._entry(request, replica.rule.admission.reservation)
        arrival = request.arrival
        if not replica.reserve(arrival.id, arrival.input_tokens, entry, request.names, request.cached_tokens):
            return False
        request.charged_tokens = entry
        return True

    def to_empty(self, request: Request, group: Group, now_ns: int) -> Replica | None:
        """The replica where it would go were there room everywhere; None when the router would send it nowhere, or
        those that share the replica have not had their time yet."""
        replicas = self._candidates(request, group, now_ns)
        if not replicas:
            return None
        for replica in replicas:
            replica.room_in_ns, replica.exclusive = 0, False
        choice = self._router.choose(request.arrival, replicas, now_ns)
        open_to_it = [r for r in _open_to_it(replicas, choice) if r.alone_for is None]
        if not open_to_it:
            return None
        if len(open_to_it) < len(replicas):
            choice = self._router.choose(request.arrival, open_to_it, now_ns)
        chosen = next((r for r in open_to_it if r.name == choice.replica), None)
        if chosen is not None and now_ns < chosen.shared_until_ns and self._disturbs(chosen, request, choice):
            return None
        return chosen

    def runs_alone(self, request: Request, replica: Replica) -> bool:
        """Whether its prefill there takes many steps, each of which would keep streams longer than promised."""
        return self._slows(replica, request.uncached_tokens)

    def _candidates(self, request: Request, group: Group, now_ns: int) -> list[Replica]:
        """Replicas that may be asked now and could hold it, `room_in_ns` set for it."""
        arrival = request.arrival
        found = [
            r
            for r in group.eligible(request)
            if r.takes_new(now_ns) and r.could_hold(arrival.input_tokens, arrival.output_tokens)
        ]
        reservation, entry = None, 0
        for replica in found:
            if replica.rule.admission.reservation is not reservation:  # mostly one and the same for all
                reservation = replica.rule.admission.reservation
                entry = self._entry(request, reservation)
            replica.find_room(arrival.id, arrival.input_tokens, entry, request.names, now_ns)
        return found

    def _entry(self, request: Request, reservation: Reservation) -> int:
        arrival = request.arrival
        expected = self._outputs.expected(arrival.tenant, arrival.model) if reservation.measured else None
        return arrival.input_tokens + reservation.charged_output_tokens(arrival.output_tokens, expected)

    def _choose(self, request: Request, replicas: Sequence[Replica], now_ns: int) -> Choice:
        choice = self._router.choose(request.arrival, replicas, now_ns)
        if self._slo.itl_ns is None or choice.best is None or choice.replica is None:
            return choice
        chosen = next(r for r in replicas if r.name == choice.replica)
        if not self._disturbs(chosen, request, choice):
            return choice
        emptied = chosen.emptying_for == request.arrival.id
        if emptied and now_ns - chosen.emptying_since_ns >= self._queue.age_bound_ns:
            return choice  # what streams there had as long to end as it had to wait to be overdue
        quiet = [r for r in _open_to_it(replicas, choice) if not self._disturbs(r, request, choice)]
        if quiet:
            return self._router.choose(request.arrival, quiet, now_ns)
        return Choice(None, choice.best, choice.scores, _DISTURBS)

    def _disturbs(self, replica: Replica, request: Request, choice: Choice) -> bool:
        """Whether its prefill would make what runs there miss the time between tokens."""
        uncached = request.uncached_tokens if choice.best is None else choice.best.uncached_tokens
        return replica.decoding + replica.prefilling > 0 and self._slows(replica, uncached)

    def _slows(self, replica: Replica, uncached_tokens: int) -> bool:
        step, itl_ns = replica.rule.step_tokens, self._slo.itl_ns
        if itl_ns is None or step is None or uncached_tokens <= step:
            return False
        return replica.decode_ns_per_token + replica.prefill.ns(step) > itl_ns


def _open_to_it(replicas: Sequence[Replica], choice: Choice) -> list[Replica]:
    """Those that the router would send it to at all. Asked about fewer of them it may say otherwise, since the last
    replica there is serves whatever comes: so all are asked about first."""
    barred = {score.replica for score in choice.scores if score.note}
    return [replica for replica in replicas if replica.name not in barred]


def groups_of(config: ControllerConfig, replicas: Mapping[str, Replica]) -> dict[str, Group]:
    """Model → the replicas that serve it. Models that the same replicas serve have one group, and one queue."""
    serving: dict[str, list[Replica]] = {}
    for rule in config.replicas:
        for model in rule.models:
            serving.setdefault(model, []).append(replicas[rule.name])
    groups: dict[tuple[Replica, ...], Group] = {}
    found = {model: groups.setdefault(tuple(rs), Group(tuple(rs), config.queue)) for model, rs in serving.items()}
    for group in groups.values():
        group.neighbours = tuple(
            other for other in groups.values() if other is not group and set(other.replicas) & set(group.replicas)
        )
    return found
