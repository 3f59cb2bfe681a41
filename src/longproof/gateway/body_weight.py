"""What a JSON body becomes in memory when it is parsed: an upper bound, from its bytes alone.

``[{},{},…]`` takes three bytes an entry on the wire and over a hundred afterwards: what grows are lists, objects,
numbers and small texts, and each of those costs the sender a bracket or a comma. A long text stays as long as it is,
unless it holds a character beyond U+00FF: then every one of its characters takes two bytes, or four beyond U+FFFF.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from longproof.gateway.byte_scan import count, escapes, outside_texts

LIST_BYTES, OBJECT_BYTES, ENTRY_BYTES = 96, 240, 64
"""CPython 3.11 to 3.13, 64 bits: an empty list is 56 bytes, an object of one key 232, a number 32, a small text 56."""
_SURELY_FINE_BYTES = 1 << 20
_SMALL_BYTES = 32 << 10
_SLICE_BYTES, _SLICES_PER_TURN = 1 << 20, 4
"""A slice takes half a millisecond."""
_WEIGHED = b"[{,:"
_FOUR_BYTES = tuple(bytes([lead]) for lead in range(0xF0, 0xF5))


def widened_bytes(body: bytes) -> int:
    """How much longer than the body its texts can be in memory."""
    escaped = b"\\u" in body
    return _widened_times(body, escaped, escaped and (b"\\ud" in body or b"\\uD" in body)) * len(body)


def most_parsed_bytes(body: bytes) -> int:
    """More than the lists, objects and entries of a body can take. What looks like one within a text counts too."""
    return _bound(body.count(byte) for byte in _WEIGHED)


def _widened_times(text: bytes, escaped: bool, halves: bool) -> int:
    """How many more bytes each of a text may take. `escaped`: there may be characters as `\\u`; `halves`: of pairs."""
    plain = text.isascii()
    if halves or (not plain and any(lead in text for lead in _FOUR_BYTES)):
        return 3
    return int(escaped or not plain)


def _bound(found: Iterable[int]) -> int:
    """What so many of each of `_WEIGHED` take at most."""
    lists, objects, commas, colons = found
    return LIST_BYTES * lists + OBJECT_BYTES * objects + ENTRY_BYTES * (commas + colons)


async def parsed_bytes(body: bytes) -> int:
    """What the parsed body takes beyond as many bytes as it has. Texts are left out where that matters."""
    if len(body) <= _SMALL_BYTES:
        bound, widened = most_parsed_bytes(body), widened_bytes(body)
    else:
        bound, widened = await _by_slices(body)
    if bound > max(_SURELY_FINE_BYTES, 2 * len(body)):
        bound = await bytes_outside_texts(body)
    return widened + bound


async def _by_slices(body: bytes) -> tuple[int, int]:
    """The same two for a long body; the loop has its turn after every few slices."""
    bound, widest, overlap = 0, 0, len(b"\\u")  # an escape may lie across the end of a slice
    for number, start in enumerate(range(0, len(body), _SLICE_BYTES), 1):
        part = body[start : start + _SLICE_BYTES + overlap]
        bound += _parsed_bytes_of(part)
        widest = max(widest, _widened_times(part, *escapes(part)))
        if number % _SLICES_PER_TURN == 0:
            await asyncio.sleep(0)
    return bound, widest * len(body)


def _parsed_bytes_of(stretch: bytes) -> int:
    """`most_parsed_bytes` of a long stretch."""
    return _bound(count(stretch, byte) for byte in _WEIGHED)


async def bytes_outside_texts(body: bytes, slice_bytes: int = _SLICE_BYTES) -> int:
    """`most_parsed_bytes` of what is not within a text. The loop has its turn after every slice."""
    total, start, inside = 0, 0, False
    while start < len(body):
        part = body[start : start + slice_bytes]
        outside, inside = outside_texts(part, inside=inside)
        total += _parsed_bytes_of(outside)
        # what a backslash at the very end escapes is passed over: within a text it weighs nothing, elsewhere it is
        # an error that the parser finds
        start += len(part) + (len(part) - len(part.rstrip(b"\\"))) % 2
        await asyncio.sleep(0)
    return total
