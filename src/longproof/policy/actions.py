"""What the controller answers. Every input yields a list of these; nothing else ever leaves it.

on_arrival ─▶ Dispatch | Wait | Refusal          at once
anything   ─▶ [Dispatch | Refusal, …]            for requests that waited
"""

from __future__ import annotations

from typing import TypeAlias

from longproof.frozen import frozen
from longproof.policy.choice import Score


@frozen(kw_only=True)
class Dispatch:
    """Send request `id` to `replica` now; its place in the ledger is taken.

    `cached_tokens` and `uncached_tokens` are what the block index expects of the prefix cache there, `pool` the name
    under which that replica's service is sold. `warnings` go to the client as response headers (an expired claim, a
    length nobody proved). `attempt` counts from 1; above it an engine refused the earlier ones.
    """

    id: str
    replica: str
    reason: str
    scores: tuple[Score, ...] = ()
    pool: str = ""
    input_tokens: int = 0
    cached_tokens: int = 0
    uncached_tokens: int = 0
    waited_ns: int = 0
    predicted_ttft_ns: int = 0
    attempt: int = 1
    warnings: tuple[str, ...] = ()


@frozen(kw_only=True)
class Wait:
    """Request `id` waits: a later Dispatch or Refusal decides it.

    `count`: its exact length is wanted (call `on_counted`); a request whose length is not exact and that has `count`
    is not dispatched before. `exact` False: its length is known well enough, and the names of its blocks will do.
    `reserved`: its upper bound is held in the ledger already, only the count is missing.
    `ahead`: requests that are served before it, as things stand. `wait_ns`: the estimated wait, None = nothing to
    estimate it from.
    """

    id: str
    reason: str
    count: bool = False
    exact: bool = True
    reserved: bool = False
    ahead: int = 0
    wait_ns: int | None = None
    scores: tuple[Score, ...] = ()


@frozen(kw_only=True)
class Refusal:
    """Request `id` is not served. `status` is HTTP's; `code` is stable; `reason` is a sentence for people.

    `limit` and `actual` are in `unit` where a number was exceeded. `retry_after_ns` (at least a second) goes with 429
    and 503 and with nothing else: waiting does not make a prompt shorter.
    """

    id: str
    status: int
    code: str
    reason: str
    limit: int | None = None
    actual: int | None = None
    unit: str = ""
    retry_after_ns: int | None = None
    scores: tuple[Score, ...] = ()


Decision: TypeAlias = Dispatch | Wait | Refusal
"""The answer to an arrival."""

Action: TypeAlias = Dispatch | Refusal
"""What becomes of a request that waited."""
