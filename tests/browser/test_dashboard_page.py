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
from longproof.testing.crowded_fleet import crowded_fleet
from longproof.testing.fleets import broken_fleet, busy_fleet, empty_fleet

pytestmark = pytest.mark.browser
FLEETS = {"busy": busy_fleet, "empty": empty_fleet, "broken": broken_fleet, "crowded": crowded_fleet}


class Served:
    """A dashboard with ten minutes behind it, on an event loop of its own. Its time is moved by hand."""

    def __init__(self, make: Callable[..., Any], key: str = "", port: int = 0, every_s: float = 0.2) -> None:
        self.now_ns, self._every_s = 0, every_s
        self.sources = make(lambda: self.now_ns)
        self.key, self.url, self._port = key, "", port
        self._up, self._loop = threading.Event(), asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=lambda: self._loop.run_until_complete(self._run()))
        self._thread.start()
        assert self._up.wait(30)

    async def _run(self) -> None:
        dashboard = Dashboard(self.sources, self._guard, every_s=self._every_s)
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
        # all four are up; 41 + 2 + 38 + 1 + 5 + 1 + 3 + 1 run; 9 wait; one is refused a second; 22.31 + 61.01 USD
        assert tiles[0] == "4 of 4"
        assert tiles[2:5] == ["92", "9", "60 / min"]
        assert tiles[7] == "$83.32"
        notes = browser.run("return [...document.querySelectorAll('.tiles p')].map(p => p.textContent)")
        assert notes[2] == "480 / min sent"  # eight a second
        assert notes[4] == "most: queue_full"  # the only code that grows
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


def test_the_same_trouble_of_many_replicas_is_one_line(browser: Any) -> None:
    with served(crowded_fleet) as server:
        show(browser, server.url)
        until(browser, LIVE)
        lines = browser.run("return [...document.querySelectorAll('.alarms > li')].map(li => li.innerText)")
        assert len(lines) == 7
        assert lines[0] == "✕ chat-04 is down: Connection refused"
        assert "long-3 failed too often; not asked again for 40 s: 3.0 s ago it answered 500: CUDA error" in lines[1]
        assert "60 failed in the last minute; the last at long-3" in lines[2]
        assert "412 requests wait, the oldest for 2 h: no replica has room for it" in lines[3]
        assert lines[4].startswith("▲ 11 replicas each is above its watermark: nothing new until it is down to 90 %")
        assert "chat-00 index=inferred its KV events are not used: no tokenizer" in lines[5]
        # twelve names have a number with 1, 2 or 3 over a multiple of five; the one that is broken does not count
        assert lines[6].startswith("▲ 12 replicas index=degraded")
        assert browser.run("return document.title").startswith("✕ 3 (412) eu-central-1")
        reasons = browser.run("return [...document.querySelectorAll('.reasons li')].map(li => li.innerText)")
        assert reasons[0] == "100 its tenant has had more than its share; … are served before it"


def test_a_page_that_hears_nothing_says_so_and_asks_again(browser: Any) -> None:
    with served(busy_fleet, every_s=3_600) as server:  # as if the gateway, or the network on the way, were frozen
        show(browser, server.url)
        until(browser, LIVE)
        browser.run("window.shift = 6e3; const now = Date.now; Date.now = () => now() + window.shift")
        until(browser, "document.getElementById('live').textContent.startsWith('nothing heard since ')")
        assert browser.run("return document.getElementById('view').className") == "stale"
        browser.run("window.shift = 60e3")  # it gives that stream up; a new one begins with the newest view
        until(browser, LIVE)


def test_an_opened_reason_stays_open_when_the_next_view_comes(browser: Any) -> None:
    with served(busy_fleet) as server:
        show(browser, server.url)
        until(browser, LIVE)
        browser.run("document.querySelector('details summary').click(); document.body.dataset.seen = document.title")
        seen = "document.querySelector('[data-key=refusals] tbody td').textContent"
        before = browser.run(f"return {seen}")
        server.now_ns += 5 * NS_PER_S
        until(browser, f"{seen} !== '{before}'")
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
        until(browser, "document.querySelectorAll('.tiles dd')[2].textContent === '92'")


def test_the_theme_changes_when_its_button_is_pressed(browser: Any) -> None:
    with served(empty_fleet) as server:
        show(browser, server.url)
        until(browser, LIVE)
        colour = "return getComputedStyle(document.body).backgroundColor"
        light = browser.run(colour)
        browser.run("document.getElementById('theme').click()")
        assert browser.run(colour) != light
        assert browser.run("return document.getElementById('theme').textContent") == "Light theme"
