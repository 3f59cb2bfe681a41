"""Whose turn it was: when a prefill that had been sent began in earnest, and how far one is by the engine's figures."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace

_KEPT = 64
_FAR_MORE = 2


class PrefillTurns:
    """The latest prefills of one replica: when each was sent, and when it ended."""

    __slots__ = ("_ends",)

    def __init__(self) -> None:
        self._ends: deque[tuple[int, int]] = deque(maxlen=_KEPT)

    def ended(self, sent_ns: int, now_ns: int) -> None:
        """One that was sent then has ended."""
        self._ends.append((sent_ns, now_ns))

    def began_ns(self, sent_ns: int) -> int:
        """When one that was sent then had its turn: when it was sent, or when the last of those before it ended."""
        return max((end for sent, end in self._ends if sent <= sent_ns < end), default=sent_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenPrefill:
    """By the engine's figures: how many uncached tokens of a request were in the cache, when, and how fast it goes on.
    What goes on beside it is in that pace, as it is in what follows. `doubted`: the last figure was taken for an old
    one."""

    request_id: str
    tokens: int
    at_ns: int
    ns_per_token: float
    doubted: bool = False

    def then(self, tokens: int, at_ns: int, step_tokens: int) -> SeenPrefill:
        """With a new figure: the pace is that since the one before. One that shows far more than can have been done
        still has what ended just before it was taken; it counts only if the next one says so too."""
        more = tokens - self.tokens
        likely = self.tokens_at(at_ns) - self.tokens + step_tokens
        if more > _FAR_MORE * likely and not self.doubted:
            return replace(self, doubted=True)
        pace = (at_ns - self.at_ns) / more if more > 0 and at_ns > self.at_ns else self.ns_per_token
        return SeenPrefill(request_id=self.request_id, tokens=tokens, at_ns=at_ns, ns_per_token=pace)

    def tokens_at(self, now_ns: int) -> int:
        """How many there should be by now."""
        if self.ns_per_token <= 0:
            return self.tokens
        return self.tokens + int(max(0, now_ns - self.at_ns) / self.ns_per_token)
