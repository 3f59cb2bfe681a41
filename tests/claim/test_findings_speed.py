"""What is read from cold requests: numbers worked out by hand, what is left out of them, and what is a finding."""

from __future__ import annotations

import math

import pytest

from longproof.claim.findings.speed import read
from longproof.claim.statements import Finding, NotShown, Severity, Standing, Statement
from longproof.claim.view import EvidenceView
from longproof.domain.measure import Measured, Unknown
from longproof.evidence.records import NoteBody, RequestBody
from longproof.testing.builders import (
    build_hang,
    build_refusal,
    build_request,
    build_sample,
    build_timeline,
    build_view,
)

MS = 1_000_000


def cold(length: int, repeat: int, *, ttft_ms: float = 100, cached: int | None = 0, **timeline: object) -> RequestBody:
    built = build_timeline(
        prompt_tokens=length,
        ttft_ns=round(ttft_ms * MS),
        cached_tokens=cached,  # type: ignore[arg-type] - None: not reported
        **timeline,
    )
    return build_request("speed", {"arm": "cold", "length": length, "repeat": repeat}, built)


def shared(tokens: int) -> NoteBody:
    return NoteBody(probe="speed", what="shared_prefix", detail={"tokens": tokens})


def statements(view: EvidenceView) -> dict[str, Statement]:
    return {item.id: item for item in read(view) if isinstance(item, Statement)}


def findings(view: EvidenceView) -> list[Finding]:
    return [item for item in read(view) if isinstance(item, Finding)]


def value(statement: Statement) -> float:
    assert isinstance(statement.value, Measured)
    return statement.value.value


def test_numbers_are_those_of_the_timelines_when_requests_complete() -> None:
    """1,000 tokens, TTFT 100, 200 and 300 ms, then 15 tokens 10 ms apart and 1 ms to the end.

    ttft 0.2 s; prefill (10,000 + 5,000 + 3,333.3) / 3 = 6,111.1 tok/s; tpot 0.01 s; decode 100 tok/s;
    e2e 0.2 + 0.15 + 0.001 s. The t interval of (0.1, 0.2, 0.3): 0.2 ± 4.3027 x 0.1 / sqrt(3) = 0.2 ± 0.24841,
    of which the part below zero cannot be.
    """
    view = build_view(*(cold(1000, i, ttft_ms=100 * (i + 1)) for i in range(3)))
    said = statements(view)
    assert value(said["speed.ttft.1000"]) == pytest.approx(0.2)
    assert value(said["speed.prefill_rate.1000"]) == pytest.approx(6111.11, rel=1e-5)
    assert value(said["speed.tpot.1000"]) == pytest.approx(0.01)
    assert value(said["speed.decode_rate.1000"]) == pytest.approx(100)
    assert value(said["speed.e2e.1000"]) == pytest.approx(0.351)
    interval = said["speed.ttft.1000"].interval
    assert interval is not None
    assert (interval.low, interval.high) == (0.0, pytest.approx(0.44841, abs=1e-4))
    assert said["speed.ttft.1000"].samples == (0.1, 0.2, 0.3)
    assert said["speed.ttft.1000"].conditions["cold_by"] == "fresh nonce; no cached tokens by usage"
    assert len(said["speed.ttft.1000"].evidence) == 3


def test_one_repeat_has_no_interval_and_says_so_when_read() -> None:
    said = statements(build_view(cold(1000, 0)))["speed.ttft.1000"]
    assert said.interval is None
    assert said.text.endswith("100 ms (n = 1).")


def test_gaps_are_pooled_but_their_interval_is_of_answers_when_chunks_are_tokens() -> None:
    """Gaps of 10 ms in one answer (3 of them) and 30 ms in the other: mean 20 ms, n = 6. The interval is that of two
    means: 0.02 ± 12.7062 x 0.0141421 / sqrt(2) = 0.02 ± 0.127062."""
    view = build_view(
        cold(1000, 0, max_tokens=4, itl_ns=10 * MS), cold(1000, 1, max_tokens=4, itl_ns=30 * MS), shared(30)
    )
    itl = statements(view)["speed.itl.1000"]
    assert (value(itl), itl.n) == (pytest.approx(0.02), 6)
    assert itl.interval is not None
    assert itl.interval.high == pytest.approx(0.147062, abs=1e-5)
    assert itl.conditions["answers"] == "2"


def test_refused_and_broken_work_enters_no_number_when_there_is_some() -> None:
    """Of four requests one completes: 0.25, and its TTFT alone is the mean."""
    cell = {"arm": "cold", "length": 1000, "repeat": 9}
    view = build_view(
        cold(1000, 0, ttft_ms=100),
        cold(1000, 1, ttft_ms=900, max_tokens=16, output_tokens=2),
        build_request("speed", cell, build_hang(prompt_tokens=1000)),
        build_request("speed", cell, build_refusal(prompt_tokens=1000)),
    )
    said = statements(view)
    assert (value(said["speed.ttft.1000"]), said["speed.ttft.1000"].n) == (pytest.approx(0.1), 1)
    assert said["speed.ttft.1000"].conditions["left_out"] == (
        "1 completed with less output than asked for, 1 hung without a token, 1 refused for length"
    )
    assert value(said["speed.success_rate.1000"]) == 0.25
    assert said["speed.success_rate.1000"].n == 4


def test_a_length_without_completed_work_has_reasons_and_no_numbers_when_read() -> None:
    cell = {"arm": "cold", "length": 1000, "repeat": 0}
    said = statements(build_view(build_request("speed", cell, build_refusal(prompt_tokens=1000))))
    for metric in ("ttft", "tpot", "itl", "e2e", "prefill_rate", "decode_rate"):
        statement = said[f"speed.{metric}.1000"]
        assert statement.standing is Standing.NOT_SHOWN
        assert statement.value == Unknown(reason="1 refused for length")
        assert statement.n == 0


def test_a_sample_is_marked_and_left_out_when_more_is_cached_than_the_template() -> None:
    """30 tokens can be shared: 30 reported are the template, 31 are not."""
    view = build_view(shared(30), cold(1000, 0, ttft_ms=100, cached=30), cold(1000, 1, ttft_ms=10, cached=31))
    assert [(item.id, item.severity) for item in findings(view)] == [("speed.cached_while_cold", Severity.FAULT)]
    said = statements(view)["speed.ttft.1000"]
    assert (value(said), said.n) == (pytest.approx(0.1), 1)
    assert said.conditions["left_out"] == "1 not cold"
    assert "at most 30 cached tokens, the template's" in said.conditions["cold_by"]


def test_the_largest_report_counts_when_a_server_reports_in_several_ways() -> None:
    """usage says 0, the engine's counter grew by 512."""
    body = build_request(
        "speed",
        {"arm": "cold", "length": 1000, "repeat": 0},
        build_timeline(prompt_tokens=1000),
        before=build_sample(values={"vllm:prefix_cache_hits_total": 100.0}),
        after=build_sample(values={"vllm:prefix_cache_hits_total": 612.0}),
    )
    found = findings(build_view(shared(30), body))
    assert [item.id for item in found] == ["speed.cached_while_cold"]
    assert found[0].details["cached"] == "512"


def test_coldness_rests_on_the_nonce_when_nothing_is_reported() -> None:
    said = statements(build_view(cold(1000, 0, cached=None)))["speed.ttft.1000"]
    assert said.conditions["cold_by"] == "fresh nonce; the server does not report cached tokens"
    assert said.n == 1


def test_growth_is_a_power_of_length_when_there_are_two_lengths() -> None:
    """Four times the tokens, eight times the TTFT: log 8 / log 4 = 1.5. Equal repeats: an interval of no width."""
    view = build_view(*(cold(length, i, ttft_ms=ms) for length, ms in ((1000, 100), (4000, 800)) for i in range(2)))
    grown = statements(view)["speed.ttft_exponent.4000"]
    assert value(grown) == pytest.approx(1.5)
    assert grown.interval is not None
    assert (grown.interval.low, grown.interval.high) == (pytest.approx(1.5), pytest.approx(1.5))
    assert grown.conditions["from_tokens"] == "1000"
    assert "8 times" in grown.text


def test_the_first_request_is_told_apart_when_it_was_slow() -> None:
    """900 ms against 100 ms for later ones of its length: 9 times."""
    warmup = build_request(
        "speed", {"arm": "warmup", "length": 1000, "repeat": 0}, build_timeline(prompt_tokens=1000, ttft_ns=900 * MS)
    )
    said = statements(build_view(warmup, cold(1000, 0), cold(1000, 1)))
    assert value(said["speed.first_run_ratio"]) == pytest.approx(9)
    assert value(said["speed.ttft.1000"]) == pytest.approx(0.1)


def test_calibration_is_the_first_run_when_the_main_job_made_one() -> None:
    first, second = (
        build_request("calibration", {"length": 384, "repeat": i}, build_timeline(prompt_tokens=384, ttft_ns=ms * MS))
        for i, ms in enumerate((500, 250))
    )
    assert value(statements(build_view(first, second, cold(1000, 0)))["speed.first_run_ratio"]) == pytest.approx(2)


def test_the_gap_to_the_engines_clock_is_of_the_same_requests_when_it_has_one() -> None:
    """The client saw 100 ms; vLLM's histogram grew by 0.097 s in one request, llama.cpp's prompt_ms says 96."""
    name = "vllm:time_to_first_token_seconds"
    vllm = build_request(
        "speed",
        {"arm": "cold", "length": 1000, "repeat": 0},
        build_timeline(prompt_tokens=1000),
        before=build_sample(values={f"{name}_sum": 1.0, f"{name}_count": 3.0}),
        after=build_sample(values={f"{name}_sum": 1.097, f"{name}_count": 4.0}),
    )
    llama = cold(2000, 0, engine_timings={"prompt_ms": 96.0, "cache_n": 0.0})
    said = statements(build_view(vllm, llama))
    assert value(said["speed.engine_ttft_gap.1000"]) == pytest.approx(0.003)
    assert value(said["speed.engine_ttft_gap.2000"]) == pytest.approx(0.004)
    assert "speed.engine_ttft_gap.1000" not in statements(build_view(cold(1000, 0)))


def test_a_length_is_not_shown_when_no_prompt_of_it_could_be_promised() -> None:
    note = NoteBody(
        probe="speed",
        what="length_unproven",
        detail={"arm": "cold", "length": 9, "repeat": 0, "reason": "too short"},
    )
    said = [item for item in read(build_view(cold(1000, 0), note)) if isinstance(item, NotShown)]
    assert [(item.topic, "too short" in item.text) for item in said] == [("speed_at_9", True)]


def test_nothing_is_said_when_nothing_was_asked() -> None:
    assert list(read(build_view())) == []


def test_intervals_of_growth_widen_with_the_spread_when_repeats_differ() -> None:
    """Twice the tokens; TTFT 100 and 120 ms against 200 and 240: the ratio of geometric means is 2, the power 1.
    Welch's interval on logs: variance 2 x (ln 1.2)^2 / 4 = 0.0166203, 2 degrees of freedom, 4.3027 x 0.128920 =
    0.554702, over ln 2."""
    view = build_view(
        cold(1000, 0, ttft_ms=100), cold(1000, 1, ttft_ms=120), cold(2000, 0, ttft_ms=200), cold(2000, 1, ttft_ms=240)
    )
    grown = statements(view)["speed.ttft_exponent.2000"]
    assert value(grown) == pytest.approx(1)
    assert grown.interval is not None
    assert grown.interval.high - 1 == pytest.approx(0.554702 / math.log(2), rel=1e-3)
