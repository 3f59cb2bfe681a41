"""Server-sent events on the wire, as clean or as broken as the lies want them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias

from longproof.testing.dialects import Dialect, Json
from longproof.testing.lie import Lie, find
from longproof.testing.lies import CrlfLines, SplitUtf8

Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]
_APART_S = 0.01  # long enough that two writes reach a client on the same machine as two reads


class EventStream:
    """Writes one response of events. `open` sends the headers; leaving without `close` cuts the connection."""

    def __init__(self, send: Send, dialect: Dialect, lies: tuple[Lie, ...]) -> None:
        self._send = send
        self._dialect = dialect
        self._end = "\r\n" if find(lies, CrlfLines) is not None else "\n"
        self._split = find(lies, SplitUtf8) is not None
        self._held = b""

    async def open(self) -> None:
        headers = [*self._dialect.headers, ("content-type", self._dialect.stream_type)]
        await send_head(self._send, 200, headers)

    async def event(self, data: Json, *, name: str | None = None) -> None:
        await self._write(self._encode(data, name))

    def hold(self, data: Json) -> None:
        """An event that leaves together with the next write, so that no pause of the machine can come between them."""
        self._held += self._encode(data, None)

    async def comment(self, text: str) -> None:
        await self._write(f": {text}{self._end}{self._end}".encode())

    async def done(self) -> None:
        await self._write(f"data: [DONE]{self._end}{self._end}".encode())

    async def half_event(self, data: Json, *, in_character: bool) -> None:
        """The first half of an event; with `in_character`, up to the first byte of its first character of several
        bytes."""
        raw = self._encode(data, None)
        await self._raw(raw[: _inside_character(raw) if in_character else len(raw) // 2])

    async def close(self) -> None:
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    def _encode(self, data: Json, name: str | None) -> bytes:
        head = f"event: {name}{self._end}" if name else ""
        text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
        return f"{head}data: {text}{self._end}{self._end}".encode()

    async def _write(self, raw: bytes) -> None:
        border = _inside_character(raw) if self._split else len(raw)
        await self._raw(raw[:border])
        if border < len(raw):
            await asyncio.sleep(_APART_S)
            await self._raw(raw[border:])

    async def _raw(self, raw: bytes) -> None:
        held, self._held = self._held, b""
        await self._send({"type": "http.response.body", "body": held + raw, "more_body": True})


async def send_head(send: Send, status: int, headers: list[tuple[str, str]]) -> None:
    """Status and headers."""
    encoded = [(name.encode(), value.encode()) for name, value in headers]
    await send({"type": "http.response.start", "status": status, "headers": encoded})


async def send_whole(send: Send, status: int, headers: list[tuple[str, str]], raw: bytes) -> None:
    """A response with a body of known length."""
    await send_head(send, status, [*headers, ("content-length", str(len(raw)))])
    await send({"type": "http.response.body", "body": raw, "more_body": False})


def _inside_character(raw: bytes) -> int:
    """Index between the first and second byte of the first multi-byte character; the end where there is none."""
    return next((i + 1 for i, byte in enumerate(raw) if byte >= 0xC0), len(raw))
