"""A server that streams chat completions at a set pace and keeps a note of when it wrote each chunk.

    python benchmarks/stamping_server.py        prints its port; ends with its standard input

What it measures clients with: one protocol object per connection, no HTTP library, each chunk one write. A stamp is
taken right before the write, and the socket takes the bytes in the same call, so a stamp is what a perfect client would
see less the time the kernel needs. The pace is set per run (`POST /pace`):

    spread   every stream writes in its own time: gaps vary by ±20 % around 1 / tokens_per_s
    steps    like an engine: all running streams are written in one sweep, every 1 / tokens_per_s

`GET /log` returns, per request, when it was read whole and when each chunk went out (ns, CLOCK_MONOTONIC), and what to
add for the wall clock's time.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import random
import sys
import time
from typing import Any

HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
MODELS = {"object": "list", "data": [{"id": "stamped", "object": "model", "created": 1, "owned_by": "nobody"}]}


class Pace:
    """How requests are answered, and the log of it."""

    def __init__(self) -> None:
        self.log: list[dict[str, Any]] = []
        self.sweep: asyncio.TimerHandle | None = None
        self.running: dict[Answer, None] = {}
        self.set({})

    def set(self, wanted: dict[str, Any]) -> None:
        self.mode = wanted.get("mode", "spread")
        self.gap_s = 1 / wanted.get("tokens_per_s", 20)
        self.first_s = wanted.get("first_s", [0.2, 1.0])
        self.random = random.Random(wanted.get("seed", 0))
        self.log.clear()

    def step(self) -> None:
        """One sweep over all running streams, on a grid of `gap_s`."""
        loop = asyncio.get_running_loop()
        self.due = max(self.due + self.gap_s, loop.time())
        self.sweep = loop.call_at(self.due, self.step) if self.running else None
        for answer in list(self.running):
            answer.token()

    def join(self, answer: Answer) -> None:
        self.running[answer] = None
        if self.sweep is None:
            loop = asyncio.get_running_loop()
            self.due = loop.time() + self.gap_s
            self.sweep = loop.call_at(self.due, self.step)


class Answer:
    """One streamed answer."""

    def __init__(self, pace: Pace, transport: asyncio.Transport, name: str, tokens: int) -> None:
        self.pace, self.transport, self.left = pace, transport, tokens
        number = len(pace.log)
        self.entry = {"id": f"chatcmpl-{number}", "name": name, "read_ns": time.monotonic_ns(), "sent_ns": []}
        pace.log.append(self.entry)
        self.stamps: list[int] = self.entry["sent_ns"]
        self.tokens = tokens
        self.random = random.Random(pace.random.random())
        loop = asyncio.get_running_loop()
        self.timer = loop.call_later(self.random.uniform(*pace.first_s), self.begin)
        choice = {"index": 0, "delta": {"content": " token"}, "finish_reason": None}
        self.piece = self.chunk({"choices": [choice]})

    def chunk(self, fields: dict[str, Any]) -> bytes:
        document = {"id": self.entry["id"], "object": "chat.completion.chunk", "created": 1, "model": "stamped"}
        data = b"data: " + json.dumps(document | fields).encode() + b"\n\n"
        return b"%x\r\n%s\r\n" % (len(data), data)

    def begin(self) -> None:
        role = {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
        self.transport.write(HEAD + self.chunk({"choices": [role]}))
        if self.pace.mode == "steps":
            self.pace.join(self)
        else:
            self.token()

    def token(self) -> None:
        if self.transport.is_closing():
            self.pace.running.pop(self, None)
            return
        self.stamps.append(time.monotonic_ns())
        self.transport.write(self.piece)
        self.left -= 1
        if self.left == 0:
            self.end()
        elif self.pace.mode != "steps":
            gap_s = self.pace.gap_s * self.random.uniform(0.8, 1.2)
            self.timer = asyncio.get_running_loop().call_later(gap_s, self.token)

    def end(self) -> None:
        self.pace.running.pop(self, None)
        finish = {"index": 0, "delta": {}, "finish_reason": "length"}
        usage = {"prompt_tokens": 8, "completion_tokens": self.tokens, "total_tokens": 8 + self.tokens}
        last = self.chunk({"choices": [finish]}) + self.chunk({"choices": [], "usage": usage})
        self.transport.write(last + b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")


class Connection(asyncio.Protocol):
    """Reads requests, one after the other; a long body is counted and not kept."""

    def __init__(self, pace: Pace) -> None:
        self.pace = pace
        self.buffer = bytearray()
        self.head: list[str] | None = None
        self.needed = 0
        self.body_bytes = 0
        self.start = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        while self._advance():
            pass

    def _advance(self) -> bool:
        if self.head is None:
            raw, found, rest = self.buffer.partition(b"\r\n\r\n")
            if not found:
                return False
            self.buffer = bytearray(rest)
            self.head = raw.decode("latin-1").split("\r\n")
            self.needed = int(self._header("content-length") or 0)
            self.body_bytes = 0
        if self.needed > 1 << 20:  # of a long body its two ends are kept: in one of them stands max_tokens
            dropped = max(0, len(self.buffer) - 4096)
            self.start = self.start or bytes(self.buffer[:4096])
            self.body_bytes += dropped
            del self.buffer[:dropped]
        if self.body_bytes + len(self.buffer) < self.needed:
            return False
        body = self.start + bytes(self.buffer[: self.needed - self.body_bytes])
        del self.buffer[: self.needed - self.body_bytes]
        self.start = b""
        self._answer(body)
        self.head = None
        return bool(self.buffer)

    def _header(self, name: str) -> str:
        assert self.head is not None
        return next((h.partition(":")[2].strip() for h in self.head if h.lower().startswith(name + ":")), "")

    def _answer(self, body: bytes) -> None:
        assert self.head is not None
        method, target, _ = self.head[0].split(" ", 2)
        if "completions" in target:
            try:
                fields = json.loads(body)
                tokens = fields.get("max_tokens") or fields.get("max_completion_tokens") or 16
            except ValueError:  # the middle of a long body is gone
                tokens = int(body.rpartition(b'"max_tokens":')[2].partition(b",")[0].strip(b" }") or 16)
            Answer(self.pace, self.transport, self._header("x-request-id"), tokens)
            return
        if target == "/pace" and method == "POST":
            self.pace.set(json.loads(body))
            gc.collect()
        log = {"wall_minus_monotonic_ns": time.time_ns() - time.monotonic_ns(), "requests": self.pace.log}
        known = {"/log": log, "/pace": {}, "/v1/models": MODELS, "/health": {}}
        found = json.dumps(known.get(target, {"detail": "Not Found"})).encode()
        status = "200 OK" if target in known else "404 Not Found"
        head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {len(found)}\r\n\r\n"
        self.transport.write(head.encode() + found)


async def main() -> None:
    pace = Pace()
    server = await asyncio.get_running_loop().create_server(lambda: Connection(pace), "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    gc.freeze()
    gc.disable()  # a pause of the collector would be in its own stamps' way
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main())
