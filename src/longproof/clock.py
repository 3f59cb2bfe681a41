"""Time, read in one place.

Inside longproof time is integer nanoseconds of a monotonic clock. The wall clock is read only to say when a session
began.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Protocol

NS_PER_S = 1_000_000_000
NS_PER_MS = 1_000_000


class Clock(Protocol):
    """Where time comes from. `longproof.testing.FakeClock` is the other implementation."""

    def now_ns(self) -> int:
        """Monotonic time in nanoseconds; only differences mean anything."""
        ...

    def wall(self) -> datetime:
        """Wall-clock time in UTC, for stamps that people read."""
        ...


class SystemClock:
    """The machine's own clocks."""

    def now_ns(self) -> int:
        return time.monotonic_ns()

    def wall(self) -> datetime:
        return datetime.now(UTC)
