"""A request's body in pieces, so that a long part can be made once and go out with many requests."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

import orjson

from longproof.domain.request import GenerationRequest

_SLICE_BYTES = 128 * 1024
"""So much is handed to a connection at once. It bounds what one write copies, and how long the loop is away with it."""
_SLICE_CHARS = 128 * 1024
_SLICE_ITEMS = 32 * 1024
"""0.1 to 0.3 ms of writing JSON each."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A request as it goes out, so that nothing but sending is left when its time comes. Sent once: its id is in it.

    `path` follows the base URL; `headers` are those of this request alone; `fields` are the body's field names.
    """

    request: GenerationRequest
    request_id: str
    path: str
    headers: Mapping[str, str]
    body: Body
    fields: frozenset[str]


class Series:
    """Requests that differ in the opening of their prompt alone. The rest of the body, megabytes for a long prompt, is
    one piece of memory for all of them.

        {"messages":[{"content":"  opening  filler …"}],"cache_salt":"  id  "}
        └──────── shared ────────┘         └──────── shared ────────┘      └ shared
    """

    def __init__(self, prepared: Prepared, opening: str | tuple[int, ...]) -> None:
        """`opening` stands in `prepared`'s prompt: a text anywhere in it (its first occurrence counts), ids at its
        start. Raises ValueError where it does not."""
        whole = b"".join(prepared.body.pieces)
        own = prepared.request_id.encode()
        start, end = _place_of(opening, whole)
        self._base = replace(prepared, body=Body(()))
        self._first = own.decode()
        self._before = whole[:start].split(own)
        self._after = whole[end:].split(own)

    def prepared(self, opening: str | tuple[int, ...]) -> Prepared:
        """The request with that opening and an id of its own."""
        request_id = uuid.uuid4().hex
        own = request_id.encode()
        pieces = (*_joined(self._before, own), _inside(opening), *_joined(self._after, own))
        headers = {name: value.replace(self._first, request_id) for name, value in self._base.headers.items()}
        return replace(self._base, request_id=request_id, headers=headers, body=Body(pieces))


def _place_of(opening: str | tuple[int, ...], whole: bytes) -> tuple[int, int]:
    inside = _inside(opening)
    before = b"" if isinstance(opening, str) else b'"prompt":['
    start = whole.find(before + inside)
    if not inside or start < 0:
        raise ValueError(f"the body does not hold the opening {opening!r}")
    start += len(before)
    return start, start + len(inside)


def _inside(opening: str | tuple[int, ...]) -> bytes:
    """The opening as JSON, without the quotes or brackets around it."""
    return orjson.dumps(opening)[1:-1]


def _joined(parts: list[bytes], own: bytes) -> Iterator[bytes]:
    for number, part in enumerate(parts):
        if number:
            yield own
        yield part


async def json_body(fields: Mapping[str, object]) -> Body:
    """Fields as JSON. Long texts and lists are written in slices with the loop free in between: a million ids in one go
    take it for 10 ms, and every other stream's stamps with it."""
    pieces: list[bytes] = []
    async for piece in _written(fields):
        pieces.append(piece)
    return Body(tuple(pieces))


async def _written(value: object) -> AsyncIterator[bytes]:
    if not _is_long(value):
        yield orjson.dumps(value)
    elif isinstance(value, str):
        yield b'"'
        for start in range(0, len(value), _SLICE_CHARS):
            yield orjson.dumps(value[start : start + _SLICE_CHARS])[1:-1]
            await asyncio.sleep(0)
        yield b'"'
    elif isinstance(value, Mapping):
        opening = b"{"
        for name, item in cast("Mapping[str, object]", value).items():
            yield opening + orjson.dumps(name) + b":"
            async for piece in _written(item):
                yield piece
            opening = b","
        yield b"}"
    else:
        async for piece in _written_list(cast("Sequence[object]", value)):
            yield piece


async def _written_list(values: Sequence[object]) -> AsyncIterator[bytes]:
    if len(values) <= _SLICE_ITEMS:
        opening = b"["
        for item in values:
            yield opening
            async for piece in _written(item):
                yield piece
            opening = b","
    else:
        for start in range(0, len(values), _SLICE_ITEMS):
            yield (b"," if start else b"[") + orjson.dumps(values[start : start + _SLICE_ITEMS])[1:-1]
            await asyncio.sleep(0)
    yield b"]"


def _is_long(value: object) -> bool:
    if isinstance(value, str):
        return len(value) > _SLICE_CHARS
    if isinstance(value, Mapping):
        return any(_is_long(item) for item in cast("Mapping[str, object]", value).values())
    if isinstance(value, list | tuple):
        items = cast("Sequence[object]", value)
        return len(items) > _SLICE_ITEMS or any(map(_is_long, items))
    return False
