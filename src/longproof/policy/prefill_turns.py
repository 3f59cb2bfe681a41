"""Whose turn it was: when a prefill that had been sent began in earnest."""

from __future__ import annotations

from collections import deque

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
