"""Every trouble that users reported elsewhere has a test here, by name."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "reference" / "known-troubles.md"
_ROW = re.compile(r"^\|.*\| `([a-z_/]+\.py)::(test_\w+)` \|$", re.MULTILINE)


def test_every_reported_trouble_has_a_test_that_exists() -> None:
    page = PAGE.read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| ") and not line.startswith("| Reported")]
    found = _ROW.findall(page)
    assert len(found) == len(rows) > 35
    for path, name in found:
        source = (ROOT / "tests" / path).read_text(encoding="utf-8")
        assert re.search(rf"def {name}\(", source), f"{path} has no {name}"
