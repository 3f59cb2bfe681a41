"""The dashboard's two endpoints on a real socket."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from importlib.resources import files
from typing import Any

import aiohttp
import pytest
from aiohttp.web import BaseRequest

from longproof.clock import SystemClock
from longproof.domain.fleet import FleetSnapshot
from longproof.gateway import dashboard as dashboard_module
from longproof.gateway.dashboard import Dashboard
from longproof.gateway.errors import ApiError, Problem
from longproof.gateway.listener import Listener
from longproof.gateway.routes import Routes
from longproof.testing.fleets import broken_fleet, busy_fleet, empty_fleet


def anybody(_: BaseRequest) -> None:
    """No key is asked for."""


def admins(request: BaseRequest) -> None:
    if request.headers.get("Authorization") != "Bearer right":
        raise ApiError(Problem(status=401, code="invalid_api_key", message="this API key is not known"))


@asynccontextmanager
async def served(dashboard: Dashboard) -> AsyncIterator[tuple[str, Routes, aiohttp.ClientSession]]:
    routes = Routes()
    routes.add("GET", "/dashboard", dashboard.page)
    routes.add("GET", "/dashboard/events", dashboard.events)
    listener = Listener(routes, host="127.0.0.1", port=0)
    url = await listener.start()
    dashboard.start()
    try:
        async with aiohttp.ClientSession() as session:
            yield url, routes, session
    finally:
        dashboard.close()
        await listener.close()


async def next_event(answer: aiohttp.ClientResponse) -> tuple[str, Any]:
    name, data = "", ""
    async for raw in answer.content:
        line = raw.decode().rstrip("\n")
        if not line:
            return name, json.loads(data)
        field, _, value = line.partition(": ")
        name, data = (value, data) if field == "event" else (name, value)
    raise AssertionError("the stream ended")


@pytest.mark.parametrize("make", [busy_fleet, empty_fleet, broken_fleet])
async def test_a_watcher_gets_history_and_then_views(make: Callable[..., Any]) -> None:
    dashboard = Dashboard(make(SystemClock().now_ns), anybody, every_s=0.01)
    async with served(dashboard) as (url, _, session), session.get(f"{url}/dashboard/events") as answer:
        assert answer.headers["Content-Type"] == "text/event-stream"
        name, history = await next_event(answer)
        assert name == "history"
        assert len(history) >= 1
        first = await next_event(answer)
        second = await next_event(answer)
        assert (first[0], second[0]) == ("view", "view")
        assert first[1]["sample"] is None  # it stands in the history already
        assert second[1]["sample"]["at_ns"] > history[-1]["at_ns"]
        assert {"fleet", "meter", "decisions", "index", "pinned", "problems"} <= set(second[1])


def test_nothing_is_ever_put_into_the_page_as_markup() -> None:
    script = files("longproof.gateway").joinpath("pages", "dashboard.js").read_text(encoding="utf-8")
    markup = ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function(", "srcdoc", "href")
    assert [word for word in markup if word in script] == []


async def test_a_head_request_gets_no_stream() -> None:
    async with served(Dashboard(busy_fleet(SystemClock().now_ns), anybody)) as (url, _, session):
        for _ in range(2):  # on one connection: nothing of a stream stands in the second one's way
            async with session.head(f"{url}/dashboard/events") as answer:
                assert answer.status == 200
                assert await answer.read() == b""
        async with session.get(f"{url}/dashboard") as page:
            assert page.status == 200


async def test_the_page_allows_nothing_but_itself() -> None:
    dashboard = Dashboard(empty_fleet(SystemClock().now_ns), admins)
    async with served(dashboard) as (url, _, session), session.get(f"{url}/dashboard") as answer:
        assert answer.status == 200  # the page itself says nothing
        policy, page = answer.headers["Content-Security-Policy"], await answer.text()
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    assert len(re.findall(r"'sha256-[^']+'", policy)) == 2
    assert "http://" not in page.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in page


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer wrong"}])
async def test_nothing_is_told_when_the_key_is_wrong(headers: dict[str, str]) -> None:
    dashboard = Dashboard(busy_fleet(SystemClock().now_ns), admins)
    async with (
        served(dashboard) as (url, _, session),
        session.get(f"{url}/dashboard/events", headers=headers) as answer,
    ):
        assert answer.status == 401
        assert "acme" not in await answer.text()


async def test_views_go_on_when_one_could_not_be_made() -> None:
    sources, broken = busy_fleet(SystemClock().now_ns), [False]

    def fleet() -> FleetSnapshot:
        if broken.pop():
            raise RuntimeError("a bug of ours")
        broken.append(False)
        return sources.fleet()

    dashboard = Dashboard(replace(sources, fleet=fleet), anybody, every_s=0.01)
    async with served(dashboard) as (url, _, session), session.get(f"{url}/dashboard/events") as answer:
        await next_event(answer)
        await next_event(answer)
        broken[:] = [False, True]
        await until(lambda: broken == [False])  # the sample that failed
        for _ in range(3):  # one view may have been on its way
            name, _ = await next_event(answer)
            assert name == "view"


async def test_streams_end_when_the_gateway_drains() -> None:
    dashboard = Dashboard(empty_fleet(SystemClock().now_ns), anybody, every_s=60)
    async with served(dashboard) as (url, routes, session):
        async with session.get(f"{url}/dashboard/events") as answer:
            await next_event(answer)
            await next_event(answer)
            dashboard.close()
            assert await answer.content.read() == b""
        await until(lambda: routes.open == 0)


async def test_a_watcher_is_forgotten_when_it_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dashboard_module, "MOST_WATCHERS", 1)
    dashboard = Dashboard(empty_fleet(SystemClock().now_ns), anybody, every_s=0.01)
    async with served(dashboard) as (url, routes, session):
        async with session.get(f"{url}/dashboard/events") as answer:
            await next_event(answer)
            async with session.get(f"{url}/dashboard/events") as second:
                assert second.status == 503
                assert second.headers["Retry-After"] == "10"
            answer.close()
        await until(lambda: routes.open == 0)
        async with session.get(f"{url}/dashboard/events") as third:
            assert third.status == 200


async def test_a_watcher_that_does_not_read_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dashboard_module, "_CLIENT_STALLS_S", 0.05)
    dashboard = Dashboard(busy_fleet(SystemClock().now_ns), anybody, every_s=0.001)
    async with served(dashboard) as (url, routes, _):
        host, port = url.removeprefix("http://").split(":")
        connection = socket.create_connection((host, int(port)))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)  # else the kernel takes megabytes for us
        reader, writer = await asyncio.open_connection(sock=connection, limit=1)
        writer.write(b"GET /dashboard/events HTTP/1.1\r\nHost: x\r\n\r\n")
        await reader.readexactly(1)
        assert routes.open == 1
        await until(lambda: routes.open == 0)  # its window fills, then the write times out
        writer.close()


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not true():  # noqa: ASYNC110 - a count that no event stands for
            await asyncio.sleep(0.01)
