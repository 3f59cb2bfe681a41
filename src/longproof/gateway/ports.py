"""What the shell needs of its neighbours, so that each can be built and tested alone.

    Counting   how long a prompt is          (`gateway.counting`)
    Meter      what is written down of it     (`gateway.meter`)
    Observer   who watches it all             (`gateway.metrics`, `dashboard`, `decisions`, `tracing`)

All of it is called on the event loop and must return within microseconds, but for `Counting.count`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from longproof.frozen import frozen
from longproof.gateway.ask import Ask
from longproof.policy.actions import Action, Decision
from longproof.policy.arrivals import Arrival, Ended, EndKind


class Controls(Protocol):
    """The controller, as far as the shell moves requests through it. It decides and knows no time of its own."""

    def on_arrival(self, arrival: Arrival, now_ns: int, /) -> Decision: ...
    def on_counted(
        self, request_id: str, input_tokens: int, blocks: tuple[int, ...], now_ns: int, /, *, by_text: int = 0
    ) -> Sequence[Action]: ...
    def on_first_token(self, request_id: str, now_ns: int, /) -> Sequence[Action]: ...
    def on_output(self, request_id: str, output_tokens: int, now_ns: int, /) -> Sequence[Action]: ...
    def on_refused_by_engine(self, request_id: str, retry_after_ns: int | None, now_ns: int, /) -> Sequence[Action]: ...
    def on_finish(self, request_id: str, end: Ended, now_ns: int, /) -> Sequence[Action]: ...
    def on_tick(self, now_ns: int, /) -> Sequence[Action]: ...
    def cancel(self, request_id: str, now_ns: int, /) -> Sequence[Action]: ...
    def kv_token_ms(self, request_id: str, now_ns: int, /) -> int | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """The length of a prompt. `exact` False: `input_tokens` is never below the truth. `blocks` are the chained 64-bit
    hashes of its whole blocks, empty where they are not known (yet). `by_text`: see `policy.arrivals.Arrival`; then
    `input_tokens` may be an estimate that is only rarely below the truth."""

    input_tokens: int
    exact: bool
    blocks: tuple[int, ...] = ()
    by_text: int = 0


class Counting(Protocol):
    """Counts prompts of one fleet."""

    def bound(self, ask: Ask) -> Counted:
        """At once: exact where that costs microseconds (known, short, ids), else an upper bound or an estimate from
        the bytes."""
        ...

    async def count(self, ask: Ask, *, exact: bool = True) -> Counted:
        """Exactly, off the event loop. Falls back to the bound when nobody can count; never raises for a prompt.

        `exact` False: its bound fits or its estimate is good enough, and only the names of its blocks are wanted.
        """
        ...

    def told(self, model: str, counted: Counted, prompt_tokens: int | None) -> None:
        """The engine's usage for a prompt that was counted, to hold the count against."""
        ...


@frozen(kw_only=True)
class Admitted:
    """A request that is about to be sent to a replica: what the meter must know even if the process dies now.

    `pool` and `predicted_cached_tokens` are the dispatch's: the pool prices its SKU, the predicted hit stands where the
    engine does not report one.
    """

    id: str
    key: str
    tenant: str
    model: str
    replica: str
    input_tokens: int
    output_tokens: int
    at_ns: int
    pool: str = ""
    predicted_cached_tokens: int | None = None


@frozen(kw_only=True)
class Spent:
    """How an admitted request ended. Token counts are the engine's own where it told them (`reported`), else ours:
    the counted input (with `exact` False an upper bound of it), and the chunks that were passed on. `kv_token_ms`: the
    cache that was held for it, as the controller's ledger has it, in token-milliseconds."""

    id: str
    ending: EndKind
    status: int
    input_tokens: int
    cached_tokens: int | None
    output_tokens: int
    reported: bool
    at_ns: int
    first_token_ns: int | None = None
    kv_token_ms: int | None = None
    exact: bool = True


class MeterUnavailable(Exception):  # noqa: N818 - named for the state it reports
    """Nothing can be written down now, so nothing may be served; the reason is for the operator."""


class Meter(Protocol):
    """Writes usage down, off the event loop."""

    def admitted(self, request: Admitted) -> None:
        """Before the request is sent. Raises MeterUnavailable: it must not be sent then (503). A second call for one id
        follows a replica's refusal."""
        ...

    def passed(self, request_id: str, output_tokens: int) -> None:
        """So many output tokens were passed on in all: what is on the books should the process die now."""
        ...

    def spent(self, request: Spent) -> None:
        """Once, at its end."""
        ...
