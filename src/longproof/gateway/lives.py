"""One request's life as the gateway saw it, put together from what passes by: the desk's decisions and departures, and
the meter's two calls. Metrics and traces are made from whole lives; nothing in the data path knows of them.

    Desk ── decided, departed ──▶ Lives ◀── admitted, spent ── WatchedMeter ──▶ the meter itself
                                    └─▶ on_end(Life), once
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from longproof.frozen import frozen
from longproof.gateway.ports import Admitted, Meter, Spent
from longproof.policy.actions import Decision, Dispatch, Refusal
from longproof.policy.arrivals import Arrival


@frozen(kw_only=True)
class Life:
    """From arrival to end; times are monotonic nanoseconds. `dispatch` is the last one, None = it was never sent;
    `refusal` the controller's word against it; `spent` its usage, None = it was never sent. With neither refusal nor
    usage the client left while it waited."""

    arrival: Arrival
    arrived_ns: int
    ended_ns: int
    dispatch: Dispatch | None = None
    dispatched_ns: int | None = None
    refusal: Refusal | None = None
    spent: Spent | None = None

    @property
    def ending(self) -> str:
        """completed, cancelled, failed, rejected (by the engine) or refused (by the controller)."""
        if self.spent is not None and not (self.refusal is not None and self.spent.ending == "rejected"):
            return str(self.spent.ending)
        return "cancelled" if self.refusal is None else "refused"

    @property
    def waited_ns(self) -> int:
        """Until it was sent for the last time, or until its end."""
        return (self.ended_ns if self.dispatched_ns is None else self.dispatched_ns) - self.arrived_ns

    @property
    def ttft_ns(self) -> int | None:
        """From arrival to the first token, waiting included; None where none came, and for an answer that comes whole,
        whose first token nobody sees."""
        first_ns = None if self.spent is None or not self.arrival.streamed else self.spent.first_token_ns
        return None if first_ns is None else first_ns - self.arrived_ns


@dataclass(slots=True)
class _Open:
    """A life that has not ended."""

    arrival: Arrival
    arrived_ns: int
    dispatch: Dispatch | None = None
    dispatched_ns: int | None = None
    refusal: Refusal | None = None
    metered: bool = False


class Lives:
    """All that are under way. On the event loop."""

    def __init__(self) -> None:
        self.listeners: list[Callable[[Life], None]] = []
        """Told of every life at its end. Must not raise."""
        self._open: dict[str, _Open] = {}

    @property
    def open_lives(self) -> int:
        """Requests under way."""
        return len(self._open)

    def decided(self, decision: Decision, arrival: Arrival, now_ns: int) -> None:
        """A decision of the controller: the first one is a life's beginning."""
        life = self._open.get(arrival.id)
        if life is None:
            life = self._open[arrival.id] = _Open(arrival, now_ns)
        if isinstance(decision, Dispatch):
            life.dispatch, life.dispatched_ns = decision, now_ns
        elif isinstance(decision, Refusal):
            life.refusal = decision

    def admitted(self, request: Admitted) -> None:
        """It is about to be sent: its life ends with its usage, not before."""
        if (life := self._open.get(request.id)) is not None:
            life.metered = True

    def departed(self, request_id: str, now_ns: int) -> None:
        """It has left the controller."""
        life = self._open.get(request_id)
        if life is not None and not life.metered:
            self._end(request_id, None, now_ns)

    def spent(self, request: Spent) -> None:
        """Its usage, which comes last."""
        self._end(request.id, request, request.at_ns)

    def _end(self, request_id: str, spent: Spent | None, now_ns: int) -> None:
        life = self._open.pop(request_id, None)
        if life is None:
            return
        ended = Life(
            arrival=life.arrival,
            arrived_ns=life.arrived_ns,
            ended_ns=max(now_ns, life.arrived_ns),
            dispatch=life.dispatch,
            dispatched_ns=life.dispatched_ns,
            refusal=life.refusal,
            spent=spent,
        )
        for listener in self.listeners:
            listener(ended)


class WatchedMeter:
    """A meter whose calls are also told to `lives`."""

    def __init__(self, meter: Meter, lives: Lives) -> None:
        self._meter, self._lives = meter, lives

    def admitted(self, request: Admitted) -> None:
        """See `Meter`; so for the others."""
        self._meter.admitted(request)
        self._lives.admitted(request)

    def passed(self, request_id: str, output_tokens: int) -> None:
        self._meter.passed(request_id, output_tokens)

    def spent(self, request: Spent) -> None:
        self._meter.spent(request)
        self._lives.spent(request)
