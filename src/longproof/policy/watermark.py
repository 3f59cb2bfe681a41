"""Room held back: a fixed watermark with hysteresis, and caution that is learned from preemptions.

    held │            ╱╲ growth
    stop ┼───────────╱──╲────────────      admission fills to here and never beyond
         │          ╱ nothing new ╲
  resume ┼─────────╱───────────────╲──     once above `stop`, nothing new before held is down to here

A preemption says that the books were too hopeful: each one raises caution at once, and calm minutes lower it again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from longproof.domain.units import NS_PER_S
from longproof.policy.controller_config import WatermarkRule
from longproof.policy.ledger import Pool

_STEP = 0.05
_MOST = 0.5
_CALM_NS = 60 * NS_PER_S
_ALARM_NS = 30 * NS_PER_S


def marked(pool: Pool, rule: WatermarkRule) -> Pool:
    """`pool` with the marks of `rule`. A pool that keeps more free by itself keeps it; one of places, into which nobody
    grows, has none."""
    if not pool.need.grows:
        return pool
    # rounded up: of a few large blocks (a slot's whole window each) none is held back
    stop = min(pool.stop_blocks, math.ceil(pool.capacity_blocks * rule.stop))
    resume = min(stop, math.ceil(pool.capacity_blocks * rule.resume))
    return replace(pool, watermark_blocks=pool.capacity_blocks - stop, resume_blocks=resume)


@dataclass(slots=True)
class Caution:
    """The share of a replica's capacity that is held back because its engine preempted."""

    _share: float = 0.0
    _since_ns: int = 0
    _last_ns: int | None = None

    def preempted(self, times: int, now_ns: int) -> None:
        """The engine preempted so often since the last sample."""
        self._share = min(_MOST, self.share(now_ns) + _STEP * times)
        self._since_ns = self._last_ns = now_ns

    def share(self, now_ns: int) -> float:
        """What is held back now: falls by a step per calm minute."""
        return max(0.0, self._share - _STEP * max(0, now_ns - self._since_ns) / _CALM_NS)

    def alarmed(self, now_ns: int) -> bool:
        """Whether a preemption is less than half a minute old."""
        return self._last_ns is not None and now_ns - self._last_ns < _ALARM_NS
