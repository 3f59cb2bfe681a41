"""How fast a ledger empties, and so how long what does not fit has to wait.

Releases are counted in a window that forgets (time constant 20 s): rate = weighted blocks / weighted time. Retry-After
and estimated waits come from it. Where nothing has been released yet, the caller's guess stands in.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

NS_PER_S = 1_000_000_000
_TAU_NS = 20 * NS_PER_S
LEAST_RETRY_NS = NS_PER_S
MOST_RETRY_NS = 300 * NS_PER_S


@dataclass(slots=True)
class Drain:
    """Releases of one replica's fullest stage."""

    _weighted: float = 0.0
    _first_ns: int | None = None
    _last_ns: int = 0

    def released(self, blocks: int, now_ns: int) -> None:
        """So many blocks became free."""
        if self._first_ns is None:
            self._first_ns = self._last_ns = now_ns
        elif now_ns > self._last_ns:
            self._weighted *= math.exp((self._last_ns - now_ns) / _TAU_NS)
            self._last_ns = now_ns
        self._weighted += blocks

    def blocks_per_s(self, now_ns: int) -> float | None:
        """The rate now; None when nothing was released yet, or all of it at one moment."""
        if self._first_ns is None or now_ns <= self._first_ns:
            return None
        weighted = self._weighted * math.exp((self._last_ns - now_ns) / _TAU_NS)
        seen = _TAU_NS * (1 - math.exp((self._first_ns - now_ns) / _TAU_NS))
        return weighted / seen * NS_PER_S if weighted > 0 else None

    def wait_ns(self, blocks: int, now_ns: int, guess_ns: int) -> int:
        """How long until `blocks` more are free at this rate; `guess_ns` where there is no rate."""
        rate = self.blocks_per_s(now_ns)
        if rate is None or rate <= 0:
            return guess_ns
        return min(MOST_RETRY_NS, int(blocks / rate * NS_PER_S))


def retry_after_ns(wait_ns: int | None) -> int:
    """A wait as a client is told it: whole seconds, rounded up, 1 s to 5 min."""
    wait = LEAST_RETRY_NS if wait_ns is None else wait_ns
    return min(MOST_RETRY_NS, max(LEAST_RETRY_NS, -(-wait // NS_PER_S) * NS_PER_S))
