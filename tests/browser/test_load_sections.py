"""The sections of load in a real browser: there, readable at every width and in both themes, quiet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.browser
SECTIONS = ["busy", "reclaim", "restart", "disaggregated", "conversation", "sweep", "sustained", "overload"]


@pytest.mark.parametrize("name", ["loaded", "bare", "many"])
def test_page_is_quiet_and_narrow_when_there_was_load(browser: Any, load_pages: dict[str, Path], name: str) -> None:
    browser.open(load_pages[name], width=400)
    browser.run("document.querySelectorAll('details').forEach(item => { item.open = true; })")
    assert browser.run("return document.documentElement.scrollWidth - document.documentElement.clientWidth") == 0
    assert browser.requests() == [load_pages[name].as_uri()]
    assert browser.complaints() == []


def test_every_section_is_reached_from_the_contents_when_it_stands(browser: Any, load_pages: dict[str, Path]) -> None:
    browser.open(load_pages["loaded"])
    for name in SECTIONS:
        browser.run("document.querySelector(arguments[0]).click()", f'nav a[href="#{name}"]')
        assert browser.run("return document.querySelector(':target h2').checkVisibility()")
        drawn = browser.run("return document.querySelectorAll(arguments[0]).length", f"#{name} svg.plot")
        assert drawn >= 1, name


@pytest.mark.parametrize("width", [400, 1280])
def test_plot_text_is_large_whole_and_apart_when_load_is_drawn(
    browser: Any, load_pages: dict[str, Path], width: int
) -> None:
    browser.open(load_pages["loaded"], width=width)
    plots = browser.plot_texts()
    assert len(plots) > 25
    for texts in plots:
        browser.assert_readable(texts)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_every_text_has_contrast_when_load_is_drawn(browser: Any, load_pages: dict[str, Path], dark: bool) -> None:
    browser.open(load_pages["loaded"], dark=dark)
    assert browser.low_contrast() == []


def test_states_are_drawn_whole_when_the_page_is_narrow(browser: Any, load_pages: dict[str, Path]) -> None:
    browser.open(load_pages["many"], width=360)
    outside = """const svg = document.querySelector('svg.states'), card = svg.getBoundingClientRect();
      return [...svg.querySelectorAll('text')].filter(text => text.getBoundingClientRect().right > card.right + 1)
        .map(text => text.textContent)"""
    assert browser.run(outside) == []


def test_hostile_words_do_nothing_when_a_load_was_refused_with_them(browser: Any, load_pages: dict[str, Path]) -> None:
    browser.open(load_pages["bare"])
    assert browser.driver.title != "owned"
    assert browser.run("return document.querySelectorAll('img').length") == 0
