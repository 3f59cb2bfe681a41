"""Lies as values: when they apply, how they are written by hand, and that all of them are documented."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from longproof.errors import UsageError
from longproof.testing import lies
from longproof.testing.behaviour import parse_lie, parse_lies
from longproof.testing.engine_state import LieSchedule
from longproof.testing.lies import LIES, Crash, Hang, Lie, Refuse, TruncateInput, WrongUsage


def test_every_lie_stands_in_the_table_and_every_line_is_a_lie() -> None:
    documented = re.findall(r"^\| (\w+) +\|", lies.__doc__ or "", flags=re.MULTILINE)
    assert documented[1:] == list(LIES)
    assert documented[0] == "name"


def test_reference_page_says_of_every_lie_what_the_code_says() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "reference" / "python-api.md").read_text(encoding="utf-8")
    said = dict(re.findall(r"^\| (\w+) +\| (.+?) +\|$", lies.__doc__ or "", flags=re.MULTILINE))
    told = dict(re.findall(r"^\| `(\w+)` \| (.+?) \|$", page, flags=re.MULTILINE))
    assert {name: told.get(name) for name in LIES} == {name: said[name] for name in LIES}


def test_every_lie_can_be_written_by_hand() -> None:
    for name, kind in LIES.items():
        assert parse_lie(name) == kind()


def test_settings_have_their_types_when_written_by_hand() -> None:
    assert parse_lies(
        [
            "truncate_input:keep_tokens=100,lose=tail,above_tokens=50,times=2",
            "refuse:status=503,retry_after_s=none,form=html,message=not now",
            "wrong_usage:prompt_scale=0.5",
            "hide_cached:in_metrics=false",
            "crash:after_tokens=3",
        ]
    ) == (
        TruncateInput(keep_tokens=100, lose="tail", above_tokens=50, times=2),
        Refuse(status=503, retry_after_s=None, form="html", message="not now"),
        WrongUsage(prompt_scale=0.5),
        lies.HideCached(in_metrics=False),
        Crash(after_tokens=3),
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("no_such_lie", "there is no lie 'no_such_lie'"),
        ("hang:colour=red", "the lie 'hang' has no setting 'colour'"),
        ("truncate_input:lose=everything", "truncate_input.lose cannot be 'everything'"),
        ("clamp_output:tokens=few", "clamp_output.tokens cannot be 'few'"),
    ],
)
def test_mistake_is_named_with_what_would_be_right(text: str, problem: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_lie(text)
    assert problem in caught.value.problem
    assert caught.value.advice


def in_force(lie: Lie, lengths: list[int]) -> list[bool]:
    schedule = LieSchedule()
    return [bool(schedule.in_force((lie,), tokens)) for tokens in lengths]


def test_lie_applies_to_longer_prompts_only_when_it_has_a_border() -> None:
    assert in_force(Hang(above_tokens=100), [99, 100, 101]) == [False, False, True]


def test_lie_applies_to_some_requests_only_when_it_skips_and_ends() -> None:
    # the third request is too short to count as a match
    assert in_force(Hang(above_tokens=10, skip=1, times=2), [50, 50, 5, 50, 50]) == [False, True, False, True, False]


def test_lies_are_combined_when_several_are_told() -> None:
    both = (Hang(above_tokens=10), Refuse(times=1))
    schedule = LieSchedule()
    assert schedule.in_force(both, 50) == both
    assert schedule.in_force(both, 50) == both[:1]
