"""The three numbers and how they relate."""

from __future__ import annotations

from dataclasses import replace

import pytest

from longproof.claim.derive import claim_of
from longproof.claim.view import EvidenceView
from longproof.domain.measure import Unknown, reported
from longproof.report import drawings, verdict
from longproof.report.numbers import sample_size
from longproof.testing.builders import (
    build_deployment,
    build_header,
    build_refusal,
    build_request,
    build_timeline,
    build_view,
)


def _view(*, limit: int, capacity: int | None, completed: int | None) -> EvidenceView:
    """Two requests of one total of the boundary search; `completed` None = both refused."""
    pool = Unknown(reason="the server does not report it") if capacity is None else reported(capacity, "GET /metrics")
    header = build_header(deployment=build_deployment(limit_tokens=limit, kv_capacity_tokens=pool))
    total = completed or limit
    prompt = total - 16
    timeline = build_timeline(prompt_tokens=prompt) if completed else build_refusal(prompt_tokens=prompt)
    cells = [{"total": total, "prompt": prompt, "output": 16, "repeat": repeat} for repeat in range(2)]
    return build_view(*(build_request("boundary", dict(cell), timeline) for cell in cells), header=header)


def _marks(view: EvidenceView) -> tuple[verdict.Mark, ...]:
    return verdict.three_numbers(claim_of(view), view)


def test_three_numbers_keep_their_own_sources_when_all_are_known() -> None:
    limit, capacity, measured = _marks(_view(limit=8192, capacity=16_384, completed=8190))
    assert (limit.tokens, capacity.tokens, measured.tokens) == (8192, 16_384, 8190)
    assert (limit.provenance, capacity.provenance, measured.provenance) == (
        "reported",
        "reported",
        f"measured, {sample_size(2)}",
    )
    assert capacity.source == "GET /metrics"


@pytest.mark.parametrize(
    ("completed", "relation"),
    [
        (8192, "equals the configured limit"),
        (8191, "1 token below the limit (0.012 %)"),  # 1 / 8192 = 0.0122 %
        (4096, "4,096 tokens below the limit (50 %)"),
        (8200, "8 tokens above the limit (0.098 %)"),  # 8 / 8192 = 0.0977 %
    ],
)
def test_boundary_is_compared_in_words_when_the_limit_is_known(completed: int, relation: str) -> None:
    assert _marks(_view(limit=8192, capacity=None, completed=completed))[2].relation == relation


@pytest.mark.parametrize(
    ("capacity", "relation"),
    [
        (8192, "holds exactly one sequence at the limit"),
        (26_624, "holds 3.25 sequences at the limit"),  # 26,624 / 8,192
        (4096, "holds 50 % of one sequence at the limit"),
    ],
)
def test_capacity_is_compared_in_words_when_both_are_known(capacity: int, relation: str) -> None:
    assert _marks(_view(limit=8192, capacity=capacity, completed=8192))[1].relation == relation


def test_unknown_number_says_why_when_the_server_is_silent() -> None:
    capacity = _marks(_view(limit=8192, capacity=None, completed=8192))[1]
    assert (capacity.tokens, capacity.text, capacity.source) == (None, "unknown", "the server does not report it")


def test_boundary_is_unknown_when_everything_was_refused() -> None:
    view = _view(limit=4096, capacity=None, completed=None)
    assert _marks(view)[2].tokens is None
    assert verdict.boundary_tokens(claim_of(view)) is None


def test_boundary_is_unknown_when_the_probe_did_not_run() -> None:
    mark = _marks(build_view())[2]
    assert (mark.tokens, mark.source) == (None, "the boundary probe did not run")


def test_axis_has_bars_from_zero_when_numbers_are_close() -> None:
    axis = drawings.axis(_marks(_view(limit=8192, capacity=16_384, completed=4096)))
    assert axis is not None
    assert axis.linear
    shares = {mark.name: mark.percent for mark in axis.marks}
    assert shares["KV capacity"] == pytest.approx(2 * shares["Configured limit"], abs=0.01)
    assert shares["Configured limit"] == pytest.approx(2 * shares["Measured boundary"], abs=0.01)


def test_axis_is_logarithmic_when_a_bar_could_not_be_seen() -> None:
    axis = drawings.axis(_marks(_view(limit=8192, capacity=1_048_576, completed=8192)))
    assert axis is not None
    assert not axis.linear
    assert all(0 < mark.percent < 100 for mark in axis.marks)


def test_axis_is_left_out_when_only_one_number_is_known() -> None:
    assert drawings.axis(_marks(build_view())) is None  # the builder's limit alone


def test_tally_counts_faults_apart_when_findings_exist() -> None:
    view = _view(limit=4096, capacity=None, completed=None)
    claim = replace(claim_of(view), not_shown=())
    counted = verdict.tally(claim)
    assert counted.faults == sum(finding.severity.value == "fault" for finding in claim.findings) > 0
    assert counted.shown + counted.refuted + counted.undecided == len(claim.statements)
    assert counted.not_shown == 0
