"""What a JSON body becomes in memory when it is parsed: an upper bound, from its bytes alone.

``[{},{},…]`` takes three bytes an entry on the wire and over a hundred afterwards: what grows are lists, objects,
numbers and small texts, and each of those costs the sender a bracket or a comma. A long text stays as long as it is,
unless it holds a character beyond U+00FF: then every one of its characters takes two bytes, or four beyond U+FFFF.
"""

from __future__ import annotations

import asyncio

LIST_BYTES, OBJECT_BYTES, ENTRY_BYTES = 96, 240, 64
"""CPython 3.11 to 3.13, 64 bits: an empty list is 56 bytes, an object of one key 232, a number 32, a small text 56."""
_SURELY_FINE_BYTES = 1 << 20
_SLICE_BYTES = 1 << 20


_FOUR_BYTES = tuple(bytes([lead]) for lead in range(0xF0, 0xF5))


def widened_bytes(body: bytes) -> int:
    """How much longer than the body its texts can be in memory."""
    escaped = b"\\u" in body
    if (not body.isascii() and any(lead in body for lead in _FOUR_BYTES)) or (
        escaped and (b"\\ud" in body or b"\\uD" in body)
    ):
        return 3 * len(body)
    return len(body) if escaped or not body.isascii() else 0


def most_parsed_bytes(body: bytes) -> int:
    """More than the lists, objects and entries of a body can take. What looks like one within a text counts too."""
    return (
        LIST_BYTES * body.count(b"[")
        + OBJECT_BYTES * body.count(b"{")
        + ENTRY_BYTES * (body.count(b",") + body.count(b":"))
    )


async def parsed_bytes(body: bytes) -> int:
    """What the parsed body takes beyond as many bytes as it has. Texts are left out where that matters."""
    if len(body) <= _SLICE_BYTES:
        bound, widened = most_parsed_bytes(body), widened_bytes(body)
    else:
        bound, widened = await _by_slices(body)
    if bound > max(_SURELY_FINE_BYTES, 2 * len(body)):
        bound = await bytes_outside_texts(body)
    return widened + bound


async def _by_slices(body: bytes) -> tuple[int, int]:
    """The same two for a long body; the loop has its turn after every slice."""
    bound, widest = 0, 0.0
    for start in range(0, len(body), _SLICE_BYTES):
        part = body[start : start + _SLICE_BYTES + len(b"\\u")]  # an escape may lie across the end
        bound += most_parsed_bytes(part)
        widest = max(widest, widened_bytes(part) / len(part))
        await asyncio.sleep(0)
    return bound, round(widest * len(body))


async def bytes_outside_texts(body: bytes, slice_bytes: int = _SLICE_BYTES) -> int:
    """`most_parsed_bytes` of what is not within a text. The loop has its turn after every slice."""
    total, start, inside = 0, 0, False
    while start < len(body):
        end = min(len(body), start + slice_bytes)
        while end < len(body) and body[end - 1] == 0x5C:  # never between a backslash and what it escapes
            end += 1
        parts = body[start:end].replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
        total += most_parsed_bytes(b"".join(parts[inside::2]))
        inside ^= len(parts) % 2 == 0
        start = end
        await asyncio.sleep(0)
    return total
