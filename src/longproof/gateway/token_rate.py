"""How many tokens a text is, by its bytes and what engines said of others: an estimate that errs on the long side.

    tokens ≈ bytes / rate · (1 + margin) + what a template writes around each message

A rate is learned per kind of script (one token is 4 bytes of English, 3 of Chinese), from the usage of every reply, as
a mean of logarithms that forgets. `margin` is what prompts differ among each other, so it is a few percent where they
are alike and half as much again where they are not. Nothing is estimated before a kind has been seen a few times.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from longproof.gateway.prompt_text import TextSize

_KINDS = (0.15, 1.2)
"""Up to the first: Latin; up to the second: Cyrillic, Greek, Arabic …; above: Chinese, Japanese …"""
_LEARNED_AFTER = 3
_REMEMBERED = 64
_SHORTEST_BYTES = 256
"""In shorter texts a template weighs more than the text."""
_DEVIATIONS, _LEAST_MARGIN, _FIRST_MARGIN, _MOST_MARGIN = 3.0, 0.02, 0.3, 0.6
_MESSAGE_TOKENS, _TEMPLATE_TOKENS, _SPECIAL_TOKENS = 8, 32, 4


@dataclass(slots=True)
class _Kind:
    seen: int = 0
    log_rate: float = 0.0
    """Of bytes per token, the mean."""
    deviation: float = 0.0

    def learn(self, log_rate: float) -> None:
        self.seen += 1
        weight = 1 / min(self.seen, _REMEMBERED)
        off = log_rate - self.log_rate
        if self.seen > 1:
            self.deviation += weight * (abs(off) - self.deviation)
        self.log_rate += weight * off

    @property
    def margin(self) -> float:
        return min(_MOST_MARGIN, _DEVIATIONS * self.deviation + _LEAST_MARGIN + _FIRST_MARGIN / self.seen)


@dataclass(slots=True)
class TokenRate:
    """What was learned of one model."""

    _kinds: list[_Kind] = field(default_factory=lambda: [_Kind() for _ in range(len(_KINDS) + 1)])

    def estimate(self, size: TextSize) -> int | None:
        """Tokens, rather too many; None = not enough is known of such texts."""
        kind = self._kind(size)
        if kind.seen < _LEARNED_AFTER:
            return None
        tokens = size.size_bytes / math.exp(kind.log_rate) * (1 + kind.margin)
        return math.ceil(tokens) + _around(size)

    def learn(self, size: TextSize, tokens: int) -> None:
        """A prompt of this size had so many tokens, by the engine."""
        of_text = tokens - min(_around(size), tokens // 8)
        if size.size_bytes >= _SHORTEST_BYTES and of_text > 0:
            self._kind(size).learn(math.log(size.size_bytes / of_text))

    @property
    def bytes_per_token(self) -> float | None:
        """Of the kind that was seen most; None = of none enough."""
        kind = max(self._kinds, key=lambda found: found.seen)
        return math.exp(kind.log_rate) if kind.seen >= _LEARNED_AFTER else None

    def _kind(self, size: TextSize) -> _Kind:
        return self._kinds[sum(size.wide > bound for bound in _KINDS)]


def _around(size: TextSize) -> int:
    return _TEMPLATE_TOKENS + _MESSAGE_TOKENS * size.messages if size.messages else _SPECIAL_TOKENS
