"""An engine that answers at once: four ports, one process, next to no work per answer.

    python -m transport.engine PORT,PORT,…

A body's `max_tokens` is the number of chunks of its stream, its `seed` the milliseconds between them (0: none). Each
chunk says when it was written, on the machine's monotonic clock, so that whoever receives it knows how long it took.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import cast

import orjson
import uvloop

MODEL = "fake"
_KNOWN = {
    b"/v1/models": orjson.dumps({"object": "list", "data": [{"id": MODEL, "max_model_len": 1 << 20}]}),
    b"/health": b"{}",
    b"/metrics": b"vllm:num_requests_running 0\nvllm:num_requests_waiting 0\nvllm:kv_cache_usage_perc 0.0\n",
    b"/version": b'{"version":"0.32.0"}',
    b"/v1/embeddings": orjson.dumps({"object": "list", "data": [{"index": 0, "embedding": [0.0] * 8}]}),
}
_ANSWER = orjson.dumps(
    {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "model": MODEL,
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "hello"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 40, "completion_tokens": 1, "total_tokens": 41},
    }
)
_STREAM = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-cache\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)
_BEGIN = b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","model":"fake","choices":[{"index":0,"delta":'


def _plain(status: bytes, body: bytes) -> bytes:
    kind = b"text/plain" if body.startswith(b"vllm:") else b"application/json"
    return b"HTTP/1.1 %b\r\nContent-Type: %b\r\nContent-Length: %d\r\n\r\n%b" % (status, kind, len(body), body)


def _event(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _chunk() -> bytes:
    said = b'{"content":"%017.6f"},"finish_reason":null}]}\n\n' % time.monotonic()
    return _event(_BEGIN + said)


def _usage(chunks: int) -> bytes:
    return _event(
        b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","model":"fake","choices":[],"usage":'
        b'{"prompt_tokens":40,"completion_tokens":%d,"total_tokens":%d}}\n\n' % (chunks, chunks + 40)
    )


class Connection(asyncio.Protocol):
    """One connection; requests come one after another."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio's."""
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's
        """asyncio's."""
        self._transport = None
        if self._task is not None:
            self._task.cancel()

    def data_received(self, data: bytes) -> None:
        """asyncio's."""
        self._buffer += data
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        head = bytes(self._buffer[:end])
        at = head.lower().find(b"content-length:")
        length = int(head[at + 15 :].split(b"\r\n")[0]) if at >= 0 else 0
        if len(self._buffer) >= end + 4 + length:
            body = bytes(self._buffer[end + 4 : end + 4 + length])
            del self._buffer[: end + 4 + length]
            self._answer(head.split(b" ", 2)[1], body)

    def _answer(self, path: bytes, body: bytes) -> None:
        assert self._transport is not None
        if path == b"/v1/chat/completions":
            asked = orjson.loads(body)
            if asked.get("stream"):
                usage = bool((asked.get("stream_options") or {}).get("include_usage"))
                stream = self._stream(asked["max_tokens"], asked.get("seed", 0) / 1e3, usage=usage)
                self._task = asyncio.get_running_loop().create_task(stream)
            else:
                self._transport.write(_plain(b"200 OK", _ANSWER))
        elif path in _KNOWN:
            self._transport.write(_plain(b"200 OK", _KNOWN[path]))
        else:
            self._transport.write(_plain(b"404 Not Found", b"{}"))

    async def _stream(self, chunks: int, every_s: float, *, usage: bool) -> None:
        """Each chunk in a turn of the loop of its own, as engines write them."""
        assert self._transport is not None
        self._transport.write(_STREAM)
        begun_s = time.monotonic()
        for number in range(1, chunks + 1):
            await asyncio.sleep(max(0.0, begun_s + number * every_s - time.monotonic()) if every_s else 0)
            if self._transport is None:
                return
            self._transport.write(_chunk())
        self._transport.write((_usage(chunks) if usage else b"") + _event(b"data: [DONE]\n\n") + b"0\r\n\r\n")


async def main(ports: list[int]) -> None:
    """Serves until it is stopped."""
    loop = asyncio.get_running_loop()
    for port in ports:
        await loop.create_server(Connection, "127.0.0.1", port, backlog=2_048)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(main([int(port) for port in sys.argv[1].split(",")]))
