"""What the controller is told of one request: how it arrived, and how it ended."""

from __future__ import annotations

from enum import StrEnum

from longproof.frozen import frozen


@frozen(kw_only=True)
class Arrival:
    """One request at the door.

    `input_tokens` has template and special tokens in it; with `exact` False it is an upper bound that `on_counted`
    corrects. `output_tokens` is the allowance (max_tokens, or what the engine would take by itself), all choices
    together. `blocks` names the whole blocks of the input (`policy.hashing`: chained, so equal names mean equal
    prefixes); empty = not known. `by_text`: 0 = they are names of tokens. Else they name text, of which no event ever
    speaks, each as long as so many blocks of the replica, about; and `input_tokens`, unless `exact`, is an estimate,
    rather too high: good enough to find a place by, too little to refuse anybody for. A smaller `priority` is served
    earlier. `deadline_ns` is when the first token is of no more use. `session` is a hint that names a conversation;
    nothing depends on it. `streamed` False: nobody will see its first token, so the end of its prefill is estimated.
    `only`: the one replica it is meant for (it warms a pinned prefix there), None = any. Raises ValueError for a
    negative count.
    """

    id: str
    tenant: str
    model: str
    input_tokens: int
    exact: bool
    output_tokens: int
    blocks: tuple[int, ...] = ()
    by_text: int = 0
    priority: int = 0
    deadline_ns: int | None = None
    session: str | None = None
    streamed: bool = True
    only: str | None = None

    def __post_init__(self) -> None:
        if self.input_tokens < 0 or self.output_tokens < 0:
            raise ValueError(f"request {self.id} has a negative count of tokens")


class EndKind(StrEnum):
    """How a request's stay on a replica ended."""

    COMPLETED = "completed"
    CANCELLED = "cancelled"
    """The client left, or gave up on it."""
    FAILED = "failed"
    """The replica or the connection to it broke: counts against the replica."""
    REJECTED = "rejected"
    """The engine said the request itself is wrong (400, 413): counts against nobody."""


@frozen(kw_only=True)
class Ended:
    """The end of a request. Counts are the engine's usage where it told them; None = nobody knows."""

    kind: EndKind
    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
