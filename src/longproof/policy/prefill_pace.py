"""How fast a replica prefills, learned from its first tokens where nobody has said.

    dispatch a ── b ──────── first a ── first b ─────▶ time
             └─── a's tokens ───┘  └─ b's ─┘              rate = tokens / time, over a stretch

A prefill is taken to begin when its request was sent, or when the one before it was done, whichever is later: what it
waited behind is not its own. Prompts that an engine prefills together come out together; they are one *stretch*, whose
sums are right although none of its requests' times is.

The rate is the median of the latest stretches, by tokens. One that hung for a minute, or a prompt that was cached
although nobody knew, moves it no further than any other would. What an engine always does beside it (decoding, other
clients) is in the rate, as it is in what will be waited for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from longproof.domain.fleet import PrefillSource
from longproof.policy.prefill_cost import PrefillCost

_LEAST_TOKENS = 64
"""Below it, what is measured is the way there and back."""
_ENOUGH = 3
_STRETCHES = 48
_PART = 0.25
"""A first token that took this share of its stretch's first was not prefilled together with it: it begins another."""
_LONGEST = 2
"""Nor was one that makes its stretch last so many times as long as its first."""


@dataclass(slots=True, eq=False)
class Stretch:
    """Prompts that came out together: their uncached tokens, and the time from the one before to the last of them."""

    tokens: int
    ns: int
    first_ns: int

    @property
    def ns_per_token(self) -> float:
        """Its pace."""
        return self.ns / self.tokens

    def takes(self, ns: int) -> bool:
        """Whether a first token that long after the last was prefilled together with it."""
        return ns < self.first_ns * _PART and self.ns + ns <= self.first_ns * _LONGEST


@dataclass(slots=True)
class PrefillPace:
    """One replica's."""

    given: PrefillCost
    seen: int = 0
    cost: PrefillCost = field(init=False)
    """What a prefill costs by now: as given, until enough was seen."""
    _stretches: deque[Stretch] = field(default_factory=lambda: deque(maxlen=_STRETCHES))
    _last_ns: int = 0

    def __post_init__(self) -> None:
        self.cost = self.given

    @property
    def learned(self) -> bool:
        """Whether `cost` is what was seen."""
        return self.cost is not self.given

    @property
    def source(self) -> PrefillSource:
        """What `cost` rests on."""
        return PrefillSource.LEARNED if self.learned else PrefillSource.ASSUMED

    def first_token(self, uncached_tokens: int, sent_ns: int, now_ns: int) -> Stretch | None:
        """A prefill of so many tokens, sent then, is done. Returns what it was counted in; None = nothing."""
        idle, took_ns = sent_ns >= self._last_ns, now_ns - max(sent_ns, self._last_ns)
        self._last_ns = max(now_ns, self._last_ns)
        if uncached_tokens < _LEAST_TOKENS or took_ns < 0:
            return None
        stretch = None if idle or not self._stretches else self._stretches[-1]
        if stretch is not None and stretch.takes(took_ns):
            stretch.tokens += uncached_tokens
            stretch.ns += took_ns
        else:
            stretch = Stretch(uncached_tokens, took_ns, took_ns)
            self._stretches.append(stretch)
        self.seen += 1
        self._settle()
        return stretch

    def corrected(self, stretch: Stretch, more_tokens: int) -> None:
        """The engine has told how much of a prompt was cached: its stretch had so many more tokens to prefill, or less
        where negative."""
        stretch.tokens = max(0, stretch.tokens + more_tokens)
        self._settle()

    def _settle(self) -> None:
        usable = [stretch for stretch in self._stretches if stretch.tokens >= _LEAST_TOKENS and stretch.ns > 0]
        if self.seen >= _ENOUGH and usable:
            self.cost = replace(self.given, ns_per_token=_median(usable))


def _median(stretches: Iterable[Stretch]) -> float:
    """Nanoseconds per token: half of all tokens were prefilled at this pace or faster."""
    ranked = sorted(stretches, key=lambda stretch: stretch.ns_per_token)
    half = sum(stretch.tokens for stretch in ranked) / 2
    for stretch in ranked:
        half -= stretch.tokens
        if half <= 0:
            return stretch.ns_per_token
    return ranked[-1].ns_per_token
