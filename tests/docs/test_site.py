"""The built pages: complete, no dead links, and nothing fetched from another host."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FETCHED = re.compile(r"""<(?:script|img|iframe)\b[^>]*\bsrc=["']([^"']+)|<link\b[^>]*\bhref=["']([^"']+)""")
FETCHED_BY_CSS = re.compile(r"""url\(\s*["']?([^"')]+)|@import\s+["']([^"']+)""")
MARKDOWN_LINK = re.compile(r"\]\(([^)\s]+)\)")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The documentation, built as strictly as it can be: a dead link or an orphaned page is an error."""
    target = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [str(Path(sys.executable).parent / "mkdocs"), "build", "--strict", "--site-dir", str(target)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    return target


def test_every_page_is_there_when_the_site_is_built(site: Path) -> None:
    pages = {path.relative_to(ROOT / "docs").with_suffix("") for path in (ROOT / "docs").rglob("*.md")}
    built = {path.relative_to(site).with_suffix("") for path in site.rglob("*.html")}
    assert pages <= built
    assert len(pages) >= 15


def test_nothing_comes_from_another_host_when_a_page_is_opened(site: Path) -> None:
    fetched = {
        (str(path.relative_to(site)), address)
        for suffix, pattern in ((".html", FETCHED), (".css", FETCHED_BY_CSS))
        for path in site.rglob(f"*{suffix}")
        for found in pattern.findall(path.read_text(encoding="utf-8"))
        for address in found
        if address
    }
    assert any(address.endswith(".css") for _, address in fetched)
    assert [(page, address) for page, address in fetched if re.match(r"(https?:)?//", address)] == []


def test_every_link_leads_somewhere_when_the_readme_is_read() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    links = [link for link in MARKDOWN_LINK.findall(text) if not link.startswith(("http://", "https://", "#"))]
    assert links
    assert [link for link in links if not (ROOT / link.partition("#")[0]).exists()] == []
