"""The report in a real browser: offline, quiet, readable at every width and in both themes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from longproof.testing.scenarios import SCENARIOS

pytestmark = pytest.mark.browser
scenario = pytest.mark.parametrize("name", sorted(SCENARIOS))


@scenario
def test_page_asks_for_nothing_when_opened_offline(browser: Any, pages: dict[str, Path], name: str) -> None:
    browser.open(pages[name])
    assert browser.requests() == [pages[name].as_uri()]
    assert browser.run("return performance.getEntriesByType('resource').length") == 0
    assert browser.complaints() == []


@pytest.mark.parametrize("width", [360, 768, 1280])
@scenario
def test_page_does_not_scroll_sideways_when_narrow(browser: Any, pages: dict[str, Path], name: str, width: int) -> None:
    browser.open(pages[name], width=width)
    too_wide = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert browser.run("return innerWidth") == width
    assert browser.run(too_wide) == 0
    browser.run("document.querySelectorAll('details').forEach(item => { item.open = true; })")
    assert browser.run(too_wide) == 0


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@scenario
def test_every_text_has_contrast_when_shown(browser: Any, pages: dict[str, Path], name: str, dark: bool) -> None:
    browser.open(pages[name], dark=dark)
    browser.run("document.querySelectorAll('details').forEach(item => { item.open = true; })")
    assert browser.low_contrast() == []


def test_theme_follows_the_system_and_the_button_when_asked(browser: Any, pages: dict[str, Path]) -> None:
    paper = "return getComputedStyle(document.body).backgroundColor"
    plot = "return getComputedStyle(document.querySelector('svg.plot text')).fill"
    browser.open(pages["full"])
    light = browser.run(paper), browser.run(plot)
    browser.open(pages["full"], dark=True)
    dark = browser.run(paper), browser.run(plot)
    assert light[0] != dark[0]
    assert light[1] != dark[1]
    button = browser.driver.find_element("id", "theme")
    assert button.text == "Light theme"
    button.click()
    assert (browser.run(paper), browser.run(plot), button.text) == (*light, "Dark theme")
    button.click()
    assert (browser.run(paper), browser.run(plot)) == dark
    browser.open(pages["full"])
    browser.driver.find_element("id", "theme").click()
    assert browser.run(paper) == dark[0]


def test_page_is_whole_when_scripts_are_off(browser: Any, pages: dict[str, Path]) -> None:
    browser.open(pages["full"], scripts=False)
    try:
        button = browser.driver.find_element("id", "theme")
        assert not button.is_displayed()
        assert browser.driver.find_element("css selector", "svg.plot").is_displayed()
    finally:
        browser.cdp("Emulation.setScriptExecutionDisabled", value=False)


def test_link_opens_its_record_when_evidence_is_folded(browser: Any, pages: dict[str, Path]) -> None:
    browser.open(pages["full"])
    assert browser.run("return document.querySelector('#evidence details').open") is False
    link = browser.driver.find_element("css selector", "#edge .keys a")
    browser.run("arguments[0].click()", link)
    target = browser.run("return document.querySelector(':target').textContent")
    box = browser.run("const b = document.querySelector(':target').getBoundingClientRect(); return [b.top, b.height]")
    assert link.text in target
    assert browser.run("return document.querySelector('#evidence details').open") is True
    assert box[1] > 0


@scenario
def test_every_link_has_a_target_when_followed(browser: Any, pages: dict[str, Path], name: str) -> None:
    browser.open(pages[name])
    lost = "return [...document.querySelectorAll('a')].filter(a => !document.getElementById(a.hash.slice(1))).length"
    assert browser.run("return document.querySelectorAll('a').length") > 10
    assert browser.run(lost) == 0


@scenario
def test_every_drawing_has_a_name_when_read_aloud(browser: Any, pages: dict[str, Path], name: str) -> None:
    browser.open(pages[name])
    unnamed = """return [...document.querySelectorAll('svg:not([aria-hidden])')].filter(svg => {
      const name = document.getElementById(svg.getAttribute('aria-labelledby').split(' ')[0]);
      return !(svg.contains(name) && name.tagName === 'title' && name.textContent.trim()); }).length"""
    assert browser.run(unnamed) == 0


@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("name", ["full", "million", "once", "lying"])
def test_plot_text_is_large_whole_and_apart_when_shown(
    browser: Any, pages: dict[str, Path], name: str, width: int
) -> None:
    browser.open(pages[name], width=width)
    plots = browser.plot_texts()
    assert plots
    for texts in plots:
        browser.assert_readable(texts)


def test_hostile_words_do_nothing_when_the_page_is_opened(browser: Any, pages: dict[str, Path]) -> None:
    browser.open(pages["lying"])
    assert browser.driver.title != "owned"
    assert browser.run("return document.querySelectorAll('img').length") == 0
    assert '<script>document.title="owned"</script>' in browser.driver.find_element("tag name", "h1").text


def test_print_is_light_and_unclipped_when_the_reader_likes_it_dark(browser: Any, pages: dict[str, Path]) -> None:
    browser.open(pages["full"], dark=True)
    browser.media("print", dark=True)
    assert (
        browser.run("return getComputedStyle(document.documentElement).getPropertyValue('--ink')").strip() == "#1b1d21"
    )
    assert browser.run("return getComputedStyle(document.querySelector('.scroll')).overflowX") == "visible"
    assert not browser.driver.find_element("id", "theme").is_displayed()
