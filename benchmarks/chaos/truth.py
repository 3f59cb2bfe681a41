"""What really happened, as each side wrote it down by itself: engines in a file that outlives them, clients in memory.

An engine's file has a line when a request reaches it and one when it has ended, each written with one write(): what was
written before a kill -9 is there after it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import orjson

NUMBER_HEADER = "traceparent"
"""The one header of a client that a gateway hands to an engine as it is: the request's number travels in it."""


def header_of(number: int) -> str:
    """A trace context whose trace id is the number."""
    return f"00-{number:032x}-{number:016x}-01"


def number_in(header: str) -> int | None:
    """Back again; None for what is no request of ours (the gateway's own probes)."""
    parts = header.split("-")
    return int(parts[1], 16) if len(parts) == 4 else None


@dataclass(slots=True, kw_only=True)
class Generation:
    """One request as one engine saw it. `ending` None: the engine was killed meanwhile, and how far it was is not
    known. Times are monotonic nanoseconds, the same clock for all processes of a machine."""

    engine: str
    life: int
    number: int
    gateway_id: str
    began_ns: int
    ended_ns: int | None = None
    ending: str | None = None
    status: int | None = None
    prompt_tokens: int | None = None
    cached_tokens: int = 0
    output_tokens: int = 0
    claimed_output: int | None = None

    @property
    def refused(self) -> bool:
        """Whether it never began to compute."""
        return self.ending == "refused"


def generations_in(path: Path, engine: str) -> list[Generation]:
    """All that a file tells."""
    found: dict[tuple[int, int], Generation] = {}
    for line in path.read_bytes().splitlines() if path.exists() else []:
        told = orjson.loads(line)
        key = (told["life"], told["index"])
        if told["what"] == "began":
            number = number_in(told["trace"])
            if number is not None:
                found[key] = Generation(
                    engine=engine,
                    life=told["life"],
                    number=number,
                    gateway_id=told["id"],
                    began_ns=told["at_ns"],
                )
        elif key in found:
            one = found[key]
            one.ended_ns, one.ending, one.status = told["at_ns"], told["ending"], told["status"]
            one.prompt_tokens, one.output_tokens = told["prompt"], told["output"]
            one.claimed_output, one.cached_tokens = told["claimed"], told["cached"]
    return list(found.values())


@dataclass(slots=True, kw_only=True)
class Asked:
    """One request as its client saw it. `reused`: it may go over a kept connection. `tokens`: answer events with text
    that were received.

    `outcome`: completed, error (an error object, or a status of 500 and more but 503), refused (any other status), left
    (the client went, as planned), broken (the connection went), unreached (no connection), silent (no end within a
    minute), garbled (an event or answer that is no JSON)."""

    number: int
    episode: int
    streamed: bool
    kind: str
    reused: bool
    began_ns: int
    ended_ns: int | None = None
    outcome: str = ""
    ends: int = 0
    status: int | None = None
    code: str = ""
    gateway_id: str | None = None
    replica: str | None = None
    tokens: int = 0
    used_input: int | None = None
    used_output: int | None = None
    retry_after: str | None = None


@dataclass(slots=True, kw_only=True)
class Kill:
    """A process that was killed or stopped: "gateway" or an engine's name."""

    what: str
    at_ns: int
    back_ns: int | None = None


@dataclass(slots=True, kw_only=True)
class Feed:
    """KV events of one engine that went wrong at `at_ns`. `words`: of what has to be told of its index then; `told_ns`:
    when it was. `mended_ns`: when the events were right again, `well_ns`: when that was told."""

    what: str
    engine: str
    at_ns: int
    words: str
    told_ns: int | None = None
    mended_ns: int | None = None
    well_ns: int | None = None


@dataclass(slots=True, kw_only=True)
class Truth:
    """Everything of one run."""

    asked: list[Asked] = field(default_factory=list[Asked])
    generations: list[Generation] = field(default_factory=list[Generation])
    kills: list[Kill] = field(default_factory=list[Kill])
    feeds: list[Feed] = field(default_factory=list[Feed])
