"""A proxy that does nothing but pass on, with aiohttp's own server and client: what those libraries cost by themselves.

python -m transport.proxy PORT URL,URL,…
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import AsyncIterator

import uvloop
from aiohttp import ClientSession, ClientTimeout, TCPConnector, web

_OWN = {"host", "connection", "content-length", "transfer-encoding", "date", "server"}


def proxy(urls: list[str]) -> web.Application:
    """Takes the engines in turn."""
    turn = itertools.cycle(urls)
    kept: list[ClientSession] = []

    async def client(_: web.Application) -> AsyncIterator[None]:
        connector = TCPConnector(limit=0)
        async with ClientSession(connector=connector, timeout=ClientTimeout(total=None), auto_decompress=False) as made:
            kept.append(made)
            yield

    async def answer(request: web.Request) -> web.StreamResponse:
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _OWN}
        body = await request.read()
        async with kept[0].request(request.method, next(turn) + request.path_qs, data=body, headers=headers) as found:
            given = {name: value for name, value in found.headers.items() if name.lower() not in _OWN}
            if found.content_type != "text/event-stream":
                return web.Response(status=found.status, body=await found.read(), headers=given)
            response = web.StreamResponse(status=found.status, headers=given)
            await response.prepare(request)
            async for part in found.content.iter_any():
                await response.write(part)
            await response.write_eof()
            return response

    application = web.Application(client_max_size=1 << 30)
    application.cleanup_ctx.append(client)
    application.router.add_route("*", "/{path:.*}", answer)
    return application


if __name__ == "__main__":
    web.run_app(
        proxy(sys.argv[2].split(",")),
        host="127.0.0.1",
        port=int(sys.argv[1]),
        loop=uvloop.new_event_loop(),
        access_log=None,
        print=None,
    )
