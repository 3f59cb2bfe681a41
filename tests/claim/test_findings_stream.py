"""The stream's rules, and where they leave the judgement to others."""

from __future__ import annotations

import pytest

from longproof.claim.findings import stream
from longproof.domain.events import EndedBy
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
