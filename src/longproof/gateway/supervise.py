"""Engines of ours that end by themselves are started again: after a second, and twice as long after each failure in a
row, at most a minute. What they had is lost; the watch sees that it is another life."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from longproof.clock import NS_PER_S
from longproof.engines.process import OwnedProcess
from longproof.errors import LongproofError
from longproof.gateway.config import EngineSection
from longproof.gateway.launched import Standing

_LOOK_S = 0.5
_FIRST_WAIT_S = 1.0
_LONGEST_WAIT_S = 60.0
_STEADY_S = 60.0
"""Who ran this long did not fail at the start: the next wait is short again."""

_log = logging.getLogger("longproof.gateway")


class Supervision:
    """Looks after the engines that were started here. `start` and `close` on the event loop; engines are stopped by
    whoever started them, after `close`."""

    def __init__(self, standing: Sequence[Standing], *, first_wait_s: float = _FIRST_WAIT_S) -> None:
        self._ours = [
            (one.name, one.process, one.section.start_within / NS_PER_S)
            for one in standing
            if one.process is not None and isinstance(one.section, EngineSection)
        ]
        self._first_wait_s = first_wait_s
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begins to look."""
        self._tasks = [asyncio.create_task(self._follow(*one)) for one in self._ours]

    async def close(self) -> None:
        """Starts nothing any more."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _follow(self, name: str, process: OwnedProcess, within_s: float) -> None:
        loop = asyncio.get_running_loop()
        wait_s, began_s = self._first_wait_s, loop.time()
        while True:
            await asyncio.sleep(_LOOK_S)
            death = process.death()
            if death is None:
                continue
            if loop.time() - began_s > _STEADY_S:
                wait_s = self._first_wait_s
            why = f"ended: {death.what}"
            while why:
                _log.error("engine %s %s; started again in %g s", name, why, wait_s)
                await asyncio.sleep(wait_s)
                wait_s = min(_LONGEST_WAIT_S, wait_s * 2)
                began_s = loop.time()
                try:
                    await process.start(deadline_s=within_s)
                    why = ""
                except (LongproofError, OSError) as problem:  # too late, or no room for its log
                    why = f"does not start: {problem}"
            _log.warning("engine %s is back", name)
