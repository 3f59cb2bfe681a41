"""What long stretches of JSON hold, counted by numpy: a megabyte takes a quarter of a millisecond.

`bytes.count` and `bytes.replace` walk from hit to hit, and JSON of source code or tool output is full of hits: they
take one to two milliseconds per megabyte for the same. Short bodies are theirs all the same; numpy takes a microsecond
per call whatever it is given.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_BACKSLASH, _QUOTE = 0x5C, 0x22
_U, _D, _D_LARGE = 0x75, 0x64, 0x44


def count(stretch: bytes, byte: int) -> int:
    """How often a byte is in it."""
    return int(np.count_nonzero(_bytes(stretch) == byte))


def escapes(stretch: bytes) -> tuple[bool, bool]:
    r"""Whether there is anything that looks like `\u`, and like half a pair of `\ud`. An escaped backslash before a
    letter looks the same."""
    seen = _bytes(stretch)
    escaped = (seen[:-1] == _BACKSLASH) & (seen[1:] == _U)
    if not escaped.any():
        return False, False
    third = seen[2:]
    return True, bool((escaped[:-1] & ((third == _D) | (third == _D_LARGE))).any())


def quotes(stretch: bytes) -> NDArray[np.bool_]:
    """Where texts begin and end: quotation marks that no backslash escapes. The stretch must not begin within an
    escape."""
    seen = _bytes(stretch)
    found, slashes = seen == _QUOTE, seen == _BACKSLASH
    after_slash = np.flatnonzero(found[1:] & slashes[:-1]) + 1
    if not after_slash.size:
        return found
    # of a run of backslashes every other one is escaped itself
    found[after_slash[_length_of_runs(slashes, after_slash) % 2 == 1]] = False
    return found


def _length_of_runs(slashes: NDArray[np.bool_], ends: NDArray[np.intp]) -> NDArray[np.intp]:
    """Of the runs of backslashes that end before each of these places."""
    lengths = np.ones_like(ends)
    longer = np.flatnonzero(slashes[np.maximum(ends - 2, 0)] & (ends >= 2))
    if longer.size:
        begins = np.flatnonzero(slashes[1:] & ~slashes[:-1]) + 1
        if slashes[0]:
            begins = np.insert(begins, 0, 0)
        last = ends[longer]
        lengths[longer] = last - begins[np.searchsorted(begins, last - 1, side="right") - 1]
    return lengths


def outside_texts(stretch: bytes, *, inside: bool) -> tuple[bytes, bool]:
    """What of it is not within a text, quotation marks included; whether its end is within one. `inside`: its start
    is. The stretch must not begin within an escape."""
    marks = quotes(stretch)
    # parity of the marks so far; eight bits run over, and stay even or odd
    within = (np.cumsum(marks, dtype=np.uint8) & 1).astype(np.bool_)
    ends_inside = bool(within[-1]) != inside
    left = within if inside else ~within
    return _bytes(stretch)[left].tobytes(), ends_inside


def _bytes(stretch: bytes) -> NDArray[np.uint8]:
    return np.frombuffer(stretch, np.uint8)
