"""The measured boundary, the outcome above it, and what a server must not do there."""

from __future__ import annotations

from longproof.claim.findings.boundary import read
from longproof.claim.statements import Finding, NotShown, Standing, Statement
from longproof.claim.view import EvidenceView
from longproof.domain.events import RequestTimeline
from longproof.domain.measure import Measured
from longproof.testing.builders import build_hang, build_refusal, build_request, build_timeline, build_view

OUTPUT = 16


def asked(total: int, repeat: int, timeline: RequestTimeline) -> object:
    cell = {"total": total, "prompt": total - OUTPUT, "output": OUTPUT, "repeat": repeat}
    return build_request("boundary", cell, timeline=timeline)


def good(total: int, repeats: int = 3) -> list[object]:
    return [asked(total, at, build_timeline(prompt_tokens=total - OUTPUT, max_tokens=OUTPUT)) for at in range(repeats)]


def refused(total: int, repeats: int = 3) -> list[object]:
    return [asked(total, at, build_refusal(prompt_tokens=total - OUTPUT)) for at in range(repeats)]


def said(view: EvidenceView) -> dict[str, Statement]:
    return {item.id: item for item in read(view) if isinstance(item, Statement)}


def found(view: EvidenceView) -> set[str]:
    return {item.id for item in read(view) if isinstance(item, Finding)}


def number(statement: Statement) -> float:
    assert isinstance(statement.value, Measured)
    return statement.value.value


def test_the_largest_total_is_shown_when_all_its_repeats_complete() -> None:
    view = build_view(*good(4096), *good(8192), *refused(8193))
    context = said(view)["boundary.context"]
    assert (number(context), context.standing, context.n) == (8192.0, Standing.SHOWN, 3)
    assert number(said(view)["boundary.refused"]) == 8193.0
    assert number(said(view)["boundary.prompt_max"]) == 8192 - OUTPUT
    assert found(view) == set()


def test_one_repeat_is_told_as_such() -> None:
    assert "n = 1" in said(build_view(*good(8192, repeats=1)))["boundary.context"].text


def test_the_three_numbers_stay_apart_when_the_server_tells_no_capacity() -> None:
    statements = said(build_view(*good(8192)))
    assert statements["boundary.configured_limit"].standing is Standing.SHOWN
    assert statements["boundary.kv_capacity"].standing is Standing.NOT_SHOWN


def test_a_clamped_answer_is_not_completion() -> None:
    clamped = build_timeline(prompt_tokens=8193 - OUTPUT, max_tokens=OUTPUT, output_tokens=15)
    view = build_view(*good(8192), asked(8193, 0, clamped))
    assert number(said(view)["boundary.context"]) == 8192.0
    assert "only 15 of 16" in said(view)["boundary.refused"].text


def test_a_hang_above_the_boundary_is_a_finding() -> None:
    view = build_view(*good(2048), asked(4096, 0, build_hang(prompt_tokens=4080)))
    assert found(view) == {"boundary.hangs_above", "boundary.below_limit"}


def test_a_limit_that_is_not_served_is_a_finding() -> None:
    assert found(build_view(*good(2048), *refused(2049))) == {"boundary.below_limit"}


def test_mixed_repeats_are_neither_proven_nor_refuted() -> None:
    view = build_view(*good(2048), *good(4096, repeats=2), asked(4096, 2, build_refusal(prompt_tokens=4080)))
    assert number(said(view)["boundary.context"]) == 2048.0
    assert found(view) == {"boundary.inconsistent"}


def test_nothing_completed_refutes_the_context() -> None:
    context = said(build_view(*refused(256)))["boundary.context"]
    assert (context.standing, number(context)) == (Standing.REFUTED, 256.0)


def test_it_says_that_nothing_above_was_asked() -> None:
    topics = {item.topic for item in read(build_view(*good(4096))) if isinstance(item, NotShown)}
    assert topics == {"above_boundary"}
