"""Whose turn it was: when a prefill that had been sent began in earnest, and how far one is by the engine's figures."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

_KEPT = 64


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
    """By the engine's figure: how many uncached tokens of a request were in the cache, when, and how fast it goes on.
    What goes on beside it is in that pace, as it is in what follows."""

    request_id: str
    tokens: int
    at_ns: int
    ns_per_token: float

    @classmethod
    def after(
        cls,
        before: SeenPrefill | None,
        *,
        request_id: str,
        tokens: int,
        at_ns: int,
        expected_ns_per_token: float,
    ) -> SeenPrefill:
        """What is known with a new figure: the pace is that since the one before, where it is of the same request."""
        pace = expected_ns_per_token
        if before is not None and before.request_id == request_id:
            pace, more = before.ns_per_token, tokens - before.tokens
            if more > 0:
                pace = (at_ns - before.at_ns) / more
        return cls(request_id=request_id, tokens=tokens, at_ns=at_ns, ns_per_token=pace)

    def tokens_at(self, now_ns: int) -> int:
        """How many there should be by now."""
        if self.ns_per_token <= 0:
            return self.tokens
        return self.tokens + int(max(0, now_ns - self.at_ns) / self.ns_per_token)
