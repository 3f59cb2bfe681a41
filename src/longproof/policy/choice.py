"""The joint between the controller, which knows what fits, and the router, which knows what is cached where.

    controller ── arrival, views of the replicas it may go to ──▶ Router.choose ──▶ Choice(replica, scores)

The controller hands over only replicas that are up, serve the model, could hold the request, and whose engine has not
asked to be left alone; the router judges which of them answers first. Whether the request then goes there or waits is
the controller's (`policy.admission`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from longproof.domain.kv_event import KvEvent
from longproof.frozen import frozen
from longproof.policy.arrivals import Arrival
from longproof.policy.peers import FleetUse
from longproof.policy.prefill_cost import PrefillCost


class ReplicaView(Protocol):
    """One replica as the router sees it. Read only, and valid only during the call it was handed to.

    `pending_prefill_tokens`: uncached input of requests sent there whose first token has not come; charged when a
    replica is chosen, not when it answers. `busy_until_ns`: when that backlog should be done, by the cost formula and
    corrected at every first token. `prefilling` and `decoding` count requests. `held_blocks` and
    `capacity_blocks` are those of the fullest stage. `room_in_ns`: how long until the request at hand fits there, 0 =
    now, None = it does not and nothing tells when. `exclusive`: being emptied for a request that has waited too long;
    nothing else gets room there.
    """

    @property
    def name(self) -> str: ...
    @property
    def pool(self) -> str: ...
    @property
    def block_tokens(self) -> int: ...
    @property
    def prefill(self) -> PrefillCost: ...
    @property
    def decode_ns_per_token(self) -> int: ...
    @property
    def pending_prefill_tokens(self) -> int: ...
    @property
    def busy_until_ns(self) -> int: ...
    @property
    def prefilling(self) -> int: ...
    @property
    def decoding(self) -> int: ...
    @property
    def held_blocks(self) -> int: ...
    @property
    def capacity_blocks(self) -> int: ...
    @property
    def room_in_ns(self) -> int | None: ...
    @property
    def exclusive(self) -> bool: ...


@frozen()
class Score:
    """One replica's score for one request: the smaller `cost_ns`, the better. `cost_ns` is the predicted time to first
    token plus whatever the rule adds to it; its parts are kept for the decision log.

    Positional on purpose: made once per replica and request.
    """

    replica: str
    cost_ns: int
    cached_tokens: int
    uncached_tokens: int
    predicted_ttft_ns: int
    backlog_ns: int = 0
    restore_ns: int = 0
    room_ns: int = 0
    note: str = ""


@frozen()
class Choice:
    """Where a request should go. `replica` None: none of them now (its pool has no idle capacity to lend …); the
    request waits and is asked about again. `best` is the score the choice rests on; with no replica, the best there
    would have been. `scores` has one entry per view, in the order given."""

    replica: str | None
    best: Score | None
    scores: tuple[Score, ...]
    reason: str


class Router(Protocol):
    """Chooses replicas, and is told whatever it needs to know what they hold."""

    def choose(self, arrival: Arrival, views: Sequence[ReplicaView], now_ns: int) -> Choice:
        """The replica for `arrival` among `views` (never empty). Changes nothing. May choose one whose `room_in_ns` is
        not 0: the request then waits for it."""
        ...

    def on_dispatch(self, arrival: Arrival, replica: str, now_ns: int) -> None:
        """`arrival` was sent there. Where no events tell, its blocks are taken as stored there from now on."""
        ...

    def on_end(
        self, arrival: Arrival, replica: str, cached_tokens: int | None, now_ns: int, *, kept: bool = True
    ) -> None:
        """It ended there; `cached_tokens` as the engine reported them, None = it did not. `kept` False: it ended before
        its prompt was prefilled (refused by the engine, cancelled, broken), so nothing of it is cached for sure."""
        ...

    def on_kv_event(self, replica: str, event: KvEvent, now_ns: int) -> None:
        """What the replica's prefix cache holds has changed."""
        ...

    def on_peers(self, use: FleetUse, now_ns: int) -> None:
        """What other gateways have sent to the replicas."""
        ...

    def cached_blocks(self, replica: str) -> int | None:
        """Named blocks that are in its prefix cache as far as is known, in use or not; None = nothing is known."""
        ...

    def forget(self, replica: str) -> None:
        """The replica lost everything it had cached: restarted, or gone."""
        ...
