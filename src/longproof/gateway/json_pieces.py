"""JSON of many megabytes, parsed a piece at a time: whoever else uses the event loop has turns meanwhile.

A parser holds the interpreter until it is done, 2 ms per megabyte, in a thread or not. What makes bodies long is text:

    {"messages":[{"role":"user","content":"…………………………………………………………………………………………………"}], …}
                                           └ piece ┴ piece ┴ piece ┴ piece ┘     each parsed as a text of its own
    {"messages":[{"role":"user","content":"…⟨0⟩…"}], …}                          what is left, parsed as a whole

A piece begins and ends within one text, between two of its characters, and the value that comes out is the same as a
parser's. What is long for another reason (a million numbers) is not cut, and parsed at once.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterator
from typing import Any, cast

import numpy as np
import orjson

from longproof.gateway.byte_scan import quotes

PIECE_BYTES = 1 << 20
_LOOKS_PER_TURN = 4
_TRIES = 64
_LONGEST_ESCAPE = 6
_BACKSLASH = 0x5C

Run = list[tuple[int, int]]
"""Pieces that follow one another in one text, as places in the body."""


async def loads_in_pieces(body: bytes, *, piece_bytes: int = PIECE_BYTES) -> object:
    """What `orjson.loads` makes of it. Raises orjson.JSONDecodeError; the place it names may be one of a piece."""
    runs = await _runs(body, piece_bytes)
    if not runs:
        return orjson.loads(body)
    mark = os.urandom(12).hex()
    left, texts, end = list[bytes](), list[str](), 0
    for number, run in enumerate(runs):
        left += (body[end : run[0][0]], f"\\u0000{mark}{number}\\u0000".encode())
        end = run[-1][1]
        pieces: list[str] = []
        for start, stop in run:
            pieces.append(orjson.loads(b'"%b"' % body[start:stop]))
            await asyncio.sleep(0)
        texts.append("".join(pieces))
    left.append(body[end:])
    value = _filled(orjson.loads(b"".join(left)), re.compile(f"\0{mark}([0-9]+)\0"), texts)
    return orjson.loads(body) if value is None else value


async def _runs(body: bytes, piece_bytes: int) -> list[Run]:
    runs, last, inside = list[Run](), 0, False
    for number, place in enumerate(_places(body, piece_bytes), 1):
        marks = int(np.count_nonzero(quotes(body[last:place])))
        if inside and not marks:
            if runs and runs[-1][-1][1] == last:
                runs[-1].append((last, place))
            else:
                runs.append([(last, place)])
        inside ^= marks % 2 == 1
        last = place
        if number % _LOOKS_PER_TURN == 0:
            await asyncio.sleep(0)
    return runs


def _places(body: bytes, piece_bytes: int) -> Iterator[int]:
    """Where a text could be cut without cutting a character or an escape; the end is none."""
    last, about = 0, piece_bytes
    while about < len(body):
        place = _place(body, last, about)
        if place is not None:
            yield place
            last = place
        about += piece_bytes


def _place(body: bytes, least: int, about: int) -> int | None:
    return next((place for place in range(about, max(least, about - _TRIES), -1) if _between(body, place)), None)


def _between(body: bytes, place: int) -> bool:
    """Whether a text's character ends before `place` and the next one begins there."""
    if body[place] & 0xC0 == 0x80:
        return False  # within a character of UTF-8
    last = body.rfind(b"\\", max(0, place - _LONGEST_ESCAPE), place)
    if last < 0:
        return True
    first = last
    while first > 0 and body[first - 1] == _BACKSLASH:
        first -= 1
        if last - first > _TRIES:
            return False
    if (last - first) % 2:
        return True  # pairs, each of which is one backslash
    if body[last + 1 : last + 2] != b"u":
        return last + 2 <= place
    is_first_half = body[last + 2 : last + 3] in b"dD" and body[last + 3 : last + 4] in b"89aAbB"
    return last + 6 <= place and not (is_first_half and last + 6 == place)


def _filled(value: object, mark: re.Pattern[str], texts: list[str]) -> object:
    """The texts in the places of their marks; None where one is a key, which nobody means."""
    root: list[object] = [value]
    open_values: list[Any] = [root]
    filled = 0
    while open_values:
        holder = open_values.pop()
        for key in _keys(holder):
            inside = holder[key]
            if isinstance(inside, dict | list):
                open_values.append(inside)
            elif isinstance(inside, str) and "\0" in inside:
                parts = mark.split(inside)
                filled += len(parts) // 2
                parts[1::2] = [texts[int(number)] for number in parts[1::2]]
                # most texts are nothing but their pieces; joined with empty ones they would be copied
                holder[key] = "".join([part for part in parts if part])
    return root[0] if filled == len(texts) else None


def _keys(holder: Any) -> list[Any]:
    return list(cast("dict[str, Any]", holder)) if isinstance(holder, dict) else list(range(len(holder)))
