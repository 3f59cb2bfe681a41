"""Every refusal there is stands in the documentation, with its status."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from longproof.policy import claim_gate, refusals

PAGE = Path(__file__).parents[2] / "docs" / "concepts" / "admission.md"


def test_the_page_names_exactly_the_codes_there_are() -> None:
    source = inspect.getsource(refusals) + inspect.getsource(claim_gate)
    codes = {name for line in re.findall(r"code=(.*)", source) for name in re.findall(r'"(\w+)"', line)}
    rows = dict(re.findall(r"^\| `(\w+)` \| (\d+) \|", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE))
    assert set(rows) == codes
    assert {status for code, status in rows.items() if code.startswith(("beyond", "context"))} == {"400"}


def test_the_page_says_of_every_code_whether_waiting_helps() -> None:
    rows = re.findall(r"^\| `\w+` \| (\d+) \|.*\| (.*) \|$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert len(rows) == 14
    assert all((retry == "–") == (status not in ("429", "503")) for status, retry in rows)
