"""The stream's rules, and where they leave the judgement to others."""

from __future__ import annotations

import pytest

from longproof.claim.findings import disaggregated, stream
from longproof.claim.statements import Finding
from longproof.domain.events import EndedBy, ServerError
from longproof.evidence.records import RequestBody
from longproof.testing.builders import build_hang, build_request, build_timeline, build_view

ABORTED = build_timeline(finish_reason="abort")


def ids(body: RequestBody) -> set[str]:
    return {finding.id for finding in stream.read(build_view(body))}


def test_an_answer_ended_by_the_server_is_a_fault_when_nobody_asked_for_it() -> None:
    assert "stream.aborted" in ids(build_request("speed", timeline=ABORTED))


def test_an_abort_is_no_fault_when_we_ordered_it() -> None:
    assert "stream.aborted" not in ids(build_request("reclaim", timeline=ABORTED, cancel="abort after 3 chunks"))


@pytest.mark.parametrize("planned_ns", [None, 0])
def test_a_request_without_an_end_is_left_to_the_loads_reader_when_it_was_under_load(planned_ns: int | None) -> None:
    found = ids(build_request("overload", timeline=build_hang(), planned_ns=planned_ns))
    assert ("stream.hung" in found) == (planned_ns is None)


def test_a_broken_stream_is_a_fault_when_it_was_under_load_too() -> None:
    cut = build_timeline(ended_by=EndedBy.CUT, finish_reason=None)
    assert "stream.cut" in ids(build_request("overload", timeline=cut, planned_ns=0))


def test_a_failure_between_two_servers_is_told_once_when_the_pairs_reader_tells_it() -> None:
    """The pair's own reader names the stage; of the decode side asked alone nobody else speaks."""
    failed = build_timeline(
        ended_by=EndedBy.DONE,
        finish_reason=None,
        output_tokens=0,
        error=ServerError(message="bootstrap failed", type="pd_bootstrap", in_stream=True),
    )
    through = build_request("disaggregated", {"arm": "pair", "length": 400}, failed)
    alone = build_request("disaggregated", {"arm": "alone", "length": 400}, failed)
    told = [item.id for item in disaggregated.read(build_view(through)) if isinstance(item, Finding)]
    assert told == ["disaggregated.bootstrap_failed"]
    assert ids(through) == set()
    assert "stream.error_in_200" in ids(alone)
