"""What is read of a long request among short ones: numbers worked out by hand, and what is a finding and what not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from loads import (
    Entry,
    counting,
    gauges,
    gone,
    hung,
    in_stream,
    lockstep,
    note,
    refused,
    shorts,
    timeline,
    view,
    window,
)

from longproof.claim.derive import claim_of
from longproof.claim.findings.busy import read
from longproof.claim.statements import Finding, NotShown, Severity, Standing, Statement
from longproof.claim.view import EvidenceView
from longproof.domain.events import EngineSample, RequestTimeline
from longproof.domain.measure import Measured, Unknown
from longproof.testing.builders import build_request

LOAD: dict[str, int | float | str | bool] = {
    "arrival": "closed",
    "concurrency": 4,
    "lengths": "one length: 64/10 tokens",
    "seed": 0,
    "lead_ns": 0,
}
LONG = 6000


def said(of: EvidenceView) -> dict[str, Statement]:
    return {item.id: item for item in read(of) if isinstance(item, Statement)}


def findings(of: EvidenceView) -> dict[str, Finding]:
    return {item.id: item for item in read(of) if isinstance(item, Finding)}


def topics(of: EvidenceView) -> set[str]:
    return {item.topic for item in read(of) if isinstance(item, NotShown)}


def value(statement: Statement) -> float:
    assert isinstance(statement.value, Measured)
    return statement.value.value


def alone(phase: str, start_s: float, *, ttft_ms: float = 20, samples: Sequence[EngineSample] = ()) -> list[Entry]:
    """4 s of 100 short requests."""
    items = shorts(lockstep(start_s * 1000, start_s * 1000 + 4000, ttft_ms=ttft_ms))
    return window(
        f"busy/{phase}",
        "busy",
        {"phase": phase},
        LOAD,
        items,
        start_ms=start_s * 1000,
        end_ms=start_s * 1000 + 4200,
        samples=samples,
    )


def twins(ttft_ms: float = 400) -> list[Entry]:
    return [
        (f"busy/long/{i}", build_request("busy", {"role": "long", "phase": "alone", "length": LONG, "repeat": i}, item))
        for i, item in enumerate(
            (timeline(0, ttft_ms=ttft_ms, prompt=LONG), timeline(900, ttft_ms=ttft_ms, prompt=LONG))
        )
    ]


def follow_up(item: RequestTimeline | None = None) -> list[Entry]:
    cell: dict[str, int | float | str | bool] = {"role": "short", "phase": "follow_up", "length": 64}
    return [("busy/short/follow_up", build_request("busy", cell, item or timeline(60_000)))]


def during(
    i: int,
    long: Callable[[float], RequestTimeline],
    others: Callable[[float], Sequence[RequestTimeline]],
    *,
    samples: Callable[[float], Sequence[EngineSample]] = lambda _: (),
) -> list[Entry]:
    """A window of 10 s from (10 + 10 i) s; the long request is sent 1 s after its start."""
    start = 10_000 + 10_000 * i
    items = [*shorts(others(start)), ("long", long(start + 1000))]
    cell: dict[str, int | float | str | bool] = {"phase": "during", "repeat": i, "length": LONG}
    return window(
        f"busy/during/{i}", "busy", cell, LOAD, items, start_ms=start, end_ms=start + 9000, samples=samples(start)
    )


def sharing(start: float) -> list[RequestTimeline]:
    """Short requests that are 3 times as slow while the long one is prefilled (1 s to 2 s), and flow on."""
    return [
        *lockstep(start, start + 1000),
        *lockstep(start + 1000, start + 2000, ttft_ms=60, itl_ms=30),
        *lockstep(start + 2000, start + 3000),
    ]


def completes(at: float) -> RequestTimeline:
    return timeline(at, ttft_ms=1000, itl_ms=20, prompt=LONG)


def whole(*injections: list[Entry], after_ttft_ms: float = 20, last: RequestTimeline | None = None) -> EvidenceView:
    after = alone("after", 50, ttft_ms=after_ttft_ms)
    return view(twins(), alone("before", 5), *injections, after, follow_up(last))


HONEST = [during(i, completes, sharing) for i in range(3)]


def test_an_honest_server_is_accused_of_nothing_when_it_shares() -> None:
    assert findings(whole(*HONEST)) == {}


def test_a_claim_can_be_made_when_the_probe_ran() -> None:
    """Known metrics in their units, no two statements of one name, evidence that is there."""
    claim = claim_of(whole(*HONEST))
    assert claim.statement("busy_long_served", LONG) is not None


def test_the_long_ones_times_stand_beside_the_idle_ones_when_read() -> None:
    """1 s among others, 0.4 s alone: 2.5 times; three completed of three. 9 gaps of 20 ms and 1 ms to the end."""
    found = said(whole(*HONEST))
    assert value(found["busy.busy_long_ttft.6000"]) == pytest.approx(1.0)
    assert value(found["busy.busy_long_e2e.6000"]) == pytest.approx(1.181)
    assert value(found["busy.busy_long_ttft_ratio.6000"]) == pytest.approx(2.5)
    assert value(found["busy.busy_long_served.6000"]) == 1.0
    assert found["busy.busy_long_ttft.6000"].conditions["load"].startswith("4 short requests at a time")


def test_the_speed_probes_times_serve_when_the_long_one_was_not_asked_alone() -> None:
    """Its cold request of that length took 0.5 s: 1 s among others is twice as long."""
    cell: dict[str, int | float | str | bool] = {"arm": "cold", "length": LONG, "repeat": 0}
    cold = [("speed/cold/6000/0", build_request("speed", cell, timeline(0, ttft_ms=500, prompt=LONG)))]
    of = view(cold, alone("before", 5), *HONEST, alone("after", 50), follow_up())
    assert value(said(of)["busy.busy_long_ttft_ratio.6000"]) == pytest.approx(2.0)


def test_short_ones_are_told_by_phase_when_the_long_one_is_among_them() -> None:
    """Sent in the second of prefill: 25 in each of three windows, three times as slow in a median of all quotients.
    Alone 20 ms, all wobbles cancelling in the mean of whole rounds of eleven."""
    found = said(whole(*HONEST))
    assert found["busy.busy_short_ttft.prefill"].n == 75
    assert value(found["busy.busy_short_ttft.prefill"]) == pytest.approx(0.06, rel=0.02)
    assert value(found["busy.busy_short_ttft.before"]) == pytest.approx(0.02, rel=0.01)
    ratio = found["busy.busy_short_ttft_ratio.prefill"]
    assert value(ratio) == pytest.approx(3.0, rel=0.02)
    assert ratio.interval is not None
    assert ratio.interval.low > 2.8
    assert value(found["busy.busy_short_ttft_p95_ratio.prefill"]) == pytest.approx(3.0, rel=0.02)
    assert value(found["busy.busy_drift"]) == pytest.approx(1.0)


def test_nothing_is_concluded_when_the_baseline_drifted() -> None:
    """Twice as slow after as before: whatever lies between is not the long request's doing."""
    of = whole(*HONEST, after_ttft_ms=40)
    found = said(of)
    assert found["busy.busy_short_ttft_ratio.prefill"].standing is Standing.NOT_SHOWN
    assert isinstance(found["busy.busy_short_ttft_ratio.prefill"].value, Unknown)
    assert "drifted" in found["busy.busy_short_ttft_ratio.prefill"].text
    assert value(found["busy.busy_drift"]) == pytest.approx(2.0)
    assert "busy_drift" in topics(of)
    assert findings(of) == {}


def stopped(start: float) -> list[RequestTimeline]:
    """Short requests of which nothing comes from 1 s to 2 s: those under way then get their tokens afterwards."""
    caught = [timeline(start + 960, ttft_ms=1060), timeline(start + 1010, ttft_ms=1010)]
    return [*lockstep(start, start + 800), *caught, *lockstep(start + 2000, start + 3000)]


def test_short_ones_are_starved_when_nothing_comes_during_the_prefill() -> None:
    """1 s of silence in each of three prefills; alone no pause was longer than the 40 ms between two sends. 8.4 s
    alone hold 8 such stretches: (1/9)^3 = 0.0014."""
    found = findings(whole(*(during(i, completes, stopped) for i in range(3))))["busy.short_starved"]
    assert found.severity is Severity.CAUTION
    assert found.details["p"] == "0.0014"
    assert found.evidence == ("busy/during/0", "busy/during/1", "busy/during/2")


def test_one_silent_prefill_is_no_finding_when_the_others_flow() -> None:
    assert findings(whole(during(0, completes, stopped), *HONEST[1:])) == {}


def test_short_ones_are_starved_when_they_wait_for_much_more_than_a_prefill() -> None:
    """A prefill that takes 6 s among others and 0.4 s alone; every short one sent in it waits 5 s: more than three
    prefills, although tokens flow all the time."""

    def waiting(start: float) -> list[RequestTimeline]:
        return [*lockstep(start, start + 1000, itl_ms=700), *lockstep(start + 1000, start + 3000, ttft_ms=5000)]

    def slow(at: float) -> RequestTimeline:
        return timeline(at, ttft_ms=6000, prompt=LONG)

    found = findings(whole(*(during(i, slow, waiting) for i in range(3))))
    assert found["busy.short_starved"].details["prefill_alone"] == "400 ms"


def test_a_wait_of_one_prefill_is_no_finding_when_a_queue_is_honest() -> None:
    def queueing(start: float) -> list[RequestTimeline]:
        early = [timeline(start + 900, ttft_ms=20, itl_ms=100)]
        late = [timeline(start + 1000 + 20 * i, ttft_ms=1020 - 20 * i) for i in range(40)]
        return [*lockstep(start, start + 900), *early, *late]

    assert findings(whole(*(during(i, completes, queueing) for i in range(3)))) == {}


def given_up(at: float) -> RequestTimeline:
    return hung(at, 6000)


def flowing(start: float) -> list[RequestTimeline]:
    return lockstep(start, start + 8000)


def test_the_long_one_is_starved_when_it_waits_and_short_ones_pass() -> None:
    of = whole(
        *(
            during(i, given_up, flowing, samples=lambda start: gauges(start, start + 8000, running=4, waiting=1))
            for i in range(2)
        )
    )
    found = findings(of)
    assert set(found) == {"busy.long_starved"}
    assert found["busy.long_starved"].severity is Severity.FAULT
    assert "2 of 2 long requests" in found["busy.long_starved"].text
    assert value(said(of)["busy.busy_long_served.6000"]) == 0.0


def test_it_was_taken_and_hung_when_nobody_waits_meanwhile() -> None:
    injected = during(0, given_up, flowing, samples=lambda start: gauges(start, start + 8000, running=5, waiting=0))
    assert set(findings(whole(injected))) == {"busy.admitted_then_hung"}


def test_it_was_taken_and_hung_when_a_role_chunk_came_and_there_are_no_gauges() -> None:
    injected = during(0, lambda at: hung(at, 6000, role_chunk=True), flowing)
    assert set(findings(whole(injected))) == {"busy.admitted_then_hung"}


def test_the_queue_is_stuck_when_somebody_waits_and_nothing_runs() -> None:
    """7 s of such samples, and the longest engine step is one prefill of 0.4 s."""
    injected = during(
        0,
        given_up,
        lambda start: lockstep(start, start + 900),
        samples=lambda start: gauges(start + 1000, start + 8000, running=0, waiting=1, kv_usage=0.0),
    )
    assert set(findings(whole(injected))) == {"busy.queue_stuck"}


def test_gauges_of_one_step_are_no_stuck_queue_when_they_lag() -> None:
    """0.7 s: less than two prefills."""
    injected = during(
        0, completes, sharing, samples=lambda s: gauges(s + 1000, s + 1700, running=0, waiting=1, kv_usage=0.0)
    )
    assert findings(whole(injected)) == {}


def test_how_long_it_waited_is_told_when_gauges_show_it() -> None:
    """The only short request is decoding, so whoever waits is the long one: in the samples from 1,000 to 1,450 ms, sent
    at 1,000 ms; at 1,500 ms nobody waits any more. At least 450 ms, at most 500."""

    def samples(start: float) -> list[EngineSample]:
        name = 'vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"}'
        return [
            *gauges(start + 1000, start + 1500, running=1, waiting=1, values={name: 1.0}),
            *gauges(start + 1500, start + 3000, running=2, waiting=0, values={name: 0.0}),
        ]

    of = whole(during(0, completes, lambda start: [timeline(start + 500, itl_ms=300)], samples=samples))
    wait = said(of)["busy.busy_long_wait.6000"]
    assert value(wait) == pytest.approx(0.45)
    assert "At most 500 ms." in wait.text
    assert "The engine's reason: capacity." in wait.text
    assert wait.conditions["entered_at_once"] == "0 of 1"


def test_it_entered_at_once_when_nobody_waits_in_any_sample() -> None:
    of = whole(during(0, completes, sharing, samples=lambda s: gauges(s, s + 3000, running=3, waiting=0)))
    wait = said(of)["busy.busy_long_wait.6000"]
    assert value(wait) == 0.0
    assert wait.conditions["entered_at_once"] == "1 of 1"


def test_a_wait_is_unknown_when_the_engine_has_no_gauge() -> None:
    assert said(whole(*HONEST))["busy.busy_long_wait.6000"].standing is Standing.NOT_SHOWN


def test_refusals_are_quoted_when_a_long_one_meets_them() -> None:
    found = findings(whole(*(during(i, lambda at: refused(at, prompt=LONG), sharing) for i in range(2))))
    assert set(found) == {"busy.long_rejected", "busy.retry_after_missing"}
    assert '"the queue is full"' in found["busy.long_rejected"].text
    assert found["busy.long_rejected"].severity is Severity.CAUTION


def test_a_refusal_with_a_time_is_complete_when_read() -> None:
    found = findings(whole(during(0, lambda at: refused(at, retry_after="5", prompt=LONG), sharing)))
    assert set(found) == {"busy.long_rejected"}
    assert "Retry-After: 5." in found["busy.long_rejected"].text


def test_an_error_in_a_200_is_a_fault_when_short_ones_meet_it() -> None:
    injected = during(0, completes, lambda start: [*sharing(start), in_stream(start + 1500), in_stream(start + 1600)])
    found = findings(whole(injected))
    assert set(found) == {"busy.error_after_200"}
    assert found["busy.error_after_200"].details == {"requests": "2", "before_any_token": "2"}


def test_preemptions_are_counted_when_the_engine_counts_them() -> None:
    injected = during(
        0, completes, sharing, samples=lambda s: counting(s, s + 3000, "vllm:num_preemptions_total", 4, 7)
    )
    of = whole(injected)
    assert value(said(of)["busy.busy_preemptions"]) == 3.0
    assert findings(of)["busy.preempted"].details == {"preemptions": "3"}


def test_short_ones_that_hang_are_a_fault_when_they_never_get_a_token() -> None:
    injected = during(0, completes, lambda start: [*sharing(start), hung(start + 500, 6000, prompt=64)])
    assert set(findings(whole(injected))) == {"busy.short_hung"}


def test_the_server_is_gone_when_nobody_listens() -> None:
    injected = during(0, completes, lambda start: [*sharing(start), gone(start + 2500)])
    assert set(findings(whole(injected))) == {"busy.server_gone"}


def test_the_last_short_request_must_work_when_all_is_over() -> None:
    found = findings(whole(*HONEST, last=hung(60_000, 5000, prompt=64)))
    assert set(found) == {"busy.follow_up_failed"}


def own(alone_texts: Sequence[str], together_texts: Sequence[str]) -> list[Entry]:
    """The same prompts one by one, and all at once."""
    entries: list[Entry] = []
    for i, text in enumerate(alone_texts):
        cell: dict[str, int | float | str | bool] = {"role": "own", "question": i}
        entries.append((f"busy/own/{i}", build_request("busy", cell, replace(timeline(70_000 + i), text=text))))
    for i, text in enumerate(together_texts):
        cell = {"role": "own", "question": i, "phase": "together"}
        item = replace(timeline(80_000), text=text)
        body = build_request("busy", cell, item, planned_ns=item.submitted_ns)
        entries.append((f"busy/together#1/own/{i}", body))
    return entries


def test_answers_are_mixed_when_one_gets_anothers() -> None:
    of = view(own(["red", "green", "blue"], ["red", "blue", "green"]))
    assert findings(of)["busy.answers_mixed"].evidence == ("busy/together#1/own/1", "busy/together#1/own/2")


def test_answers_are_not_mixed_when_they_differ_or_are_all_alike() -> None:
    """A near tie gives another text, and some prompts get the same answer anyway."""
    assert findings(view(own(["red", "green"], ["reddish", "green"]))) == {}
    assert findings(view(own(["red", "red"], ["red", "red"]))) == {}


def test_nothing_is_told_when_the_probe_did_not_run() -> None:
    assert list(read(view())) == []


def test_it_is_said_why_when_the_long_request_fails_alone() -> None:
    of = view(
        [("busy/long/0", build_request("busy", {"role": "long", "phase": "alone", "length": LONG}, hung(0, 900)))],
        [note("busy", "fails_alone", length=LONG)],
    )
    assert topics(of) == {"busy_fails_alone"}
