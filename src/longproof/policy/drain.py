"""How fast a ledger empties, and so how long what does not fit has to wait.

    rate = held blocks / stay           stay = how long a block was held, on average over the blocks lately released

By Little's law that is what comes free per second while the ledger stays as full as it is; counting releases instead
would measure how many requests came, and promise too little whenever it was quiet before. A ledger that releases
nothing for longer than a stay empties more slowly than it did: the time since the last release then stands in.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from longproof.domain.units import NS_PER_S

_TAU_NS = 60 * NS_PER_S
LEAST_RETRY_NS = NS_PER_S
MOST_RETRY_NS = 300 * NS_PER_S


@dataclass(slots=True)
class Drain:
    """Releases of one ledger. Older ones weigh less: half after 42 s."""

    _blocks: float = 0.0
    _block_ns: float = 0.0
    _last_ns: int = 0

    def released(self, blocks: int, stay_ns: int, now_ns: int) -> None:
        """So many blocks became free that were held for `stay_ns`."""
        if blocks <= 0:
            return
        fade = math.exp((self._last_ns - now_ns) / _TAU_NS) if now_ns > self._last_ns else 1.0
        self._blocks = self._blocks * fade + blocks
        self._block_ns = self._block_ns * fade + blocks * stay_ns
        self._last_ns = max(now_ns, self._last_ns)

    @property
    def known(self) -> bool:
        """Whether anything was released yet."""
        return self._blocks > 0

    def stay_ns(self, now_ns: int, guess_ns: int) -> int:
        """How long blocks are held; `guess_ns` where none has been released yet."""
        if not self._blocks:
            return max(1, guess_ns)
        return max(1, int(self._block_ns / self._blocks), now_ns - self._last_ns)

    def blocks_per_s(self, held_blocks: int, now_ns: int, guess_ns: int) -> float:
        """What comes free per second."""
        return held_blocks / self.stay_ns(now_ns, guess_ns) * NS_PER_S

    def wait_ns(self, blocks: int, held_blocks: int, now_ns: int, guess_ns: int) -> int:
        """How long until `blocks` more are free."""
        if blocks <= 0:
            return 0
        if held_blocks <= 0:
            return MOST_RETRY_NS  # nothing is held that could come free
        return min(MOST_RETRY_NS, blocks * self.stay_ns(now_ns, guess_ns) // held_blocks)


def retry_after_ns(wait_ns: int | None) -> int:
    """A wait as a client is told it: whole seconds, rounded up, 1 s to 5 min."""
    wait = LEAST_RETRY_NS if wait_ns is None else wait_ns
    return min(MOST_RETRY_NS, max(LEAST_RETRY_NS, -(-wait // NS_PER_S) * NS_PER_S))
