"""The live dashboard in a real Chromium: busy, empty and broken fleets, both themes, wide and narrow."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from aiohttp.web import BaseRequest

from longproof.clock import NS_PER_S
from longproof.gateway.dashboard import Dashboard
from longproof.gateway.errors import ApiError, Problem
from longproof.gateway.listener import Listener
from longproof.gateway.routes import Routes
from longproof.testing.fleets import broken_fleet, busy_fleet, empty_fleet

pytestmark = pytest.mark.browser
FLEETS = {"busy": busy_fleet, "empty": empty_fleet, "broken": broken_fleet}


class Served:
    """A dashboard with ten minutes behind it, on an event loop of its own. Its time is moved by hand."""

    def __init__(self, make: Callable[..., Any], key: str = "", port: int = 0) -> None:
        self.now_ns = 0
        self.sources = make(lambda: self.now_ns)
        self.key, self.url, self._port = key, "", port
        self._up, self._loop = threading.Event(), asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=lambda: self._loop.run_until_complete(self._run()))
        self._thread.start()
        assert self._up.wait(30)

    async def _run(self) -> None:
        dashboard = Dashboard(self.sources, self._guard, every_s=0.2)
        for _ in range(600):
            self.now_ns += NS_PER_S
            dashboard._history.add(self.sources.fleet())  # pyright: ignore[reportPrivateUsage] - ten minutes at once
        routes = Routes()
        routes.add("GET", "/dashboard", dashboard.page)
        routes.add("GET", "/dashboard/events", dashboard.events)
        listener = Listener(routes, host="127.0.0.1", port=self._port)
        self.url = await listener.start()
        dashboard.start()
        self._up.set()
        await self._stop.wait()
        dashboard.close()
        await listener.close()

    def _guard(self, request: BaseRequest) -> None:
        if self.key and request.headers.get("Authorization") != f"Bearer {self.key}":
            raise ApiError(Problem(status=401, code="invalid_api_key", message="this API key is not known"))

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(30)
        self._loop.close()


@contextmanager
def served(make: Callable[..., Any], **options: Any) -> Iterator[Served]:
    server = Served(make, **options)
    try:
        yield server
    finally:
        server.stop()


def show(browser: Any, url: str, *, width: int = 1280, dark: bool = False) -> None:
    browser.driver.get("about:blank")
    browser.cdp("Network.enable")
    online = {"offline": False, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
    browser.cdp("Network.emulateNetworkConditions", **online)
    browser.cdp("Emulation.setScriptExecutionDisabled", value=False)
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.cdp("Emulation.setDeviceMetricsOverride", **metrics)
    browser.media("screen", dark=dark)
    browser.complaints()
    browser.driver.get(f"{url}/dashboard")


def until(browser: Any, script: str) -> None:
    """Waits until a script in the page is true."""
    end = time.monotonic() + 60
    while not browser.run(f"return Boolean({script})"):
        assert time.monotonic() < end, script
        time.sleep(0.05)


LIVE = "document.getElementById('live').className === 'live on'"


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("fleet", FLEETS)
def test_the_page_is_readable_whatever_the_fleet(browser: Any, fleet: str, width: int, dark: bool) -> None:
    with served(FLEETS[fleet]) as server:
        show(browser, server.url, width=width, dark=dark)
        until(browser, LIVE)
        assert browser.run("return document.documentElement.scrollWidth <= document.documentElement.clientWidth")
        assert browser.low_contrast() == []
        assert browser.run("return document.querySelectorAll('img').length") == 0  # names are text, never markup
        assert browser.run(
            "return [...document.querySelectorAll('svg[role=img]')].every(svg => svg.getAttribute('aria-label'))"
        )
        assert browser.complaints() == []


def test_the_figures_are_those_of_the_fleet(browser: Any) -> None:
    with served(busy_fleet) as server:
        show(browser, server.url)
        until(browser, LIVE)
        tiles = browser.run("return [...document.querySelectorAll('.tiles dd')].map(dd => dd.textContent)")
        # 41 + 2 + 38 + 1 + 5 + 1 + 3 + 1 run; 9 wait; eight are sent and one is refused a second; 22.31 + 61.01 USD
        assert tiles[:2] == ["92", "9"]
        assert tiles[2:4] == ["480 / min", "60 / min"]
        assert tiles[5] == "$83.32"
        bars = browser.run(
            "return [...document.querySelectorAll('svg.bar')].map(bar => bar.getAttribute('aria-label'))"
        )
        assert "kv: 96 % held, watermark at 95 %" in bars
        parts = browser.run(
            "return [...document.querySelectorAll('[data-key=pair-0] svg.bar')[0].querySelectorAll('rect')]"
            ".map(r => [r.getAttribute('class'), Number(r.getAttribute('width'))])"
        )
        # the prefill stage: 125,000 blocks, 31,000 held: a third shared, 6,500 others'; the rest 4/5 filled
        assert dict(parts)["shared"] == pytest.approx(31_000 // 3 / 125)
        assert dict(parts)["foreign"] == pytest.approx(6_500 / 125)
        assert browser.run("return document.querySelectorAll('.pool').length") == 2
        assert "long-0 kv" in browser.run("return document.querySelector('.alarms').textContent")


def test_everything_that_is_wrong_is_said_first(browser: Any) -> None:
    with served(broken_fleet) as server:
        show(browser, server.url)
        until(browser, LIVE)
        said = browser.run("return document.querySelector('.alarms').innerText")
        for words in (
            "is down",
            "not asked again for 12 s",
            "preempts",
            "index=degraded",
            "No space left",
            "vLLM 0.31",
        ):
            assert words in said


def test_an_opened_reason_stays_open_when_the_next_view_comes(browser: Any) -> None:
    with served(busy_fleet) as server:
        show(browser, server.url)
        until(browser, LIVE)
        browser.run("document.querySelector('details summary').click(); document.body.dataset.seen = document.title")
        before = browser.run("return document.querySelector('.tiles dd + p').textContent")
        server.now_ns += 5 * NS_PER_S
        until(browser, f"document.querySelector('.tiles dd + p').textContent !== '{before}'")
        assert browser.run("return document.querySelector('details').open")
        assert "pair-0" in browser.run("return document.querySelector('details').innerText")


def test_nothing_shows_until_the_key_is_right(browser: Any) -> None:
    with served(busy_fleet, key="right") as server:
        show(browser, server.url)
        until(browser, "!document.getElementById('door').hidden")
        assert browser.run("return document.getElementById('view').childElementCount") == 0
        enter = "document.getElementById('key').value = arguments[0]; document.getElementById('door').requestSubmit()"
        browser.run(enter, "wrong")
        until(browser, "document.getElementById('refused').textContent")
        assert "not known" in browser.run("return document.getElementById('refused').textContent")
        assert browser.low_contrast() == []
        browser.run(enter, "right")
        until(browser, LIVE)
        assert "right" not in browser.run("return location.href + document.cookie")
        browser.run("sessionStorage.clear()")


def test_the_page_says_so_and_comes_back_when_the_gateway_was_away(browser: Any) -> None:
    with served(empty_fleet) as server:
        show(browser, server.url)
        until(browser, LIVE)
        port = int(server.url.rpartition(":")[2])
    until(browser, "document.getElementById('live').className === 'live off'")
    assert "trying again" in browser.run("return document.getElementById('live').textContent")
    with served(busy_fleet, port=port):
        until(browser, LIVE)
        until(browser, "document.querySelector('.tiles dd').textContent === '92'")


def test_the_theme_changes_when_its_button_is_pressed(browser: Any) -> None:
    with served(empty_fleet) as server:
        show(browser, server.url)
        until(browser, LIVE)
        colour = "return getComputedStyle(document.body).backgroundColor"
        light = browser.run(colour)
        browser.run("document.getElementById('theme').click()")
        assert browser.run(colour) != light
        assert browser.run("return document.getElementById('theme').textContent") == "Light theme"
