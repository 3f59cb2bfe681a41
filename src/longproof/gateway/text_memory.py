"""What stretches of text became, by a digest of everything up to their end. Bounded in bytes, least recently used first
to go."""

from __future__ import annotations

import hashlib
import threading
from array import array
from collections import OrderedDict
from dataclasses import dataclass

_DIGEST_BYTES = 16
_ENTRY_BYTES = 400
"""Dictionary slot, key, `Stretch` and array header, by `tracemalloc` on CPython 3.11, rounded up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """The ids that one window settled, and how to go on from there (places are characters of the whole text):
    `settled_char` where the first token begins that is not settled, `restart_char` where the next window starts,
    `overlap_tokens` how many settled tokens it repeats."""

    ids: array[int]
    restart_char: int
    settled_char: int
    overlap_tokens: int


class TextMemory:
    """Stretches by digest. Thread-safe. `capacity_bytes` is never exceeded after a `put`."""

    def __init__(self, capacity_bytes: int = 256 << 20) -> None:
        self._capacity = capacity_bytes
        self._kept: OrderedDict[bytes, Stretch] = OrderedDict()
        self._lock = threading.Lock()
        self.held_bytes = 0
        self.hits = 0
        self.misses = 0

    def get(self, name: bytes) -> Stretch | None:
        """The stretch of that name, now the most recently used."""
        with self._lock:
            found = self._kept.get(name)
            if found is None:
                self.misses += 1
                return None
            self.hits += 1
            self._kept.move_to_end(name)
            return found

    def put(self, name: bytes, stretch: Stretch) -> None:
        """Keeps a stretch, and lets go of the oldest where there is no room."""
        with self._lock:
            if name in self._kept:
                return
            self._kept[name] = stretch
            self.held_bytes += _size(stretch)
            while self.held_bytes > self._capacity and self._kept:
                _, gone = self._kept.popitem(last=False)
                self.held_bytes -= _size(gone)

    def __len__(self) -> int:
        return len(self._kept)


def digest(before: bytes, text: str) -> bytes:
    """The name of a text whose beginning is named `before`."""
    chained = hashlib.blake2b(before, digest_size=_DIGEST_BYTES)
    chained.update(text.encode("utf-8", "surrogatepass"))
    return chained.digest()


def _size(stretch: Stretch) -> int:
    return _ENTRY_BYTES + len(stretch.ids) * stretch.ids.itemsize
