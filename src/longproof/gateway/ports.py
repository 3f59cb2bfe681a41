"""What the shell needs of its neighbours, so that each can be built and tested alone.

    Counting   how long a prompt is          (`gateway.counting`)
    Meter      what is written down of it     (`gateway.meter`)
    Observer   who watches it all             (`gateway.metrics`, `gateway.dashboard`, `gateway.decisions`, `gateway.tracing`)

All of it is called on the event loop and must return within microseconds, but for `Counting.count`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from longproof.gateway.ask import Ask


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """The length of a prompt. `exact` False: `input_tokens` is never below the truth. `blocks` are the chained 64-bit
    hashes of its whole blocks, empty where they are not known (yet)."""

    input_tokens: int
    exact: bool
    blocks: tuple[int, ...] = ()


class Counting(Protocol):
    """Counts prompts of one fleet."""

    def bound(self, ask: Ask) -> Counted:
        """At once: exact where that costs microseconds (known, short, ids), else an upper bound from the bytes."""
        ...

    async def count(self, ask: Ask) -> Counted:
        """Exactly, off the event loop. Falls back to the bound when nobody can count; never raises for a prompt."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """A request that is about to be sent to a replica: what the meter must know even if the process dies now."""

    id: str
    key: str
    tenant: str
    model: str
    replica: str
    input_tokens: int
    output_tokens: int
    at_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """How an admitted request ended. Token counts are the engine's own where it told them (`reported`), else ours:
    the counted input, and the chunks that were passed on."""

    id: str
    ending: str
    status: int
    input_tokens: int
    cached_tokens: int | None
    output_tokens: int
    reported: bool
    at_ns: int
    first_token_ns: int | None = None


class Meter(Protocol):
    """Writes usage down, off the event loop."""

    def admitted(self, request: Admitted) -> None:
        """Before the request is sent."""
        ...

    def spent(self, request: Spent) -> None:
        """Once, at its end."""
        ...
