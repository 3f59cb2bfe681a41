"""A request's body in pieces, so that a long part can be made once and go out with many requests."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

_SLICE_BYTES = 128 * 1024
"""So much is handed to a connection at once. It bounds what one write copies, and how long the loop is away with it."""


@dataclass(frozen=True, slots=True)
class Body:
    """Bytes in order. Pieces may belong to other bodies too; nothing here copies them."""

    pieces: tuple[bytes, ...]

    @classmethod
    def of(cls, *pieces: bytes) -> Body:
        """A body of these pieces."""
        return cls(pieces)

    @property
    def size_bytes(self) -> int:
        """What goes into Content-Length."""
        return sum(map(len, self.pieces))

    def slices(self) -> Iterator[bytes | memoryview]:
        """The body in slices of at most 128 KiB, none empty."""
        for piece in self.pieces:
            if len(piece) <= _SLICE_BYTES:
                if piece:
                    yield piece
                continue
            view = memoryview(piece)
            for start in range(0, len(view), _SLICE_BYTES):
                yield view[start : start + _SLICE_BYTES]
