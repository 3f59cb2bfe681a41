"""What the lying engine really did, kept apart from what it says it did."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Ending(StrEnum):
    """How a generation request ended, from the engine's side."""

    COMPLETED = "completed"
    REFUSED = "refused"
    ERROR = "error"
    """An error object inside the stream."""
    CUT = "cut"
    CRASHED = "crashed"
    DISCONNECTED = "disconnected"
    ABORTED = "aborted"
    """By order of somebody else: /abort_requests."""
    STOPPED = "stopped"
    """The engine was shut down while the request was open."""


@dataclass(slots=True, kw_only=True)
class Served:
    """One generation request as the engine saw it. Filled in while it runs, hence not frozen. Times: monotonic ns.

    `prompt_tokens` is what was sent, template included; `read_tokens` what the model really read; `cached_tokens`
    what really came from the cache. `output_tokens` were really sent. `claimed_usage` is the usage object of the
    answer, None where it had none. `options` is the request's body without its prompt; `lies` the names of the lies
    in force. `transferred_tokens` came from another engine's KV. `preemptions`: how often it lost its blocks, and the
    `recomputed_tokens` of that.
    """

    index: int
    path: str
    received_ns: int
    headers: dict[str, str] = field(default_factory=dict[str, str])
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    lies: tuple[str, ...] = ()
    prompt_tokens: int | None = None
    read_ids: array[int] = field(default_factory=lambda: array("I"))
    cached_tokens: int = 0
    transferred_tokens: int = 0
    preemptions: int = 0
    recomputed_tokens: int = 0
    output_tokens: int = 0
    text: str = ""
    claimed_usage: dict[str, Any] | None = None
    status: int | None = None
    admitted_ns: int | None = None
    headers_ns: int | None = None
    first_token_ns: int | None = None
    disconnected_ns: int | None = None
    finished_ns: int | None = None
    ending: Ending | None = None

    @property
    def read_tokens(self) -> int:
        return len(self.read_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """Any HTTP request that reached the engine: method, path and when (monotonic ns)."""

    method: str
    path: str
    at_ns: int


class EngineLog:
    """Everything that reached the engine since it was made; survives restarts. Written by the server's thread, read
    by the test's."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.requests: list[Served] = []

    def began(self, served: Served) -> None:
        """A generation request has reached the engine. Called on the server's thread."""
        self.requests.append(served)

    def ended(self, served: Served) -> None:
        """It is over, and all of it is filled in. For those who keep a log elsewhere too: override both."""

    @property
    def last(self) -> Served:
        """The latest generation request. IndexError when there was none."""
        return self.requests[-1]

    def wait_for(self, condition: Callable[[EngineLog], bool], *, timeout_s: float = 60.0) -> None:
        """Blocks until `condition(log)` holds; TimeoutError otherwise. For what the engine notices a little later:
        disconnects."""
        end = time.monotonic() + timeout_s
        while not condition(self):
            if time.monotonic() > end:
                raise TimeoutError(f"the engine's log did not come to the expected state within {timeout_s} s")
            time.sleep(0.005)
