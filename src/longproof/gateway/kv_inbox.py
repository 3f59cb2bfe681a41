"""From the feed's thread to the event loop: changes in order, a little at a time.

A prompt of a million tokens is 60,000 blocks, and applying them at once would hold everybody's streams for 60 ms. So
one turn of the loop applies `TURN_BLOCKS` at most. When too much waits, the feed waits (`put` blocks in its thread),
then ZeroMQ's queue fills, and what it drops shows as a gap: memory is bounded at every step.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from typing import TypeAlias

from longproof.domain.kv_event import KvEvent, KvRemoved, KvStored

Apply: TypeAlias = Callable[[str, KvEvent], None]
TURN_BLOCKS = 2_048
_MOST_WAITING_BLOCKS = 1_000_000


class KvInbox:
    """Give `put` to a `KvFeed`; `apply` is called on the loop that made the inbox."""

    def __init__(self, apply: Apply, *, most_waiting_blocks: int = _MOST_WAITING_BLOCKS) -> None:
        self._apply = apply
        self._loop = asyncio.get_running_loop()
        self._most = most_waiting_blocks
        self._waiting: deque[tuple[str, KvEvent]] = deque()
        self._blocks = 0
        self._room = threading.Condition()
        self._closed = False
        self._scheduled = False

    def put(self, replica: str, events: list[KvEvent]) -> None:
        """Hands events over, from any thread but the loop's. Waits while too many wait already."""
        blocks = sum(map(_blocks, events))
        with self._room:
            while not self._closed and self._blocks and self._blocks + blocks > self._most:
                self._room.wait(0.5)
            if self._closed:
                return
            self._blocks += blocks
            self._waiting.extend((replica, event) for event in events)
            if self._scheduled:
                return
            self._scheduled = True
        try:
            self._loop.call_soon_threadsafe(self._turn)
        except RuntimeError:  # the loop is closed: nobody is interested any more
            self.close()

    def close(self) -> None:
        """Drops what waits and whatever comes. Safe to call twice."""
        with self._room:
            self._closed = True
            self._waiting.clear()
            self._room.notify_all()

    def _turn(self) -> None:
        left = TURN_BLOCKS
        while left > 0:
            with self._room:
                if not self._waiting:
                    self._scheduled = False
                    return
                replica, event = self._waiting.popleft()
                blocks = _blocks(event)
                self._blocks -= blocks
                self._room.notify_all()
            self._apply(replica, event)
            left -= blocks
        self._loop.call_soon(self._turn)


def _blocks(event: KvEvent) -> int:
    return len(event.blocks) + 1 if isinstance(event, KvStored | KvRemoved) else 1
