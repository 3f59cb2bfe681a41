"""The page: whole in every situation, inert whatever a server wrote, and the same bytes each time."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from page_reader import Page

from longproof.claim.derive import claim_of
from longproof.claim.view import EvidenceView
from longproof.errors import EvidenceError
from longproof.report.html import render_html, write_report
from longproof.testing.builders import build_count, build_view
from longproof.testing.scenarios import HOSTILE, full, lying, million, once, refused


def _html(view: EvidenceView) -> str:
    return render_html(claim_of(view), view)


def test_page_is_well_formed_and_linked_when_any_run_is_rendered(view: EvidenceView) -> None:
    page = Page(_html(view))
    ids = [attrs["id"] for _, attrs in page.tags if attrs.get("id")]
    targets = {attrs["href"][1:] for attrs in page.all("a") if attrs["href"]}  # all links stay on the page
    assert len(ids) == len(set(ids))
    assert targets <= set(ids)
    assert all(attrs["href"].startswith("#") for attrs in page.all("a") if attrs["href"])
    assert len(page.all("h1")) == 1


def test_page_asks_for_nothing_outside_when_any_run_is_rendered(view: EvidenceView) -> None:
    html = _html(view)
    page = Page(html)
    assert {tag for tag, _ in page.tags} & {
        "img",
        "iframe",
        "object",
        "embed",
        "video",
        "audio",
        "base",
        "form",
    } == set()
    assert [attrs["href"] for attrs in page.all("link")] == ["data:,"]
    assert not any("src" in attrs for _, attrs in page.tags)
    assert set(re.findall(r"url\((.)", html)) <= {"#"}
    assert "@import" not in html


def test_only_our_script_may_run_when_the_policy_is_read(view: EvidenceView) -> None:
    page = Page(_html(view))
    (script,) = page.raw["script"]
    policy = next(m["content"] for m in page.all("meta") if m.get("http-equiv") == "Content-Security-Policy")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policy is not None
    assert f"script-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none';")
    assert len(page.all("script")) == 1
    assert not any(name.startswith("on") for _, attrs in page.tags for name in attrs)


def test_hostile_words_are_text_when_a_server_writes_them() -> None:
    html = _html(lying())
    text = "".join(Page(html).text)
    assert '<script>document.title="owned"</script>' in text  # shown as it came
    assert "<script>document" not in html  # and never as markup
    assert "\x1b" not in html
    assert "\u202e" not in html
    assert HOSTILE not in html


def test_page_has_the_same_bytes_when_rendered_twice(view: EvidenceView) -> None:
    assert _html(view) == _html(view)


def test_every_drawing_has_a_title_when_rendered() -> None:
    html = _html(full())
    drawings = re.findall(r"<svg\b.*?</svg>", html, re.DOTALL)
    assert len(drawings) > 10
    assert all("<title" in drawing for drawing in drawings)


def test_headings_skip_no_level_when_rendered(view: EvidenceView) -> None:
    levels = [int(tag[1]) for tag, _ in Page(_html(view)).tags if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))


def test_every_table_has_a_caption_and_scoped_heads_when_rendered() -> None:
    page = Page(_html(full()))
    assert len(page.all("caption")) == len(page.all("table")) > 8
    assert all(attrs.get("scope") in ("col", "row", "rowgroup") for attrs in page.all("th"))


def test_refusals_still_make_a_full_report_when_nothing_completed() -> None:
    text = " ".join("".join(Page(_html(refused())).text).split())
    assert "completed no length that was asked for" in text
    assert "refused: busy" in text
    assert "Loading model" in text  # the server's own words
    assert "What this does not show" in text


def test_nothing_is_drawn_when_nothing_was_measured() -> None:
    html = _html(build_view())
    assert "<figure" not in html
    assert '<svg class="plot"' not in html
    assert 'class="states"' not in html


def test_unfinished_and_unsealed_runs_say_so_when_rendered() -> None:
    text = "".join(Page(_html(once())).text)
    assert "did not run to its end" in text
    assert "not sealed" in text
    assert "did not run to its end" not in "".join(Page(_html(full())).text)


def test_every_statement_and_limit_is_on_the_page_when_rendered() -> None:
    view = million()
    claim = claim_of(view)
    text = " ".join("".join(Page(render_html(claim, view)).text).split())
    for said in (*claim.statements, *claim.findings, *claim.not_shown):
        assert " ".join(said.text.split()) in text


def test_page_stays_small_when_thousands_of_counts_agree() -> None:
    counts = [build_count("accounting", {"arm": "length", "prompt": n}, total=n) for n in range(1, 8193)]
    html = _html(build_view(*counts))
    assert len(html) < 1_500_000
    assert "7,992 further token counts" in html  # 8,192 − the 200 that are listed


def test_report_is_written_and_equal_when_made_twice(write_run, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    directory = write_run(full(), tmp_path / "run")
    path = write_report(directory)
    first = path.read_bytes()
    assert path == directory / "report.html"
    assert first.startswith(b"<!doctype html>")
    assert write_report(directory).read_bytes() == first


def test_report_is_refused_when_evidence_was_changed(write_run, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    directory = write_run(once(), tmp_path / "run")
    records = directory / "records.jsonl"
    lines = records.read_bytes().splitlines(keepends=True)
    records.write_bytes(b"".join(lines[:2] + lines[3:]))
    with pytest.raises(EvidenceError):
        write_report(directory)
    assert not (directory / "report.html").exists()


def test_long_error_is_shortened_when_it_would_fill_the_page() -> None:
    assert "more characters in the evidence" in _html(lying())


def test_commands_quote_the_target_when_it_holds_spaces() -> None:
    view = full()
    spaced = replace(view, header=replace(view.header, target="http://h/a b"))
    assert "longproof prove &#39;http://h/a b&#39;" in _html(spaced)
