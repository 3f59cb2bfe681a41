"""How much output requests turn out to produce: nine in ten produce no more than `expected` says.

Clients allow thousands of tokens and use dozens; charging the allowance would leave most of the memory idle, charging
nothing overruns it. The last 256 outputs of each tenant and model are kept, sorted.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict, deque
from dataclasses import dataclass, field

_KEPT = 256
_ENOUGH = 16
_SHARE = 0.9
_MOST_KEYS = 2_000


@dataclass(slots=True, eq=False)
class _Sample:
    recent: deque[int] = field(default_factory=deque[int])
    ordered: list[int] = field(default_factory=list[int])


class OutputMeasure:
    """Outputs by (tenant, model), the least recently used of them forgotten beyond 2,000."""

    def __init__(self) -> None:
        self._samples: OrderedDict[tuple[str, str], _Sample] = OrderedDict()

    def expected(self, tenant: str, model: str) -> int | None:
        """The 90th percentile of what was produced; None with fewer than 16 outputs."""
        sample = self._samples.get((tenant, model))
        if sample is None or len(sample.ordered) < _ENOUGH:
            return None
        return sample.ordered[int(len(sample.ordered) * _SHARE)]

    def produced(self, tenant: str, model: str, tokens: int) -> None:
        """A request ran to its end and produced this much."""
        key = (tenant, model)
        sample = self._samples.get(key)
        if sample is None:
            sample = self._samples[key] = _Sample()
            if len(self._samples) > _MOST_KEYS:
                self._samples.popitem(last=False)
        self._samples.move_to_end(key)
        sample.recent.append(tokens)
        insort(sample.ordered, tokens)
        if len(sample.recent) > _KEPT:
            old = sample.recent.popleft()
            del sample.ordered[bisect_left(sample.ordered, old)]
