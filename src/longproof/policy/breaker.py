"""When a replica whose requests break is left alone, and for how long."""

from __future__ import annotations

from longproof.policy.controller_config import BreakerRule

_MOST_DOUBLINGS = 20


class Breaker:
    """Counts failures in a row. After enough of them it opens, and for twice as long each time, until something works
    again."""

    __slots__ = ("_failures", "_opened_ns", "_openings", "_rule")

    def __init__(self, rule: BreakerRule) -> None:
        self._rule = rule
        self.reset()

    def failed(self, sent_ns: int, now_ns: int) -> int | None:
        """A request that was sent then broke. Returns how long to leave the replica alone if that was one too many.
        What was sent before it opened broke by the same trouble, and says nothing new."""
        if sent_ns <= self._opened_ns:
            return None
        self._failures += 1
        if self._failures < self._rule.failures:
            return None
        pause_ns = min(self._rule.longest_ns, self._rule.open_ns << min(self._openings, _MOST_DOUBLINGS))
        self._openings += 1
        self._opened_ns = now_ns
        return pause_ns

    def worked(self) -> None:
        """The replica produced something."""
        self._failures = self._openings = 0

    def reset(self) -> None:
        """It was restarted: nothing is known of it."""
        self.worked()
        self._opened_ns = -1
