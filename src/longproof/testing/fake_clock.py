"""A clock that is moved by hand."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

_START = datetime(2026, 1, 1, tzinfo=UTC)


class FakeClock:
    """Implements `longproof.clock.Clock`. Time stands still until `advance`; wall and monotonic time move together."""

    def __init__(self, *, start_ns: int = 0, wall: datetime = _START) -> None:
        self._now_ns = start_ns
        self._started_ns = start_ns
        self._wall = wall

    def now_ns(self) -> int:
        return self._now_ns

    def wall(self) -> datetime:
        return self._wall + timedelta(microseconds=(self._now_ns - self._started_ns) / 1_000)

    def advance(self, ns: int) -> int:
        """Moves time forward by `ns` nanoseconds and returns the new now. ValueError when `ns` is negative."""
        if ns < 0:
            raise ValueError(f"a monotonic clock cannot go back ({ns} ns)")
        self._now_ns += ns
        return self._now_ns

    def advance_s(self, seconds: float) -> int:
        """Moves time forward by `seconds`, rounded to whole nanoseconds."""
        return self.advance(round(seconds * 1e9))
