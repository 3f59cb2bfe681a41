"""How fast a replica prefills, learned from its first tokens where nobody has said.

    dispatch a ── b ──────── first a ── first b ─────▶ time
             └─── a's tokens ───┘  └─ b's ─┘              rate = tokens / time, over busy stretches

A prefill is taken to begin when its request was sent, or when the one before it was done, whichever is later. Prompts
that an engine prefills together come out together: the first of them takes the time, the others almost none, and the
sums are right. What an engine does beside it (decoding, other clients) is in the rate, as it is in what will be waited
for.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from longproof.policy.prefill_cost import PrefillCost

_FADE = 0.97
_LEAST_TOKENS = 64
"""Below it, what is measured is the way there and back."""
_ENOUGH = 3


@dataclass(slots=True)
class PrefillPace:
    """One replica's. Later observations weigh more: half after 23."""

    given: PrefillCost
    _tokens: float = 0.0
    _ns: float = 0.0
    _seen: int = 0
    _last_ns: int = 0

    def first_token(self, uncached_tokens: int, sent_ns: int, now_ns: int) -> None:
        """A prefill of so many tokens, sent then, is done."""
        took_ns, self._last_ns = now_ns - max(sent_ns, self._last_ns), now_ns
        if uncached_tokens < _LEAST_TOKENS or took_ns < 0:
            return
        self._tokens = self._tokens * _FADE + uncached_tokens
        self._ns = self._ns * _FADE + took_ns
        self._seen += 1

    @property
    def cost(self) -> PrefillCost:
        """What a prefill costs by now: as given, until enough was seen."""
        if self._seen < _ENOUGH or self._ns <= 0:
            return self.given
        return replace(self.given, ns_per_token=self._ns / self._tokens)
