"""A gateway's shell on a real socket, in front of lying engines, with a stand-in for the controller."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from longproof.clock import SystemClock
from longproof.gateway.desk import Desk
from longproof.gateway.exchange import Surroundings
from longproof.gateway.fleet import Fleet, Replica
from longproof.gateway.generate import AnswerRules, Generations
from longproof.gateway.intake import Intake
from longproof.gateway.keys import KeyRing, KeyRule
from longproof.gateway.listener import Listener, Tls
from longproof.gateway.models import ModelList
from longproof.gateway.pass_through import PassThrough
from longproof.gateway.routes import Routes
from longproof.gateway.upstream import Upstream

sys.path.insert(0, str(Path(__file__).parent))  # what tests import by name
sys.path.insert(1, str(Path(__file__).parents[1] / "engines"))
from gateway_standin import MODEL, Books, ByBytes, Shell, StandIn


@pytest.fixture
async def shell() -> AsyncIterator[Callable[..., Awaitable[Shell]]]:
    """``await shell([url, …], most=1, keys=[…], keepalive_s=0.05)``: starts one; all end with the test."""
    closing: list[Callable[[], Awaitable[object]]] = []

    async def start(
        urls: list[str],
        *,
        keys: list[KeyRule] | None = None,
        body_limit_bytes: int = 8 << 20,
        open_limit_bytes: int = 64 << 20,
        body_timeout_s: float = 60.0,
        keepalive_s: float = 10.0,
        stall_s: float = 60.0,
        silence_s: float = 60.0,
        tls: Tls | None = None,
        controller: Any = None,
        prefill_url: str | None = None,
        **settings: Any,
    ) -> Shell:
        upstream = await Upstream().__aenter__()
        replicas = [
            Replica(name=f"r{i}", url=url, models=(MODEL,), prefill_url=prefill_url) for i, url in enumerate(urls)
        ]
        fleet = Fleet(tuple(replicas), upstream)
        controller = controller or StandIn([replica.name for replica in replicas], **settings)
        clock, books, routes = SystemClock(), Books(), Routes()
        desk, ring = Desk(controller, clock), KeyRing.of(keys or [])
        around = Surroundings(desk=desk, fleet=fleet, counting=ByBytes(), meter=books, clock=clock, silence_s=silence_s)
        intake = Intake(
            body_limit_bytes=body_limit_bytes, open_limit_bytes=open_limit_bytes, body_timeout_s=body_timeout_s
        )
        generations = Generations(around, intake, ring, AnswerRules(keepalive_s=keepalive_s, stall_s=stall_s))
        models = ModelList(fleet, ring)
        routes.add("POST", "/v1/chat/completions", generations.chat)
        routes.add("POST", "/v1/completions", generations.completions)
        routes.add("POST", "/v1/responses", generations.responses)
        routes.add("GET", "/v1/models", models.all)
        routes.add("GET", "/v1/models/*", models.one)
        routes.add("POST", "/tokenize", PassThrough(fleet, intake, ring, clock, timeout_s=60).answer)
        desk.start()
        listener = Listener(routes, host="127.0.0.1", port=0, tls=tls)
        url = await listener.start()
        session = aiohttp.ClientSession()

        async def close() -> None:
            await session.close()
            await listener.close()
            desk.stop()
            await upstream.__aexit__(None, None, None)

        closing.append(close)
        return Shell(
            url=url,
            controller=controller,
            books=books,
            intake=intake,
            listener=listener,
            routes=routes,
            session=session,
        )

    yield start
    for close in closing:
        await close()


@pytest.fixture
def until() -> Callable[..., Awaitable[None]]:
    """``await until(condition)``: for what happens a little later."""

    async def wait(condition: Callable[[], bool], *, within_s: float = 60.0) -> None:
        async with asyncio.timeout(within_s):
            while not condition():  # noqa: ASYNC110 - any condition, of any object
                await asyncio.sleep(0.002)

    return wait
