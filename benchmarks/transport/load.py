"""A closed loop of requests over kept connections; prints one line of JSON.

    python -m transport.load PORT PATH CONNECTIONS REQUESTS CHUNKS MILLISECONDS

CHUNKS 0: plain requests. The answers are not parsed beyond what says that they are whole.
"""

from __future__ import annotations

import asyncio
import re
import sys
import time
from typing import cast

import orjson
import uvloop

_STAMP = re.compile(rb'"content":"([0-9.]{17})"')
_WORDS = "the quick brown fox jumps over the lazy dog while somebody counts the pages of a long context "


class Run:
    """What is still to be sent, and what came of what was."""

    def __init__(self, path: str, requests: int, chunks: int, every_ms: int) -> None:
        self.path, self.left, self.chunks, self.every_ms = path, requests, chunks, every_ms
        self.seconds: list[float] = []
        self.first_s: list[float] = []
        self.transit_s: list[float] = []
        self.first_transit_s: list[float] = []
        self.bad = 0
        self.over = asyncio.Event()
        self.open = 0

    def next(self) -> bytes | None:
        """The next request; None when there are no more."""
        if self.left <= 0:
            return None
        self.left -= 1
        asked: dict[str, object] = {"model": "fake"}
        if self.path.endswith("embeddings"):
            asked["input"] = f"{self.left} {_WORDS * 2}"
        else:
            asked["messages"] = [{"role": "user", "content": f"{self.left} {_WORDS * 2}"}]
            asked |= {"max_tokens": self.chunks or 1, "seed": self.every_ms}
        if self.chunks:
            asked["stream"] = True
        body = orjson.dumps(asked)
        head = f"POST {self.path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
        return head.encode() + b"\r\n\r\n" + body


class Client(asyncio.Protocol):
    """One connection."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._got = bytearray()
        self._since_s = self._first_s = 0.0
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio's."""
        self._transport = cast("asyncio.Transport", transport)
        self._ask()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's
        """asyncio's."""
        self._run.open -= 1
        if self._run.open == 0:
            self._run.over.set()

    def data_received(self, data: bytes) -> None:
        """asyncio's."""
        now_s, run = time.monotonic(), self._run
        if run.every_ms and (stamps := _STAMP.findall(data)):
            run.transit_s += [now_s - float(stamp) for stamp in stamps]
            if not self._first_s:
                self._first_s = now_s
                run.first_transit_s.append(now_s - float(stamps[0]))
        self._got += data
        got = self._got
        end = got.find(b"\r\n\r\n")
        if end < 0:
            return
        if run.chunks:
            whole = got.endswith(b"0\r\n\r\n")
        else:
            at = got.lower().find(b"content-length:", 0, end)
            whole = at >= 0 and len(got) >= end + 4 + int(got[at + 15 : got.find(b"\r\n", at)])
        if whole:
            run.seconds.append(now_s - self._since_s)
            good = got.startswith(b"HTTP/1.1 200") and got.count(b'"delta"') == run.chunks
            run.bad += not good
            self._ask()

    def _ask(self) -> None:
        assert self._transport is not None
        request = self._run.next()
        if request is None:
            self._transport.close()
            return
        self._got.clear()
        self._first_s, self._since_s = 0.0, time.monotonic()
        self._transport.write(request)


def _at(values: list[float], share: float) -> float | None:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] * 1e3 if values else None


async def main(port: int, path: str, connections: int, requests: int, chunks: int, every_ms: int) -> None:
    """Sends them all."""
    run = Run(path, requests, chunks, every_ms)
    run.open = connections
    loop = asyncio.get_running_loop()
    for _ in range(connections):
        await loop.create_connection(lambda: Client(run), "127.0.0.1", port)
    await run.over.wait()
    found = {
        "done": len(run.seconds),
        "bad": run.bad,
        "p50_ms": _at(run.seconds, 0.5),
        "p99_ms": _at(run.seconds, 0.99),
        "transit_p50_ms": _at(run.transit_s, 0.5),
        "transit_p99_ms": _at(run.transit_s, 0.99),
        "first_transit_p99_ms": _at(run.first_transit_s, 0.99),
    }
    print(orjson.dumps(found).decode())


if __name__ == "__main__":
    _port, _path, *_numbers = sys.argv[1:]
    uvloop.run(main(int(_port), _path, *(int(number) for number in _numbers)))
