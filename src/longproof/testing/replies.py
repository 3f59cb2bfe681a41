"""How an answer is given: as a stream of events, or whole. Both are driven by the same calls, in this order:

open ─▶ [early_role] ─▶ [comment …] ─▶ role ─▶ token … ─▶ end | error | cut
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from longproof.testing.dialects import Dialect, Json
from longproof.testing.event_stream import EventStream, Send, send_head, send_whole
from longproof.testing.lie import Lie, find
from longproof.testing.lies import CutStream, NoDone
from longproof.testing.wire_shapes import Piece, Shapes

_ROLE_CONTENT: dict[str, Any] = {"null": None, "empty": "", "absent": ...}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """An error in place of the rest of an answer. `form`: ``data`` is a plain data event, ``event`` an event named
    error. `then_done`: [DONE] follows."""

    message: str
    status: int = 500
    type: str = "server_error"
    form: Literal["data", "event"] = "data"
    then_done: bool = True


class Reply(Protocol):
    """One answer on its way. Coroutines return when the bytes are handed to the server."""

    async def open(self) -> None: ...

    async def early_role(self, content: str) -> None:
        """A chunk without content before anything is computed; `content`: null, empty or absent."""
        ...

    async def comment(self) -> None: ...

    def role(self) -> None:
        """The role-only chunk of an honest stream: it leaves with the first token."""
        ...

    async def token(self, piece: Piece, *, last: bool) -> None: ...

    async def end(
        self, finish: str, usage: Json | None, timings: Json | None, handed_on: Json | None = None
    ) -> Json | None:
        """The orderly end. Returns the usage object that was really sent. `handed_on`: kv_transfer_params; as in vLLM
        0.32 a stream does not carry them."""
        ...

    async def error(self, fault: Fault) -> None: ...

    async def cut(self, lie: CutStream) -> None:
        """Sends what comes before the cut; the caller then leaves without closing."""
        ...


class StreamReply:
    """Server-sent events."""

    def __init__(
        self, send: Send, dialect: Dialect, shapes: Shapes, lies: tuple[Lie, ...], *, finish: str, include_usage: bool
    ) -> None:
        self._events = EventStream(send, dialect, lies)
        self._dialect = dialect
        self._shapes = shapes
        self._lies = lies
        self._finish = finish
        self._include_usage = include_usage
        self._finished = False
        self._role_sent = False

    async def open(self) -> None:
        await self._events.open()

    async def early_role(self, content: str) -> None:
        self._role_sent = True
        chunk = self._shapes.role(_ROLE_CONTENT[content]) if self._shapes.chat else self._shapes.token(Piece(text=""))
        await self._events.event(chunk)

    async def comment(self) -> None:
        await self._events.comment("keep-alive")

    def role(self) -> None:
        if self._shapes.chat and not self._role_sent:
            self._events.hold(self._shapes.role(self._dialect.role_content))

    async def token(self, piece: Piece, *, last: bool) -> None:
        self._finished = last and not self._dialect.finish_apart
        await self._events.event(self._shapes.token(piece, self._finish if self._finished else None))

    async def end(
        self,
        finish: str,
        usage: Json | None,
        timings: Json | None,
        handed_on: Json | None = None,  # noqa: ARG002 - the port's signature
    ) -> Json | None:
        sent: Json | None = None
        in_finish: Json = {}
        if self._dialect.usage_with_finish and not (self._shapes.chat and self._include_usage):
            # llama.cpp: completions always carry usage in the finishing chunk, chats carry timings there when usage
            # is not asked for
            sent = None if self._shapes.chat else usage
            in_finish = {name: value for name, value in (("usage", sent), ("timings", timings)) if value is not None}
        if not self._finished:
            await self._events.event({**self._shapes.finish(finish), **in_finish})
        if self._include_usage and usage is not None and sent is None:
            sent = usage
            await self._events.event(self._shapes.usage_chunk(usage, timings))
        if find(self._lies, NoDone) is None:
            await self._events.done()
        await self._events.close()
        return sent

    async def error(self, fault: Fault) -> None:
        body = self._dialect.error(fault.status, fault.message, type_=fault.type)
        await self._events.event(body, name="error" if fault.form == "event" else None)
        if fault.then_done:
            await self._events.done()
        await self._events.close()

    async def cut(self, lie: CutStream) -> None:
        if lie.where == "in_event":
            await self._events.half_event(self._shapes.token(Piece(text=" word")), in_character=False)
        elif lie.where == "in_utf8":
            await self._events.half_event(self._shapes.token(Piece(text=" naïve")), in_character=True)


class WholeReply:
    """One JSON body at the end."""

    def __init__(self, send: Send, dialect: Dialect, shapes: Shapes) -> None:
        self._send = send
        self._dialect = dialect
        self._shapes = shapes
        self._pieces: list[Piece] = []

    async def open(self) -> None:
        pass  # the headers come with the body

    async def early_role(self, content: str) -> None:
        pass

    async def comment(self) -> None:
        pass

    def role(self) -> None:
        pass

    async def token(self, piece: Piece, *, last: bool) -> None:  # noqa: ARG002 - the port's signature
        self._pieces.append(piece)

    async def end(
        self, finish: str, usage: Json | None, timings: Json | None, handed_on: Json | None = None
    ) -> Json | None:
        answer = self._shapes.whole(self._pieces, finish, usage, timings)
        if handed_on is not None:
            answer["kv_transfer_params"] = handed_on
        raw = json.dumps(answer, ensure_ascii=False).encode()
        await send_whole(self._send, 200, self._headers(), raw)
        return usage

    async def error(self, fault: Fault) -> None:
        raw = json.dumps(self._dialect.error(fault.status, fault.message, type_=fault.type)).encode()
        await send_whole(self._send, fault.status, self._headers(), raw)

    async def cut(self, lie: CutStream) -> None:  # noqa: ARG002 - the port's signature
        raw = json.dumps(self._shapes.whole(self._pieces, "length", None, None)).encode()
        await send_head(self._send, 200, [*self._headers(), ("content-length", str(len(raw)))])
        await self._send({"type": "http.response.body", "body": raw[: len(raw) // 2], "more_body": True})

    def _headers(self) -> list[tuple[str, str]]:
        return [*self._dialect.headers, ("content-type", self._dialect.json_type)]
