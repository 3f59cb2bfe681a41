"""How often others had their turn on the event loop while something long was done."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager


class LoopTurns:
    """`count`: turns of the loop so far."""

    count = 0


@asynccontextmanager
async def loop_turns() -> AsyncGenerator[LoopTurns]:
    """Counts them until it is left."""
    turns = LoopTurns()

    async def turn() -> None:
        while True:
            turns.count += 1
            await asyncio.sleep(0)

    turning = asyncio.create_task(turn())
    try:
        yield turns
    finally:
        turning.cancel()
