"""A real headless Chromium, driven over WebDriver and the DevTools protocol. Needs `chromium` and `chromedriver`."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from longproof.claim.derive import claim_of
from longproof.report.html import render_html
from longproof.testing.scenarios import SCENARIOS
from longproof.testing.scenarios_load import LOAD_SCENARIOS

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
)

_LOW_CONTRAST = """
const luminance = ([r, g, b]) => { const f = c => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  return 0.2126 * f(r) + 0.7152 * f(g) + 0.0722 * f(b); };
const colour = text => (text.match(/[\\d.]+/g) || []).map(Number);
const behind = el => { for (; el; el = el.parentElement) { const c = colour(getComputedStyle(el).backgroundColor);
  if (c.length === 3 || c[3] === 1) return c; } return [255, 255, 255]; };
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), low = [];
while (walker.nextNode()) {
  const el = walker.currentNode.parentElement, words = walker.currentNode.data.trim();
  if (!words || !el.checkVisibility() || el.closest('title, desc, script, style')) continue;
  const style = getComputedStyle(el), front = colour(el.closest('svg') ? style.fill : style.color);
  const [a, b] = [luminance(front), luminance(behind(el))].sort((x, y) => y - x);
  if ((a + 0.05) / (b + 0.05) < 4.5) low.push([words.slice(0, 40), style.color]);
}
return low;
"""
_TEXT_IN_PLOTS = """
return [...document.querySelectorAll('svg.plot')].map(svg => {
  const card = svg.closest('figure').getBoundingClientRect();
  return [...svg.querySelectorAll('text')].map(text => { const box = text.getBoundingClientRect();
    return {words: text.textContent.trim(), left: box.left, right: box.right, top: box.top, bottom: box.bottom,
      inside: box.left >= card.left && box.right <= card.right && box.top >= card.top && box.bottom <= card.bottom,
      size: parseFloat(getComputedStyle(text).fontSize) * text.getScreenCTM().a}; }); });
"""


class Browser:
    """One tab. Every page is opened offline, at a width, in a colour scheme."""

    def __init__(self, driver: Chrome) -> None:
        self.driver = driver

    def open(self, page: Path, *, width: int = 1280, dark: bool = False, scripts: bool = True) -> None:
        """Opens a file with the network cut off."""
        self.cdp("Network.enable")
        offline = {"offline": True, "latency": 0, "downloadThroughput": 0, "uploadThroughput": 0}
        self.cdp("Network.emulateNetworkConditions", **offline)
        self.cdp("Emulation.setScriptExecutionDisabled", value=not scripts)
        metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        self.cdp("Emulation.setDeviceMetricsOverride", **metrics)
        self.media("screen", dark=dark)
        self.driver.get("about:blank")  # ends the page before it, which may ask for more
        self.requests()  # forget what earlier pages did
        self.driver.get_log("browser")
        self.driver.get(page.as_uri())

    def media(self, kind: str, *, dark: bool = False) -> None:
        """Screen or print, light or dark."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.cdp("Emulation.setEmulatedMedia", media=kind, features=[scheme])

    def run(self, script: str, *arguments: object) -> Any:
        """The value of a script in the page."""
        return self.driver.execute_script(script, *arguments)

    def requests(self) -> list[str]:
        """URLs that were asked for since the last call."""
        entries = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        return [e["params"]["request"]["url"] for e in entries if e["method"] == "Network.requestWillBeSent"]

    def complaints(self) -> list[str]:
        """What the console said since the page was opened: errors, policy violations, failed loads."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def low_contrast(self) -> Any:
        """[words, colour] of every visible text whose contrast is below 4.5 : 1."""
        return self.run(_LOW_CONTRAST)

    def plot_texts(self) -> Any:
        """Per plot: its texts with their boxes, whether inside their card, and their size in CSS pixels."""
        return self.run(_TEXT_IN_PLOTS)

    @staticmethod
    def assert_readable(texts: list[dict[str, Any]]) -> None:
        """Texts of one plot are inside, large enough and apart."""
        assert all(text["inside"] for text in texts), [text["words"] for text in texts if not text["inside"]]
        assert min(text["size"] for text in texts) >= 10.5
        for i, one in enumerate(texts):
            for other in texts[i + 1 :]:
                apart = one["right"] <= other["left"] + 0.5 or other["right"] <= one["left"] + 0.5
                above = one["bottom"] <= other["top"] + 3 or other["bottom"] <= one["top"] + 3  # boxes hold line gaps
                assert apart or above, (one["words"], other["words"])

    def cdp(self, method: str, **parameters: object) -> Any:
        """A DevTools command."""
        return self.driver.execute_cdp_cmd(method, parameters)


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """The browser, started once with a profile of its own."""
    from selenium.webdriver import Chrome, ChromeOptions
    from selenium.webdriver.chrome.service import Service

    binary = shutil.which("chromium") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    assert binary is not None, "no chromium on PATH (Debian: apt-get install chromium)"
    assert driver is not None, "no chromedriver on PATH (Debian: apt-get install chromium-driver)"
    options = ChromeOptions()
    options.binary_location = binary
    for flag in (*_FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
    chrome = Chrome(options=options, service=Service(driver))
    try:
        yield Browser(chrome)
    finally:
        chrome.quit()


@pytest.fixture(scope="session")
def load_pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The report of every scenario of load, as files."""
    directory = tmp_path_factory.mktemp("load_pages")
    written: dict[str, Path] = {}
    for name, make in LOAD_SCENARIOS.items():
        view = make()
        written[name] = directory / f"{name}.html"
        written[name].write_text(render_html(claim_of(view), view), encoding="utf-8")
    return written


@pytest.fixture(scope="session")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The report of every scenario, as files."""
    directory = tmp_path_factory.mktemp("pages")
    written: dict[str, Path] = {}
    for name, make in SCENARIOS.items():
        view = make()
        written[name] = directory / f"{name}.html"
        written[name].write_text(render_html(claim_of(view), view), encoding="utf-8")
    return written
