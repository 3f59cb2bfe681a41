"""After a request that hung, broke or found nobody: is the server still there? Recorded, because a crash is a
finding."""

from __future__ import annotations

import asyncio

from longproof.asking.context import ProbeContext
from longproof.domain.events import RequestTimeline
from longproof.domain.outcome import Outcome, classify
from longproof.errors import LongproofError

_SUSPECT = {
    Outcome.HUNG,
    Outcome.TIMED_OUT,
    Outcome.CUT,
    Outcome.SERVER_ERROR,
    Outcome.ERROR_IN_STREAM,
    Outcome.UNREACHABLE,
    Outcome.EMPTY,
    Outcome.ABORTED,
}
_TRIES = 6
_PAUSE_S = 2.0
_LEAST_WAIT_S = 5.0


class EngineGone(Exception):  # noqa: N818 - not an error: the run ends in order, and the claim says how far it came
    """The server no longer produces tokens and we cannot bring it back."""


async def check_alive(ctx: ProbeContext, key: str, *, probe: str, after: RequestTimeline) -> None:
    """Makes sure the next request meets a working server; records what it took.

    Does nothing after an ordinary outcome. Otherwise asks for one real token (health pages lie), waits a little for a
    server that is busy with the request we gave up on, restarts it where we own the process. Raises EngineGone when
    nothing helps.
    """
    outcome = classify(after)
    if outcome not in _SUSPECT or ctx.journal.get(f"{key}/alive") is not None:
        return
    for attempt in range(_TRIES):
        if await _alive(ctx):
            ctx.note(f"{key}/alive", probe=probe, what="alive", after=outcome.value, waits=attempt, restarted=False)
            return
        await asyncio.sleep(_PAUSE_S)
    restarted = await _restart(ctx)
    alive = restarted and await _alive(ctx)
    ctx.note(f"{key}/alive", probe=probe, what="died", after=outcome.value, waits=_TRIES, restarted=alive)
    if not alive:
        raise EngineGone(f"after {key} ({outcome.value}) the server produced no token in {_TRIES} tries")


async def _alive(ctx: ProbeContext) -> bool:
    """Whether one token comes within the run's own time for a request: who gives requests seconds does not wait minutes
    to learn that a server hangs."""
    try:
        async with asyncio.timeout(max(ctx.protocol.request_timeout_s, _LEAST_WAIT_S)):
            return await ctx.engine.alive()
    except TimeoutError:
        return False


async def _restart(ctx: ProbeContext) -> bool:
    if not ctx.engine.capabilities.restarts:
        return False
    try:
        await ctx.engine.restart()
    except LongproofError:
        return False
    return True
