"""How much slower than it should be an engine is now: jitter, and the lies that slow everything."""

from __future__ import annotations

import math
import random

from longproof.clock import NS_PER_S
from longproof.testing.behaviour import Behaviour
from longproof.testing.lie import find
from longproof.testing.lies_of_load import Degrade, SlowRecovery


class Slowness:
    """Fed with what happens, asked for a factor."""

    def __init__(self, rng: random.Random, started_ns: int) -> None:
        self._rng = rng
        self._started_ns = started_ns
        self._degraded = 1.0
        self._overload_ns: int | None = None

    def request(self, lie: Degrade | None) -> None:
        """A request came for which a lie is in force or none."""
        if lie is not None and lie.after_s is None:
            self._degraded = min(self._degraded * lie.per_request, lie.most)

    def queue(self, waiting: int, behaviour: Behaviour, now_ns: int) -> None:
        """So many requests wait now."""
        lie = find(behaviour.lies, SlowRecovery)
        if lie is not None and waiting > lie.over_waiting:
            self._overload_ns = now_ns

    def factor(self, behaviour: Behaviour, now_ns: int) -> float:
        """Of every time that begins now; jitter is drawn anew."""
        degrade, slow = find(behaviour.lies, Degrade), find(behaviour.lies, SlowRecovery)
        factor = self._degraded * self._jitter(behaviour.jitter)
        if degrade is not None and degrade.after_s is not None:
            factor *= degrade.most if now_ns - self._started_ns >= degrade.after_s * NS_PER_S else 1.0
        if slow is not None and self._overload_ns is not None:
            factor *= slow.factor if now_ns - self._overload_ns <= slow.for_s * NS_PER_S else 1.0
        return factor

    def _jitter(self, sigma: float) -> float:
        return math.exp(self._rng.gauss(0.0, sigma) - sigma * sigma / 2) if sigma else 1.0
