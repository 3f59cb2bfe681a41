"""Requests of a stock: each as if it had been made by itself, and together no larger than one."""

from __future__ import annotations

import asyncio
import json
import tracemalloc
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from probing import probing

from longproof.asking.context import prompt_sha256
from longproof.asking.exact import BuiltPrompt
from longproof.asking.lot import Lot, lot_of
from longproof.asking.stock import PromptStock
from longproof.asking.window import Load, LoadRequest, run_window
from longproof.domain.outcome import Outcome, classify
from longproof.domain.request import CountSource, IdsPrompt, Route, TokenCount
from longproof.engines.link import Link
from longproof.engines.openai import OpenAIEngine
from longproof.testing.builders import build_protocol
from longproof.testing.dialects import VLLM
from longproof.testing.lying_engine import HONEST, lying_engine

STREAMS = 24
TOKENS = 150_000
MIB = 2**20
MODELS = b'{"object":"list","data":[{"id":"m","object":"model"}]}'
ANSWER = (
    b'data: {"choices":[{"index":0,"text":"a","finish_reason":"length"}]}\n\n'
    b'data: {"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}\n\ndata: [DONE]\n\n'
)


class Together:
    """A server that reads every prompt to its end, keeps nothing, and answers when all have come."""

    def __init__(self, many: int) -> None:
        self._all = asyncio.Barrier(many)
        self.read_bytes = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._answer(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # a client that asked nothing
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if head.startswith(b"GET"):
            writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(MODELS) + MODELS)
        else:
            left = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
            self.read_bytes += left
            while left:
                left -= len(await reader.read(min(left, 65_536)))
            await self._all.wait()
            kind = b"Content-Type: text/event-stream\r\nConnection: close\r\n\r\n"
            writer.write(b"HTTP/1.1 200 OK\r\n" + kind + ANSWER)
        await writer.drain()


def stock_of_ids(tokens: int) -> PromptStock:
    draw = Random(1)
    ids = tuple(draw.randrange(10_000, 50_000) for _ in range(tokens))
    count = TokenCount(total=tokens, content=tokens, template=0, special=None, source=CountSource.IDS, how="ids")
    return PromptStock(
        built=BuiltPrompt(prompt=IdsPrompt(ids=ids), count=count),
        nonce="amber willow lantern",
        words=("amber", "willow", "lantern"),
        word_ids=tuple(range(10_000, 11_000)),
        nonce_ids=8,
    )


@pytest.mark.parametrize("route", [Route.CHAT, Route.COMPLETIONS])
async def test_a_request_of_a_lot_is_the_one_made_by_itself(tmp_path: Path, route: Route) -> None:
    protocol = build_protocol(output_tokens=8, route=route)
    with lying_engine(HONEST.but(dialect=VLLM)) as url:
        async with probing(url, tmp_path, protocol=protocol) as ctx:
            stock = await ctx.prompts.stock(200, key="stock")
            lot = lot_of(ctx, stock)
            for i in (0, 1, 7):
                prepared = await lot.prepare(ctx.engine, i)
                asked = stock.request(
                    i,
                    max_tokens=8,
                    timeout_s=protocol.request_timeout_s,
                    cold=ctx.engine.capabilities.cold,
                    seed=protocol.seed,
                )
                alone = await ctx.engine.prepare(replace(asked, request_id=prepared.request_id))
                said, wanted = (json.loads(b"".join(one.body.pieces)) for one in (prepared, alone))
                assert said == wanted
                assert (prepared.path, prepared.headers, prepared.fields) == (alone.path, alone.headers, alone.fields)
                assert await lot.prompt_sha256(i) == prompt_sha256(asked.prompt)


async def test_memory_is_that_of_one_prompt_when_a_window_has_many_open(tmp_path: Path) -> None:
    """24 prompts of 150,000 ids, all open at once. As values of their own they would be 24 × (1.2 MB of ids and 0.9 MB
    of body) = 48 MiB; one of them, with its body and the bytes that are hashed, is about 4."""
    together = Together(STREAMS)
    server = await asyncio.start_server(together.serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    lot = Lot(stock_of_ids(TOKENS), max_tokens=1, timeout_s=60.0)
    load = Load(
        for_ns=0,
        scheduled=tuple(
            LoadRequest(name=f"long/{i}", cell={}, request=lot.request(i), at_ns=i * 2_000_000) for i in range(STREAMS)
        ),
    )
    async with server, probing(OpenAIEngine(Link(url), model="m"), tmp_path) as ctx:
        tracemalloc.start()
        try:
            done = await run_window(ctx, "w", probe="busy", cell={}, load=load, expected_tokens=1, expected_ns=1)
            peak_bytes = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert [classify(body.timeline) for _, body in done.requests] == [Outcome.COMPLETED] * STREAMS
    assert together.read_bytes > STREAMS * TOKENS * 5
    assert len({body.prompt_sha256 for _, body in done.requests}) == STREAMS
    assert peak_bytes < 16 * MIB
