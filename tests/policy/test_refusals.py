"""Every refusal there is stands in the documentation, with its status."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from longproof.gateway.errors import Problem
from longproof.gateway.replies import problem_of
from longproof.policy import claim_gate, refusals
from longproof.testing.controllers import arrival

S = 1_000_000_000
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


@pytest.mark.parametrize("wait_ns", [None, 0, 1, 2_500_000_000])
def test_whoever_may_come_back_is_told_when_and_nobody_else(wait_ns: int | None) -> None:  # router#281
    asked = arrival("a", 100)
    known_ns = wait_ns or 0
    uttered = [
        refusals.nobody_up(asked, wait_ns),
        refusals.engines_busy(asked, known_ns),
        refusals.queue_full(asked, 5, 5, wait_ns, tenant=False),
        refusals.queue_full(asked, 5, 5, wait_ns, tenant=True),
        refusals.over_budget(asked, 0, S, known_ns),
        refusals.too_late(asked, S + known_ns, S, (), deadline=False),
        refusals.too_late(asked, S + known_ns, S, (), deadline=True),
        refusals.too_cold(asked, 0, 0.5, ()),
        refusals.waited_too_long(asked, S, S, wait_ns, deadline=False),
        refusals.waited_too_long(asked, S, S, wait_ns, deadline=True),
        refusals.unknown_model(asked),
        refusals.no_proven_pool(asked, "proven"),
    ]
    rows = dict(re.findall(r"^\| `(\w+)` \| (\d+) \|", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE))
    assert {refusal.code for refusal in uttered} >= {code for code, status in rows.items() if status in ("429", "503")}
    for refusal in uttered:
        seconds = problem_of(refusal).retry_after_s  # what the header says
        if refusal.status in (429, 503):
            assert seconds is not None
            assert seconds >= max(1, known_ns / S if refusal.code != "cache_hit_floor" else 1)
        else:
            assert seconds is None


@pytest.mark.parametrize("status", [400, 404, 413, 429, 500, 502, 503, 504])
def test_the_wire_has_retry_after_with_429_and_503_alone_whatever_was_forgotten(status: int) -> None:
    for given_ns in (None, 3 * S):
        said = Problem(status=status, code="x", message="y", retry_after_ns=given_ns).retry_after_s
        assert (said is not None) == (status in (429, 503))
