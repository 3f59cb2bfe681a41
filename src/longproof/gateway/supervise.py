"""Engines of ours that end by themselves are started again: after a second, and twice as long after each failure in a
row, at most a minute. What they had is lost; the watch sees that it is another life."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from longproof.engines.process import OwnedProcess
from longproof.errors import LongproofError
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
        self._ours = [(one.name, one.process) for one in standing if one.process is not None]
        self._first_wait_s = first_wait_s
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begins to look."""
        self._tasks = [asyncio.create_task(self._follow(name, process)) for name, process in self._ours]

    async def close(self) -> None:
        """Starts nothing any more."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _follow(self, name: str, process: OwnedProcess) -> None:
        loop = asyncio.get_running_loop()
        wait_s, began_s = self._first_wait_s, loop.time()
        while True:
            await asyncio.sleep(_LOOK_S)
            death = process.death()
            if death is None:
                continue
            if loop.time() - began_s > _STEADY_S:
                wait_s = self._first_wait_s
            _log.error("engine %s ended: %s; started again in %g s", name, death.what, wait_s)
            await asyncio.sleep(wait_s)
            wait_s = min(_LONGEST_WAIT_S, wait_s * 2)
            began_s = loop.time()
            try:
                await process.start()
                _log.warning("engine %s is back", name)
            except LongproofError as problem:
                _log.error("engine %s does not start: %s", name, problem)
