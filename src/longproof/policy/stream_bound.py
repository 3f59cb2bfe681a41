"""How many streams a replica may carry so that answers keep a promised time per token: learned, nobody has to guess.

    time per token at n streams = base + each · n        a line through what streams report, later reports weigh more
    most = the largest n with (base + each · n) · (1 + spread) ≤ promise

`spread` is what 99 of 100 answers stay below, of what they take beyond the line: prefills beside them, chance. It is
raised by each answer beyond it and lowered by each within, a hundredth as much.

Where hardly more than one n was seen, or no rise, there is no line: each stream is then taken to cost its share of what
they take together, the most that an engine can make of it; but as long as the promise is kept one more is tried, and
what that does is the line's beginning. Nobody is let in beyond twice what was seen: an engine that is flat at first is
found out in a few steps (1, 2, 4, 8 …), one that is not does not suffer.
"""

from __future__ import annotations

from dataclasses import dataclass, field

_FADE = 0.995
"""Half the weight after 138 reports."""
_LEAST_VARIANCE = 0.02
"""Of the number of streams in the reports, over the square of its mean: below, they tell nothing of its effect."""
_SPREAD = 0.25
_MOST_SPREAD = 1.0
_SPREAD_STEP = 0.05
_BEYOND = 0.01
_NOTHING_NS = 1e-3
_HUNG = 4.0
"""A report so many times the line says that its engine hung, and counts as this."""


@dataclass(slots=True, eq=False)
class StreamBound:
    """One replica's. `assumed_ns`: a token of one stream, until something is seen. `most`: streams by now, prefills
    that will become such among them; at least one."""

    promise_ns: int
    assumed_ns: int
    most: int = field(init=False)
    _spread: float = _SPREAD
    _seen: int = 0
    _weight: float = 0.0
    _n: float = 0.0
    _nn: float = 0.0
    _ns: float = 0.0
    _n_ns: float = 0.0

    def __post_init__(self) -> None:
        self._settle()

    def foreseen_ns(self, streams: int) -> float:
        """A token's time beside so many streams, itself included, by the line."""
        base, each = self._line()
        return max(1.0, base + each * streams)

    def reported(self, streams: int, tokens: int, took_ns: int) -> None:
        """One of so many streams has produced so many tokens in that time."""
        if streams < 1 or tokens < 1 or took_ns <= 0:
            return
        pace = took_ns / tokens
        if self._weight:
            pace = min(pace, _HUNG * self.foreseen_ns(streams))
        self._weight = self._weight * _FADE + tokens
        self._n = self._n * _FADE + tokens * streams
        self._nn = self._nn * _FADE + tokens * streams * streams
        self._ns = self._ns * _FADE + tokens * pace
        self._n_ns = self._n_ns * _FADE + tokens * streams * pace
        self._seen = max(self._seen, streams)
        self._settle()

    def ended(self, took_ns: float, foreseen_ns: float) -> None:
        """An answer is over: what its reports took in all, and what the line had said."""
        if foreseen_ns <= 0:
            return
        beyond = took_ns > foreseen_ns * (1 + self._spread)
        step = _SPREAD_STEP * ((1 - _BEYOND) if beyond else -_BEYOND)
        self._spread = min(_MOST_SPREAD, max(0.0, self._spread + step))
        self._settle()

    def _line(self) -> tuple[float, float]:
        if not self._weight:
            return 0.0, float(self.assumed_ns)
        mean_n, mean_ns = self._n / self._weight, self._ns / self._weight
        variance = self._nn / self._weight - mean_n * mean_n
        rise = self._n_ns / self._weight - mean_n * mean_ns
        if variance < _LEAST_VARIANCE * mean_n * mean_n or rise <= 0:
            return 0.0, mean_ns / mean_n
        each = rise / variance
        return mean_ns - each * mean_n, each

    def _settle(self) -> None:
        base, each = self._line()
        aim_ns = self.promise_ns / (1 + self._spread)
        fits = int((aim_ns - base) / max(each, _NOTHING_NS))
        if not base and self._weight and self._ns / self._weight <= aim_ns:
            fits = max(fits, round(self._n / self._weight) + 1)
        self.most = max(1, min(fits, 2 * self._seen))
