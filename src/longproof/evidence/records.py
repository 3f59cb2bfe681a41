"""What stands in an evidence directory. Every stored field explains itself; pydantic reads and writes these at the
edge.

    DIR/
      header.json      format, fingerprint, deployment, protocol: written before the first request
      records.jsonl    one `Record` a line, appended and synced; each names the hash of the line before it
      engine.log       the engine's own log, where we own its process
      seal.json        hashes of all of the above, written at the end
      claim.json, report.html   derived from the above; never read back
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from longproof.domain.deployment import Deployment
from longproof.domain.events import EngineSample, RequestTimeline
from longproof.domain.request import Route, TokenCount

FORMAT = 1
IN_TURNS = "in_turns"
"""What a note says where one client asked this server and another in turns, and no probe of its own tells."""
Parameters: TypeAlias = dict[str, int | float | str | bool | list[int] | list[float] | list[str]]
"""A probe's parameters, by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One probe in the protocol's order, with its parameters as they were decided before the first request."""

    probe: str
    parameters: Parameters


@dataclass(frozen=True, slots=True, kw_only=True)
class Protocol:
    """What will run and when it stops, written first. `seed` makes every choice repeatable; nonces come from the
    session's salt.

    `context_tokens`: the window to prove, None = all the server says it has. `budget_ns`, `budget_tokens`: None = no
    limit. `request_timeout_s`: after this long a request counts as hung. `not_run` names probes left out on purpose,
    with the reason. `choices` are the user's own words about load, where there were any.
    """

    seed: int
    route: Route
    context_tokens: int | None
    repeats: int
    output_tokens: int
    request_timeout_s: float
    budget_ns: int | None
    budget_tokens: int | None
    steps: tuple[Step, ...]
    not_run: dict[str, str] = field(default_factory=dict[str, str])
    choices: dict[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint:
    """What a claim is about: the known facts of a deployment, and one hash over them (sha256, hex)."""

    facts: dict[str, str]
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """header.json: everything decided before the first request."""

    format: int
    longproof_version: str
    target: str
    fingerprint: Fingerprint
    deployment: Deployment
    protocol: Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionBody:
    """A process began to write here. A resumed run has several. `salt` (hex) feeds nonces; `host` says what ran the
    client."""

    kind: Literal["session"] = "session"
    started_wall: str
    started_ns: int
    salt: str
    longproof_version: str
    host: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestBody:
    """One request and all that was observed. `cell` are the probe's coordinates (length, repeat, arm, position …);
    `prompt_sha256` is over the body's prompt; `nonce` makes its prompt rebuildable from the seed. `exact_output`: the
    engine was told, in its own dialect, to produce exactly `max_tokens`, so a natural stop is none. `planned_ns`: when
    a load's schedule wanted it sent; what lies between that and `timeline.submitted_ns` is the client's own delay.
    `cancel`: how and when it was to be cancelled, where it was; `left_ns`: when we then left, or asked the engine to
    abort it."""

    kind: Literal["request"] = "request"
    probe: str
    cell: dict[str, int | float | str | bool]
    timeline: RequestTimeline
    prompt_sha256: str
    exact_output: bool = False
    nonce: str | None = None
    before: EngineSample | None = None
    after: EngineSample | None = None
    planned_ns: int | None = None
    cancel: str | None = None
    left_ns: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CountBody:
    """A token count the server gave us, or the reason why it gave none."""

    kind: Literal["count"] = "count"
    probe: str
    cell: dict[str, int | float | str | bool]
    count: TokenCount | None
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NoteBody:
    """A fact of a probe that is neither a request nor a count: a step skipped for the budget, an engine that died, a
    decision."""

    kind: Literal["note"] = "note"
    probe: str
    what: str
    detail: dict[str, int | float | str | bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """The client's own event loop came back late: at `at_ns`, by `late_ns`. Whatever arrived meanwhile was stamped
    late by up to as much."""

    at_ns: int
    late_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplesBody:
    """Engine metrics sampled on the side while a window ran, in order, on the same clock as its requests. A window has
    several of these: each is on disk a few seconds after it was seen. `failed`: scrapes that got no answer."""

    kind: Literal["samples"] = "samples"
    probe: str
    cell: dict[str, int | float | str | bool]
    samples: tuple[EngineSample, ...]
    failed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowBody:
    """A stretch of time under a load, over when this is written. Its requests and samples stand before it under keys
    that begin with `prefix`; without this record they belong to a window that a crash tore and count for nothing.

    `load` says what was meant (arrival, concurrency or rate, lengths …). `lags` are the late returns of the client's
    event loop above 1 ms, of `lag_checks` looks; `workers` the processes that sent.
    """

    kind: Literal["window"] = "window"
    probe: str
    cell: dict[str, int | float | str | bool]
    prefix: str
    load: dict[str, int | float | str | bool]
    started_ns: int
    ended_ns: int
    requests: int
    lags: tuple[Lag, ...] = ()
    lag_checks: int = 0
    workers: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A sentence that was put into a haystack, and where it was meant to stand, as a share of the filler."""

    text: str
    depth: float
    evidence: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemBody:
    """One question of a task family, as it was drawn: all that is needed to judge a reply to it again.

    `needles` stand in the prompt verbatim; `evidence` false marks distractors. `answers` are right, every other of
    `candidates` is wrong, and `decoys` says what naming one means. `chance`: the share of right answers of somebody who
    guesses among what is shown. `pair`: twins with opposite answers share it. `depth` counts for the depth test.
    """

    kind: Literal["item"] = "item"
    probe: str
    cell: dict[str, int | float | str | bool]
    family: str
    index: int
    seed: str
    needles: tuple[Placed, ...]
    question: str
    answers: tuple[str, ...]
    candidates: tuple[str, ...]
    decoys: dict[str, str]
    chance: float
    pair: str | None
    answer_tokens: int
    filler: Literal["prose", "code"]
    depth: float


Body: TypeAlias = SessionBody | RequestBody | CountBody | NoteBody | SamplesBody | WindowBody | ItemBody


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One line of records.jsonl. `key` is unique and says which step it answers: a resumed run repeats no key that is
    here.

    `seq` counts from 0; `prev` is the sha256 of the line before, without its newline (of header.json for the first): a
    line that is removed breaks the chain.
    """

    seq: int
    key: str
    prev: str
    body: Body


@dataclass(frozen=True, slots=True, kw_only=True)
class Seal:
    """seal.json: sha256 by file name, the number of records and whether the protocol ran to its end."""

    format: int
    files: dict[str, str]
    records: int
    complete: bool
