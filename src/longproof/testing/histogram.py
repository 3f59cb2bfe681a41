"""A Prometheus histogram: counts per bucket, sum and count, and its lines."""

from __future__ import annotations

from bisect import bisect_left

LATENCY_S = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
    1920.0, 7680.0,
)  # fmt: skip
FIRST_TOKEN_S = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
    160.0, 640.0, 2560.0,
)  # fmt: skip
INTER_TOKEN_S = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
PREEMPTIONS = (1, 2, 3, 4, 5, 10, 20)
TRANSFER_S = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 5.0)
TRANSFER_BYTES = tuple(float(2 ** (10 + i)) for i in range(1, 25, 2))
"""Bucket borders as vLLM 0.32 has them (v1/metrics/buckets.py, nixl/stats.py)."""


class Histogram:
    """Observations in buckets; a value on a border belongs below it."""

    def __init__(self, borders: tuple[float, ...]) -> None:
        self._borders = borders
        self._counts = [0] * (len(borders) + 1)
        self.sum = 0.0
        self.count = 0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._borders, value)] += 1
        self.sum += value
        self.count += 1

    def lines(self, name: str, label: str) -> list[str]:
        """The text of /metrics; `label` is what stands between the braces."""
        lines, below = [f"# TYPE {name} histogram"], 0
        for border, count in zip([*map(str, self._borders), "+Inf"], self._counts, strict=True):
            below += count
            lines.append(f'{name}_bucket{{{label},le="{border}"}} {below:.1f}')
        return [*lines, f"{name}_sum{{{label}}} {self.sum}", f"{name}_count{{{label}}} {self.count:.1f}"]
