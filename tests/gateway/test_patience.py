"""How long an engine may be silent, also on a loop that was away itself."""

from __future__ import annotations

import asyncio
import socket
import time

import pytest

from longproof.gateway.patience import Patience


async def test_nothing_is_waited_for_longer_when_nothing_comes() -> None:
    began_s = time.monotonic()
    with pytest.raises(TimeoutError):
        async with Patience(0.1):
            await asyncio.Event().wait()
    assert time.monotonic() - began_s >= 0.09


async def test_it_begins_anew_when_something_is_heard() -> None:
    async with Patience(0.01) as patience:
        patience.heard(asyncio.get_running_loop().time() + 1_000)
        await asyncio.sleep(0.2)


async def test_what_waits_in_the_socket_is_read_when_the_loop_was_away() -> None:
    mine, other = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=mine)
    with other:
        async with Patience(0.05):
            other.send(b"x")
            time.sleep(0.2)  # a frozen process  # noqa: ASYNC251
            assert await reader.readexactly(1) == b"x"
    writer.close()


async def test_another_cancellation_is_none_of_its_own() -> None:
    async def waits() -> None:
        async with Patience(60.0):
            await asyncio.Event().wait()

    task = asyncio.create_task(waits())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_nothing_is_expected_while_somebody_else_is_waited_for() -> None:
    async with Patience(0.01) as patience:
        patience.rest()
        await asyncio.sleep(0.2)


async def test_it_begins_anew_when_nobody_else_is_waited_for_any_more() -> None:
    async def hears_once() -> None:
        async with Patience(0.01) as patience:
            patience.rest()
            await asyncio.sleep(0.1)
            patience.heard(asyncio.get_running_loop().time())
            await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        await hears_once()
