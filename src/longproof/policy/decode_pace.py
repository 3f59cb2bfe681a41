"""How long a replica takes for one more token of a stream, learned from streams where nobody has said.

Other streams and prefills beside it are in the figure, as they are in what will be waited for.
"""

from __future__ import annotations

from dataclasses import dataclass

_FADE = 0.97
_ENOUGH_TOKENS = 64


@dataclass(slots=True)
class DecodePace:
    """One replica's. Later observations weigh more: half after 23."""

    given_ns: int
    _tokens: float = 0.0
    _ns: float = 0.0

    def seen(self, tokens: int, took_ns: int) -> None:
        """A stream has produced so many more tokens in that time."""
        if tokens > 0 and took_ns > 0:
            self._tokens = self._tokens * _FADE + tokens
            self._ns = self._ns * _FADE + took_ns

    @property
    def ns_per_token(self) -> int:
        """By now: as given, until enough was seen."""
        return self.given_ns if self._tokens < _ENOUGH_TOKENS else max(1, int(self._ns / self._tokens))
