"""What is read of more load than fits: goodput, where it peaks, what gives, and recovery."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from loads import Entry, counting, gauges, gone, hung, in_stream, note, refused, timeline, view, window

from longproof.claim.derive import claim_of
from longproof.claim.findings.overload import read
from longproof.claim.statements import Finding, NotShown, Severity, Standing, Statement
from longproof.claim.view import EvidenceView
from longproof.domain.events import EngineSample, RequestTimeline
from longproof.domain.measure import Measured, Unknown
from longproof.evidence.records import Lag, SessionBody, WindowBody

STEP_MS = 10_000.0


def said(of: EvidenceView) -> dict[str, Statement]:
    return {item.id: item for item in read(of) if isinstance(item, Statement)}


def findings(of: EvidenceView) -> dict[str, Finding]:
    return {item.id: item for item in read(of) if isinstance(item, Finding)}


def topics(of: EvidenceView) -> set[str]:
    return {item.topic for item in read(of) if isinstance(item, NotShown)}


def value(statement: Statement) -> float:
    assert isinstance(statement.value, Measured)
    return statement.value.value


def spread(start_ms: float, count: int, *, ttft_ms: float = 20) -> list[RequestTimeline]:
    """So many requests sent evenly over a step, all but the last 2 s of it; 10 tokens, 10 ms apart."""
    return [timeline(start_ms + i * (STEP_MS - 2000) / count, ttft_ms=ttft_ms) for i in range(count)]


def step(
    number: int, concurrency: int, items: Sequence[RequestTimeline], *, samples: Sequence[EngineSample] = ()
) -> list[Entry]:
    """The window of that number begins at number × 20 s and asks for 10 s."""
    start = number * 20_000
    load: dict[str, int | float | str | bool] = {
        "arrival": "closed",
        "concurrency": concurrency,
        "for_ns": 10_000_000_000,
        "timeout_s": 30.0,
        "prompt_tokens": 64,
        "output_tokens": 10,
        "slo_times": 5.0,
        "slow_after_ns": 1_000_000_000,
        "seed": 0,
    }
    cell: dict[str, int | float | str | bool] = {"phase": "step" if number else "idle", "number": number}
    key = f"overload/step/{concurrency}" if number else "overload/idle"
    requests = [("short", item) for item in items]
    return window(key, "overload", cell, load, requests, start_ms=start, end_ms=start + STEP_MS, samples=samples)


IDLE = step(0, 1, spread(0, 20))
"""2 good requests a second; p95 of TTFT 20 ms and of TPOT 10 ms, so good is 100 ms and 50 ms."""


def recovery(*ttft_ms: float, every_ms: float = 500, after_ms: float = 0, lags: Sequence[Lag] = ()) -> list[Entry]:
    """One window after that of number 3 (it ends at 70 s), one request at a time."""
    band = note("overload", "band", ttft_ns=32_000_000, tpot_ns=17_000_000, in_a_row=3, most_ns=30_000_000_000, n=20)
    start = 70_000 + after_ms
    items = [timeline(start + i * every_ms, ttft_ms=ttft) for i, ttft in enumerate(ttft_ms)]
    *requests, (key, body) = window(
        "overload/recovery/0",
        "overload",
        {"phase": "recovery", "number": 4},
        {"concurrency": 1},
        [("short", item) for item in items],
        start_ms=start,
        end_ms=start + len(ttft_ms) * every_ms,
    )
    assert isinstance(body, WindowBody)
    return [band, *requests, (key, replace(body, lags=tuple(lags)))]


QUICK = recovery(20, 20, 20)


def rising(last: list[Entry]) -> EvidenceView:
    """4 and 8 a second, then a third step; recovery at once."""
    return view(IDLE, step(1, 2, spread(20_000, 40)), step(2, 4, spread(40_000, 80)), last, QUICK)


def test_goodput_counts_what_came_in_time_when_a_step_ran() -> None:
    """80 sent over a 10 s step, 20 of them after 150 ms: 60 good ones, 6 a second; all 80 completed with 10 tokens: 80
    tokens a second. Garwood of 60: 45.79 to 77.23 over 10 s."""
    items = [*spread(60_000, 60), *spread(60_000, 20, ttft_ms=150)]
    found = said(rising(step(3, 8, items)))
    goodput = found["overload.overload_goodput.8"]
    assert value(goodput) == pytest.approx(6.0)
    assert goodput.interval is not None
    assert (goodput.interval.low, goodput.interval.high) == (pytest.approx(4.579, 1e-3), pytest.approx(7.723, 1e-3))
    assert value(found["overload.overload_throughput.8"]) == pytest.approx(80.0)
    assert value(found["overload.overload_peak"]) == pytest.approx(8.0)
    assert found["overload.overload_peak"].conditions["load"] == "4 at a time"
    assert "TTFT ≤ 100 ms, TPOT ≤ 50 ms (5 times the idle p95)" in goodput.conditions["slo"]


def test_a_claim_can_be_made_when_the_probe_ran() -> None:
    """Known metrics in their units, no two statements of one name, evidence that is there."""
    claim = claim_of(rising(step(3, 8, spread(60_000, 80))))
    assert claim.statement("overload_peak") is not None


def test_an_honest_queue_is_accused_of_nothing_when_all_come_late() -> None:
    """Goodput is 0, but as much work is done as at the peak: late, not lost."""
    of = rising(step(3, 64, spread(60_000, 80, ttft_ms=2000)))
    assert value(said(of)["overload.overload_goodput.64"]) == 0.0
    assert findings(of) == {}


def test_it_collapses_when_work_is_lost_too() -> None:
    """From 8 completed a second to 1, and none in time: 10 of 90 with a share of 0.7/1.7 each are far below 1 %."""
    found = findings(rising(step(3, 64, spread(60_000, 10, ttft_ms=2000))))
    assert set(found) == {"overload.collapse"}
    assert found["overload.collapse"].severity is Severity.CAUTION


def test_a_few_requests_less_are_no_collapse_when_chance_explains_them() -> None:
    """60 of 80, all good: more than half, whatever the test says."""
    assert findings(rising(step(3, 64, spread(60_000, 60)))) == {}


def test_it_thrashes_when_memory_is_taken_away_again_and_again() -> None:
    """40 preemptions for 40 completed requests, all late; as many completed as before would be no collapse."""
    samples = counting(60_000, 69_000, "vllm:num_preemptions_total", 0, 40)
    of = rising(step(3, 64, spread(60_000, 40, ttft_ms=2000), samples=samples))
    found = findings(of)
    assert "overload.thrash" in found
    assert found["overload.thrash"].details == {"preemptions": "40", "completed": "40"}
    assert value(said(of)["overload.overload_preemptions"]) == 40.0


def test_some_preemptions_are_no_thrash_when_goodput_holds() -> None:
    samples = counting(60_000, 69_000, "vllm:num_preemptions_total", 0, 40)
    assert findings(rising(step(3, 64, spread(60_000, 80), samples=samples))) == {}


def test_recomputed_tokens_are_told_when_the_engine_counts_prompts_as_often_as_it_computes_them() -> None:
    """80 prompts of 64 tokens are 5,120; the counter grew by 6,120."""
    samples = counting(60_000, 69_000, "llamacpp:prompt_tokens_total", 100, 6_220)
    only = view(IDLE, step(3, 8, spread(60_000, 80), samples=samples), QUICK)
    assert value(said(only)["overload.overload_recomputed"]) == 1000.0


def test_nothing_was_recomputed_when_nothing_was_preempted() -> None:
    """vLLM has no counter of work done twice, but it does no work twice unless it preempts."""
    samples = counting(60_000, 69_000, "vllm:num_preemptions_total", 3, 3)
    only = view(IDLE, step(3, 8, spread(60_000, 80), samples=samples), QUICK)
    assert value(said(only)["overload.overload_recomputed"]) == 0.0


def test_recomputed_tokens_have_a_bound_when_the_engine_only_counts_preemptions() -> None:
    """5 preemptions of requests of 64 + 10 tokens: at most 370."""
    samples = counting(60_000, 69_000, "vllm:num_preemptions_total", 0, 5)
    statement = said(view(IDLE, step(3, 8, spread(60_000, 80), samples=samples), QUICK))["overload.overload_recomputed"]
    assert isinstance(statement.value, Unknown)
    assert "at most 370 tokens" in statement.text


def test_the_queue_is_told_when_there_is_a_gauge() -> None:
    samples = gauges(60_000, 69_000, running=4, waiting=3)
    text = said(rising(step(3, 8, spread(60_000, 80), samples=samples)))["overload.overload_goodput.8"].text
    assert "Up to 3 waited in the engine, +0 a second." in text


def test_the_queue_is_stuck_when_nothing_runs_for_longer_than_all_of_them_take() -> None:
    """Eight at a time, 0.111 s each alone: no engine step is longer than 0.9 s. They wait for 5 s."""
    waiting = gauges(62_000, 67_000, running=0, waiting=8, kv_usage=0.0)
    items = [*spread(60_000, 80), *(hung(62_000, 30_000, prompt=64) for _ in range(8))]
    assert "overload.queue_stuck" in findings(rising(step(3, 8, items, samples=waiting)))
    short = gauges(62_000, 62_800, running=0, waiting=8, kv_usage=0.0)
    assert findings(rising(step(3, 8, spread(60_000, 80), samples=short))) == {}


def test_refusals_without_a_time_are_a_caution_when_it_is_full() -> None:
    items = [*spread(60_000, 80), refused(61_000), refused(62_000), refused(63_000, retry_after="2")]
    of = rising(step(3, 8, items))
    found = findings(of)
    assert set(found) == {"overload.retry_after_missing"}
    assert found["overload.retry_after_missing"].details == {"refused": "3", "without": "2"}
    assert value(said(of)["overload.overload_served.8"]) == pytest.approx(80 / 83)


def test_an_error_in_a_200_is_a_fault_when_it_is_full() -> None:
    assert set(findings(rising(step(3, 8, [*spread(60_000, 80), in_stream(61_000)])))) == {"overload.error_after_200"}


def test_requests_without_an_answer_are_a_caution_when_given_up() -> None:
    found = findings(rising(step(3, 8, [*spread(60_000, 80), hung(61_000, 30_000, prompt=64)])))
    assert set(found) == {"overload.timeouts"}
    assert "given up after 30 s" in found["overload.timeouts"].text


def test_it_crashed_when_nobody_listens_any_more() -> None:
    died = note("overload", "died", after="unreachable", waits=6, restarted=False)
    of = view(IDLE, step(1, 2, spread(20_000, 40)), step(2, 4, [*spread(40_000, 20), gone(48_000)]), [died])
    found = findings(of)
    assert "overload.crash" in found
    assert "with 4 at a time" in found["overload.crash"].text
    assert "overload_recovery" in topics(of)


def test_recovery_is_timed_when_it_is_quick() -> None:
    """The first of three quick ones was sent 600 ms after the load had ended."""
    of = view(IDLE, step(3, 8, spread(60_000, 80)), recovery(20, 20, 20, after_ms=600))
    assert value(said(of)["overload.overload_recovery"]) == pytest.approx(0.6)
    assert findings(of) == {}


def test_recovery_is_slow_when_several_in_a_row_are() -> None:
    """Slow at 0, 0.5, 1 and 1.5 s; quick from 2 s on: more than the second that is allowed."""
    of = view(IDLE, step(3, 8, spread(60_000, 80)), recovery(90, 90, 90, 90, 20, 20, 20))
    assert set(findings(of)) == {"overload.slow_recovery"}
    assert value(said(of)["overload.overload_recovery"]) == pytest.approx(2.0)


def test_one_slow_request_is_no_slow_recovery_when_the_next_are_quick() -> None:
    of = view(IDLE, step(3, 8, spread(60_000, 80)), recovery(90, 20, 20, 20, every_ms=2000))
    assert findings(of) == {}


def test_it_does_not_recover_when_all_stay_slow() -> None:
    of = view(IDLE, step(3, 8, spread(60_000, 80)), recovery(*[90.0] * 12))
    found = findings(of)
    assert set(found) == {"overload.no_recovery"}
    assert found["overload.no_recovery"].severity is Severity.FAULT
    assert said(of)["overload.overload_recovery"].standing is Standing.NOT_SHOWN


def test_nothing_is_concluded_when_the_client_was_short_of_a_processor() -> None:
    """Six seconds, of which the client's loop was away for two: the answers may have been on time."""
    lags = [Lag(at_ns=71_000_000_000, late_ns=2_000_000_000)]
    of = view(IDLE, step(3, 8, spread(60_000, 80)), recovery(*[90.0] * 12, lags=lags))
    assert findings(of) == {}
    assert "short of a processor" in said(of)["overload.overload_recovery"].text


def test_recovery_is_not_shown_when_the_run_was_interrupted_before_it() -> None:
    """Another session's clock says nothing about the time since the load's end."""
    session = SessionBody(started_wall="", started_ns=0, salt="00", longproof_version="0", host={})
    of = view(IDLE, step(3, 8, spread(60_000, 80)), [("session/1", session)], recovery(*[90.0] * 12))
    assert findings(of) == {}
    assert "interrupted" in said(of)["overload.overload_recovery"].text


def test_the_peak_is_open_when_the_largest_load_was_best() -> None:
    assert "overload_peak" in topics(rising(step(3, 8, spread(60_000, 160))))
    assert "overload_peak" not in topics(rising(step(3, 8, spread(60_000, 60))))


def test_nothing_is_told_when_the_probe_did_not_run() -> None:
    assert list(read(view())) == []


def test_it_is_said_why_when_one_request_at_a_time_fails() -> None:
    failed = view(step(0, 1, [hung(0, 900, prompt=64)]), [note("overload", "fails_alone", length=64)])
    assert topics(failed) == {"overload_fails_alone"}
