"""The builders make consistent wholes: what one field says, the others do not deny."""

from __future__ import annotations

import pytest

from longproof.domain.outcome import Outcome, classify
from longproof.testing.builders import (
    build_count,
    build_deployment,
    build_hang,
    build_header,
    build_refusal,
    build_request,
    build_timeline,
    build_view,
)
from longproof.testing.fake_clock import FakeClock


def test_timeline_is_completed_when_built_with_defaults() -> None:
    timeline = build_timeline()
    assert classify(timeline) is Outcome.COMPLETED
    assert timeline.ttft_ns == 100_000_000
    # 16 tokens, 15 gaps of 10 ms: (150 ms) / 15
    assert timeline.tpot_ns == 10_000_000


def test_timeline_is_short_when_fewer_tokens_were_produced_than_asked() -> None:
    assert classify(build_timeline(max_tokens=16, output_tokens=2)) is Outcome.SHORT


def test_timeline_takes_the_override_when_a_field_is_named() -> None:
    assert build_timeline(finish_reason="stop", usage=None).finish_reason == "stop"
    with pytest.raises(TypeError):
        build_timeline(no_such_field=1)


def test_times_are_in_causal_order_when_built() -> None:
    t = build_timeline(ttft_ns=5_000_000)
    known = [t.submitted_ns, t.headers_ns, t.first_byte_ns, t.first_event_ns, t.first_token_ns, t.finished_ns]
    assert known == sorted(v for v in known if v is not None)


def test_refusal_and_hang_are_classified_as_such_when_built() -> None:
    assert classify(build_refusal()) is Outcome.REFUSED_LENGTH
    assert classify(build_hang()) is Outcome.HUNG


def test_fingerprint_differs_when_a_known_fact_differs() -> None:
    small, large = build_header(deployment=build_deployment(limit_tokens=2048)), build_header()
    assert small.fingerprint.digest != large.fingerprint.digest
    assert build_header().fingerprint == large.fingerprint


def test_view_finds_requests_by_probe_when_given_bodies() -> None:
    first = build_request("speed", {"tokens": 512})
    second = build_request("speed", {"tokens": 512})
    view = build_view(first, ("named", second), build_request("warmth"), build_count("accounting", total=31))
    assert [body for _, body in view.requests("speed")] == [first, second]
    assert [key for key, _ in view.requests("speed")][1] == "named"
    assert [body.count.content for _, body in view.counts("accounting") if body.count] == [11]  # 31 - 20 of template
    assert len({record.key for record in view.records}) == 4


def test_fake_clock_moves_only_when_advanced() -> None:
    clock = FakeClock(start_ns=5)
    before = clock.wall()
    assert (clock.now_ns(), clock.now_ns()) == (5, 5)
    assert clock.advance_s(1.5) == 1_500_000_005
    assert (clock.wall() - before).total_seconds() == 1.5
    with pytest.raises(ValueError, match="back"):
        clock.advance(-1)
