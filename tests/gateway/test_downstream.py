"""A client's side of an answer, where its own comments and its end meet."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp.web import BaseRequest, StreamResponse

from longproof.gateway.downstream import REQUEST_ID, Downstream
from longproof.gateway.errors import Problem
from longproof.gateway.listener import Listener
from longproof.gateway.routes import Routes

LOST = Problem(status=502, code="replica_lost", message="gone")


@asynccontextmanager
async def answering(answer: Callable[[Downstream], Awaitable[StreamResponse]]) -> AsyncIterator[int]:
    """A server whose requests are numbered and answered so."""
    routes, number = Routes(), 0

    async def handle(request: BaseRequest) -> StreamResponse:
        nonlocal number
        number += 1
        await request.read()
        down = Downstream(request, f"q{number}", keepalive_s=0.001, stall_s=60.0)
        down.keep_alive()
        return await answer(down)

    routes.add("POST", "/", handle)
    listener = Listener(routes, host="127.0.0.1", port=0)
    url = await listener.start()
    try:
        yield int(url.rpartition(":")[2])
    finally:
        await listener.close()


@pytest.mark.parametrize("status", [502, 200])
async def test_a_comment_that_has_not_had_its_turn_is_not_said_when_the_answer_is_there(status: int) -> None:
    """A head that came after the answer would be read as the next request's on that connection."""

    async def answer(down: Downstream) -> StreamResponse:
        while down._said is None:  # noqa: ASYNC110 - no event: this is the one turn between the beat and its comment
            await asyncio.sleep(0)
        return await down.fail(LOST) if status == 502 else down.plain(200, b"{}")

    async with answering(answer) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for number in range(1, 6):
            writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}")
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            assert head.startswith(f"HTTP/1.1 {status} ")
            assert f"{REQUEST_ID}: q{number}\r\n" in head
            length = next(line.partition(": ")[2] for line in head.splitlines() if line.startswith("Content-Length"))
            await reader.readexactly(int(length))
        writer.close()
