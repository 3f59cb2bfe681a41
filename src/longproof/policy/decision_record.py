"""The decision log: every input of a controller with what it answered, so that a run can be looked into, and run again.

    Recorded(controller, sink) ── same calls ──▶ controller
            └── DecisionRecord(number, at_ns, input, actions) ──▶ sink

A controller knows nothing but its inputs, so `replay` on a fresh one with the same configuration and router gives the
same actions: what differs was changed in between. A log without the inputs that only inform (cache events, samples)
shows every decision too, but replays differently.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from longproof.domain.events import EngineSample
from longproof.domain.fleet import FleetSnapshot, ReplicaState
from longproof.domain.kv_event import KvEvent
from longproof.policy.actions import Action, Decision
from longproof.policy.arrivals import Arrival, Ended, EndKind
from longproof.policy.claim_gate import ProvenLimits
from longproof.policy.controller import Controller
from longproof.policy.peers import FleetUse


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrived:
    """A request came in."""

    arrival: Arrival
    input: Literal["arrived"] = "arrived"


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedLength:
    """Its exact length became known."""

    id: str
    input_tokens: int
    blocks: tuple[int, ...] = ()
    by_text: int = 0
    input: Literal["counted"] = "counted"


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstToken:
    """Its first token came."""

    id: str
    input: Literal["first_token"] = "first_token"


@dataclass(frozen=True, slots=True, kw_only=True)
class Produced:
    """It has so many output tokens."""

    id: str
    output_tokens: int
    input: Literal["output"] = "output"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRefused:
    """Its engine would not take it."""

    id: str
    retry_after_ns: int | None = None
    input: Literal["engine_refused"] = "engine_refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """It is over; a client that left while it waited is CANCELLED."""

    id: str
    end: Ended
    input: Literal["finished"] = "finished"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """An engine's metrics were read."""

    replica: str
    sample: EngineSample
    input: Literal["sampled"] = "sampled"


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheChanged:
    """An engine's prefix cache changed."""

    replica: str
    event: KvEvent
    input: Literal["cache"] = "cache"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaChanged:
    """A replica's state changed."""

    replica: str
    state: ReplicaState
    until_ns: int | None = None
    input: Literal["replica"] = "replica"


@dataclass(frozen=True, slots=True, kw_only=True)
class PeersTold:
    """Other gateways' bookings became known; `told`: ours to them."""

    use: FleetUse
    gateways: int
    told: bool
    input: Literal["peers"] = "peers"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimsChanged:
    """What claims say has changed."""

    proven: Mapping[str, ProvenLimits]
    input: Literal["claims"] = "claims"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticked:
    """Time passed."""

    input: Literal["tick"] = "tick"


Input: TypeAlias = (
    Arrived
    | CountedLength
    | FirstToken
    | Produced
    | EngineRefused
    | Finished
    | Sampled
    | CacheChanged
    | ReplicaChanged
    | PeersTold
    | ClaimsChanged
    | Ticked
)
"""Everything a controller is ever told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionRecord:
    """One input, and the answer: reason and all scores are in `actions`. Records are numbered from 0 without gaps."""

    number: int
    at_ns: int
    input: Input
    actions: tuple[Decision, ...]


def feed(controller: Controller, told: Input, now_ns: int) -> Sequence[Decision]:
    """Tell a controller; returns what it answers."""
    match told:
        case Arrived():
            return [controller.on_arrival(told.arrival, now_ns)]
        case CountedLength():
            return controller.on_counted(told.id, told.input_tokens, told.blocks, now_ns, by_text=told.by_text)
        case FirstToken():
            return controller.on_first_token(told.id, now_ns)
        case Produced():
            return controller.on_output(told.id, told.output_tokens, now_ns)
        case EngineRefused():
            return controller.on_refused_by_engine(told.id, told.retry_after_ns, now_ns)
        case Finished():
            return controller.on_finish(told.id, told.end, now_ns)
        case Sampled():
            return controller.on_sample(told.replica, told.sample, now_ns)
        case CacheChanged():
            controller.on_kv_event(told.replica, told.event, now_ns)
            return []
        case ReplicaChanged():
            return controller.on_replica(told.replica, told.state, now_ns, until_ns=told.until_ns)
        case PeersTold():
            return controller.on_peers(told.use, told.gateways, now_ns, told=told.told)
        case ClaimsChanged():
            controller.on_claims(told.proven, now_ns)
            return []
        case Ticked():
            return controller.on_tick(now_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A record that a replay answered differently."""

    record: DecisionRecord
    replayed: tuple[Decision, ...]


def replay(records: Iterable[DecisionRecord], controller: Controller) -> Iterator[Difference]:
    """Feed a log to a fresh controller; yields where it answers otherwise. Nothing, when nothing has changed."""
    for record in records:
        replayed = tuple(feed(controller, record.input, record.at_ns))
        if replayed != record.actions:
            yield Difference(record=record, replayed=replayed)


class Recorded:
    """A controller whose every input and answer goes to `sink`. Calls are those of `Controller`.

    A tick, a sample or a sign of life that decides nothing is recorded all the same: a replay needs it.
    """

    def __init__(self, controller: Controller, sink: Callable[[DecisionRecord], None]) -> None:
        self.controller = controller
        self._sink = sink
        self._number = 0

    def on_arrival(self, arrival: Arrival, now_ns: int) -> Decision:
        """See `Controller`; so for all the others."""
        decision = self.controller.on_arrival(arrival, now_ns)
        self._record(Arrived(arrival=arrival), now_ns, (decision,))
        return decision

    def on_counted(
        self, request_id: str, input_tokens: int, blocks: tuple[int, ...], now_ns: int, *, by_text: int = 0
    ) -> Sequence[Action]:
        told = CountedLength(id=request_id, input_tokens=input_tokens, blocks=blocks, by_text=by_text)
        actions = self.controller.on_counted(request_id, input_tokens, blocks, now_ns, by_text=by_text)
        return self._note(told, now_ns, actions)

    def on_first_token(self, request_id: str, now_ns: int) -> Sequence[Action]:
        return self._note(FirstToken(id=request_id), now_ns, self.controller.on_first_token(request_id, now_ns))

    def on_output(self, request_id: str, output_tokens: int, now_ns: int) -> Sequence[Action]:
        told = Produced(id=request_id, output_tokens=output_tokens)
        return self._note(told, now_ns, self.controller.on_output(request_id, output_tokens, now_ns))

    def on_refused_by_engine(self, request_id: str, retry_after_ns: int | None, now_ns: int) -> Sequence[Action]:
        told = EngineRefused(id=request_id, retry_after_ns=retry_after_ns)
        return self._note(told, now_ns, self.controller.on_refused_by_engine(request_id, retry_after_ns, now_ns))

    def on_finish(self, request_id: str, end: Ended, now_ns: int) -> Sequence[Action]:
        return self._note(Finished(id=request_id, end=end), now_ns, self.controller.on_finish(request_id, end, now_ns))

    def cancel(self, request_id: str, now_ns: int) -> Sequence[Action]:
        told = Finished(id=request_id, end=Ended(kind=EndKind.CANCELLED))
        return self._note(told, now_ns, self.controller.cancel(request_id, now_ns))

    def on_sample(self, replica: str, sample: EngineSample, now_ns: int) -> Sequence[Action]:
        actions = self.controller.on_sample(replica, sample, now_ns)
        return self._note(Sampled(replica=replica, sample=sample), now_ns, actions)

    def on_kv_event(self, replica: str, event: KvEvent, now_ns: int) -> None:
        self.controller.on_kv_event(replica, event, now_ns)
        self._record(CacheChanged(replica=replica, event=event), now_ns, ())

    def on_replica(
        self, replica: str, state: ReplicaState, now_ns: int, *, until_ns: int | None = None
    ) -> Sequence[Action]:
        told = ReplicaChanged(replica=replica, state=state, until_ns=until_ns)
        return self._note(told, now_ns, self.controller.on_replica(replica, state, now_ns, until_ns=until_ns))

    def on_peers(self, use: FleetUse, gateways: int, now_ns: int, *, told: bool) -> Sequence[Action]:
        record = PeersTold(use=use, gateways=gateways, told=told)
        return self._note(record, now_ns, self.controller.on_peers(use, gateways, now_ns, told=told))

    def on_claims(self, proven: Mapping[str, ProvenLimits], now_ns: int) -> None:
        self.controller.on_claims(proven, now_ns)
        self._record(ClaimsChanged(proven=proven), now_ns, ())

    def own_use(self) -> FleetUse:
        return self.controller.own_use()

    @property
    def changes(self) -> tuple[int, int]:
        return self.controller.changes

    def on_tick(self, now_ns: int) -> Sequence[Action]:
        return self._note(Ticked(), now_ns, self.controller.on_tick(now_ns))

    def kv_token_ms(self, request_id: str, now_ns: int) -> int | None:
        return self.controller.kv_token_ms(request_id, now_ns)

    def snapshot(self, now_ns: int) -> FleetSnapshot:
        return self.controller.snapshot(now_ns)

    def _note(self, told: Input, now_ns: int, actions: Sequence[Action]) -> Sequence[Action]:
        self._record(told, now_ns, actions)
        return actions

    def _record(self, told: Input, now_ns: int, actions: Sequence[Decision]) -> None:
        self._sink(DecisionRecord(number=self._number, at_ns=now_ns, input=told, actions=tuple(actions)))
        self._number += 1
