"""What is read from cancelled requests: times by hand, leaks that rise, engines that go on, and honest slow ones."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from longproof.claim.findings.reclaim import read
from longproof.claim.statements import Finding, NotShown, Severity, Standing, Statement
from longproof.claim.view import EvidenceView
from longproof.domain.events import EndedBy, EngineSample
from longproof.domain.measure import Measured, reported
from longproof.evidence.records import Body, NoteBody, SamplesBody, WindowBody
from longproof.testing.builders import (
    build_deployment,
    build_hang,
    build_header,
    build_request,
    build_timeline,
    build_view,
)

MS = 1_000_000
TTFT_MS, DECODE_MS = 400, 1_000
POOL = 10_000
EVERY_MS = 20
Entry = tuple[str, Body]
Level = Callable[[float], float]
"""KV usage as a share, at so many ms after leaving (negative: before); the request is sent 100 ms before the leave."""


def timeline(*, submitted_ms: float, ttft_ms: float = TTFT_MS, decode_ms: float = DECODE_MS, tokens: int = 101):
    """101 tokens: 100 gaps, so decode takes what it says but for the 1 ms that the builder adds at the end."""
    return build_timeline(
        prompt_tokens=1000,
        max_tokens=tokens,
        submitted_ns=round(submitted_ms * MS),
        ttft_ns=round(ttft_ms * MS),
        itl_ns=round(decode_ms * MS / 100),
    )


def idle(n: int = 3, length: int = 1000, name: str = "idle") -> list[Entry]:
    return [
        (
            f"reclaim/{name}/{i}",
            build_request("reclaim", {"arm": "idle", "length": length, "repeat": i}, timeline(submitted_ms=i * 5000)),
        )
        for i in range(n)
    ]


def cycle(
    number: int,
    usage: Level,
    *,
    stage: str = "prefill",
    by: str = "disconnect",
    watched_ms: float = 3_000,
    busy: Callable[[float], int] = lambda _: 0,
    gauges: bool = True,
    rss: float | None = None,
    slow_s: float = 5.0,
) -> list[Entry]:
    """A window that begins 200 ms before we leave, with a request sent after 100 ms of it."""
    start = 100_000.0 + number * 10_000
    left = start + 200
    cell = {"stage": stage, "by": by, "cycle": number, "length": 1000}
    key = f"reclaim/{stage}/{by}/{number}"
    gone = replace(
        timeline(submitted_ms=start + 100),
        first_token_ns=None,
        chunks=(),
        usage=None,
        finish_reason=None,
        ended_by=EndedBy.CANCELLED,
        finished_ns=round(left * MS),
    )
    request = build_request("reclaim", {**cell, "role": "cancelled"}, gone, left_ns=round(left * MS), cancel="x")
    ticks = [start + i * EVERY_MS for i in range(round((200 + watched_ms) / EVERY_MS))]
    samples = tuple(
        EngineSample(
            at_ns=round(at * MS),
            running=busy(at - left),
            waiting=0,
            kv_usage=usage(at - left),
            values={} if rss is None else {"process_resident_memory_bytes": rss},
        )
        for at in ticks
    )
    window = WindowBody(
        probe="reclaim",
        cell=cell,
        prefix=f"{key}#1/",
        load={"slow_s": slow_s},
        started_ns=round(start * MS),
        ended_ns=round((left + watched_ms) * MS),
        requests=1,
    )
    told = [(f"{key}#1/samples/0", SamplesBody(probe="reclaim", cell=cell, samples=samples))] if gauges else []
    return [(f"{key}#1/cancelled", request), *told, (key, window)]


def held(for_ms: float, *, floor: float = 0.0, share: float = 0.1) -> tuple[Level, Callable[[float], int]]:
    """A pool and a running gauge that show the request from 50 ms before leaving until `for_ms` after."""
    return (
        lambda at: floor + share if -50 <= at < for_ms else floor,
        lambda at: 1 if -50 <= at < for_ms else 0,
    )


def largest(after: str, *tries: bool, ttft_ms: float = TTFT_MS) -> list[Entry]:
    return [
        (
            f"reclaim/largest/{after}/{i}",
            build_request(
                "reclaim",
                {"arm": "largest", "after": after, "length": 9000, "attempt": i},
                build_timeline(prompt_tokens=9000, ttft_ns=round(ttft_ms * MS))
                if good
                else build_hang(prompt_tokens=9000),
            ),
        )
        for i, good in enumerate(tries)
    ]


def view(*groups: Sequence[Entry], pool: int | None = POOL) -> EvidenceView:
    source = "GET /metrics num_gpu_blocks × block_size"
    known = {} if pool is None else {"kv_capacity_tokens": reported(pool, source)}
    deployment = build_deployment(**known, block_size_tokens=reported(16, "GET /metrics block_size"))
    return build_view(*(entry for group in groups for entry in group), header=build_header(deployment=deployment))


def said(found: EvidenceView) -> dict[str, Statement]:
    return {item.id: item for item in read(found) if isinstance(item, Statement)}


def findings(found: EvidenceView) -> dict[str, Finding]:
    return {item.id: item for item in read(found) if isinstance(item, Finding)}


def cycles(times: Sequence[float], **settings: object) -> list[Entry]:
    entries: list[Entry] = []
    for number, for_ms in enumerate(times):
        usage, busy = held(for_ms)
        entries += cycle(number, usage, busy=busy, **settings)  # type: ignore[arg-type] - passed through
    return entries


def test_the_time_is_that_of_the_sample_after_the_first_at_rest_when_a_client_leaves() -> None:
    """Held until 210 ms after leaving: the sample at 220 ms is the first at rest, the next is at 240 ms."""
    found = said(view(idle(), cycles([210, 210, 210])))["reclaim.time_prefill"]
    assert found.samples == (pytest.approx(0.24), pytest.approx(0.24), pytest.approx(0.24))
    assert found.n == 3
    assert found.standing is Standing.SHOWN


def test_nothing_is_said_of_the_engine_when_it_notices_and_gives_everything_back() -> None:
    assert findings(view(idle(), cycles([210, 300, 250]), idle(2, 9000, "idle_largest"), largest("end", True))) == {}


def test_an_engine_that_goes_on_is_named_when_every_cycle_lasts_to_the_natural_end() -> None:
    """Left 100 ms after sending: 300 ms of prefill and 1,000 ms of decode were still to do."""
    found = findings(view(idle(), cycles([1290, 1310, 1300])))
    assert list(found) == ["reclaim.not_noticed"]
    assert found["reclaim.not_noticed"].severity is Severity.FAULT
    assert found["reclaim.not_noticed"].details["stages"] == "prefill by disconnect"


def test_an_engine_that_ends_its_batch_first_is_no_liar_when_prefill_is_one_batch() -> None:
    """300 ms of prefill to do, and it does them: no decode."""
    assert findings(view(idle(), cycles([300, 310, 320]))) == {}


@pytest.mark.parametrize("seed", range(40))
def test_a_slow_and_jittery_engine_is_not_accused_when_it_notices(seed: int) -> None:
    """What is left of a step or of the prefill, times a lognormal of sigma 0.5, and a gauge that comes late."""
    rng = random.Random(seed)
    times = [300 * rng.lognormvariate(0, 0.5) for _ in range(4)]
    assert findings(view(idle(), cycles(times), idle(2, 9000, "idle_largest"), largest("end", True))) == {}


def test_one_cycle_accuses_nobody_when_it_was_long() -> None:
    assert findings(view(idle(), cycles([1300]))) == {}


def test_slow_is_a_caution_when_it_is_longer_than_stated() -> None:
    """Noticed (decode is 1,000 ms and 900 of 1,300 ms are spared) but for a request that says 0.2 s; its own prefill of
    400 ms allows 0.6 s."""
    found = findings(view(idle(), cycles([800, 810, 805], slow_s=0.2)))
    assert list(found) == ["reclaim.slow"]
    assert found["reclaim.slow"].severity is Severity.CAUTION
    assert "600 ms" in found["reclaim.slow"].text
    assert findings(view(idle(), cycles([800, 810, 805], slow_s=2.0))) == {}


def test_memory_held_long_after_the_natural_end_is_slow_when_the_stage_was_noticed_or_not() -> None:
    """3,000 ms held where 1,300 ms were to do: whatever the engine does, it is not the answer."""
    assert list(findings(view(idle(), cycles([3000, 3010, 2990], slow_s=1.0, watched_ms=4000)))) == ["reclaim.slow"]


@pytest.mark.parametrize("counter", ["vllm:generation_tokens_total", "llamacpp:n_decode_total"])
def test_nobody_went_on_when_the_engines_own_counter_shows_no_more_output(counter: str) -> None:
    """The gauges come back at about the natural end, and the engine's counter stands still."""
    entries = cycles([1290, 1310, 1300], slow_s=1.0)
    counted = [
        (
            key,
            replace(body, samples=tuple(replace(s, values={counter: 7.0}) for s in body.samples))
            if isinstance(body, SamplesBody)
            else body,
        )
        for key, body in entries
    ]
    assert list(findings(view(idle(), counted))) == ["reclaim.slow"]


def test_a_leak_is_a_leak_and_no_delay_when_no_gauge_showed_the_request() -> None:
    """A request too short to be seen, after which a block stays taken."""
    entries = [
        entry
        for number in range(6)
        for entry in cycle(number, lambda at, n=number: 0.0016 * (n + (at >= 0)))  # type: ignore[misc]
    ]
    found = view(idle(), entries)
    assert list(findings(found)) == ["reclaim.kv_leaked"]
    assert said(found)["reclaim.time_prefill"].standing is Standing.NOT_SHOWN


def leaking(tokens_each: Sequence[float]) -> list[Entry]:
    """Each cycle leaves so many tokens more in the pool."""
    entries: list[Entry] = []
    floor = 0.0
    for number, tokens in enumerate(tokens_each):
        after = floor + tokens / POOL

        def usage(at: float, before: float = floor, after: float = after) -> float:
            return before if at < -50 else before + 0.1 if at < 200 else after

        entries += cycle(number, usage, busy=lambda at: 1 if -50 <= at < 200 else 0)
        floor = after
    return entries


def test_a_leak_of_one_block_a_cancel_is_found_when_the_floor_rises() -> None:
    """Six cycles of 16 tokens: 96 of 10,000, so 625 cancels empty the pool."""
    found = findings(view(idle(), leaking([16] * 6)))
    assert list(found) == ["reclaim.kv_leaked"]
    leak = found["reclaim.kv_leaked"]
    assert leak.severity is Severity.FAULT
    assert (leak.details["tokens"], leak.details["blocks"]) == ("96", "6")
    assert "625" in leak.text
    floor = said(view(idle(), leaking([16] * 6)))["reclaim.kv_floor"]
    assert isinstance(floor.value, Measured)
    assert floor.value.value == pytest.approx(16)


def test_a_leak_is_found_when_only_some_stages_leak() -> None:
    assert list(findings(view(idle(), leaking([0, 32, 0, 32, 0, 32, 0, 32, 0, 32])))) == ["reclaim.kv_leaked"]


@pytest.mark.parametrize("tokens", [[0] * 8, [16, -16, 0, 16, -16, 0, 16, -16], [48, 0, 0, 0, 0, 0, 0, 0], [16] * 3])
def test_no_leak_is_claimed_when_the_floor_does_not_go_on_rising(tokens: list[float]) -> None:
    """Three cycles are four floors: they rise by chance once in 24. One step is no trend."""
    assert findings(view(idle(), leaking(tokens))) == {}


@pytest.mark.parametrize(
    ("grown_mib", "ids"),
    [
        ([0, 8, 16, 24, 32, 40, 48, 56], ["reclaim.memory_leaked"]),
        ([0, 40, 55, 56, 56.1, 56.2, 56.3, 56.4], []),  # it warmed up
        ([0, 1, -1, 2, 0, 1, -2, 1], []),
    ],
)
def test_memory_that_goes_on_growing_is_a_caution_when_the_process_shows_it(
    grown_mib: list[float], ids: list[str]
) -> None:
    usage, busy = held(200)
    entries = [
        entry
        for number, mib in enumerate(grown_mib)
        for entry in cycle(number, usage, busy=busy, rss=(500 + mib) * 2**20)
    ]
    entries += [memory("idle/before", 400), memory("idle/after", 400)]
    assert list(findings(view(idle(), entries))) == ids


def memory(key: str, mib: float) -> Entry:
    note = NoteBody(probe="reclaim", what="memory", detail={"memory_bytes": round(mib * 2**20)})
    return (f"reclaim/{key}/memory", note)


def test_memory_that_grows_with_every_request_is_no_leak_of_cancels_when_it_is_a_cache() -> None:
    """Three requests that nobody cancelled took 21 MiB, 7 each; cancelled ones take 8."""
    usage, busy = held(200)
    entries: list[Entry] = [memory("idle/before", 400), memory("idle/after", 421)]
    for number in range(8):
        entries += [*cycle(number, usage, busy=busy), memory(f"prefill/disconnect/{number}", 500 + 8 * number)]
    assert findings(view(idle(), entries)) == {}


def test_memory_of_our_own_process_counts_when_we_own_it() -> None:
    """The engine's metrics speak of another process, which does not grow."""
    usage, busy = held(200)
    entries: list[Entry] = [memory("idle/before", 400), memory("idle/after", 400)]
    for number in range(8):
        entries += cycle(number, usage, busy=busy, rss=2.0**20)
        entries.append(memory(f"prefill/disconnect/{number}", 500 + 8 * number))
    assert list(findings(view(idle(), entries))) == ["reclaim.memory_leaked"]


def test_a_frozen_gauge_is_blind_when_requests_decode_under_it() -> None:
    """1,000 of 10,000 tokens should show as 10 %."""
    entries = [
        entry
        for number in range(3)
        for entry in cycle(number, lambda _: 0.25, busy=lambda at: int(-50 <= at < 200), stage="decode")
    ]
    found = findings(view(idle(), entries))
    assert list(found) == ["reclaim.blind"]
    assert found["reclaim.blind"].severity is Severity.CAUTION


def test_only_readmission_is_shown_when_there_is_no_gauge() -> None:
    entries = [entry for number in range(3) for entry in cycle(number, lambda _: 0.0, gauges=False)]
    found = view(idle(), entries, idle(2, 9000, "idle_largest"), largest("prefill/disconnect", True))
    assert findings(found) == {}
    assert [item.topic for item in read(found) if isinstance(item, NotShown)] == ["reclaim_queued", "reclaim_gauges"]
    assert said(found)["reclaim.time_prefill"].standing is Standing.NOT_SHOWN
    assert said(found)["reclaim.readmitted"].standing is Standing.SHOWN


def test_the_largest_request_is_named_when_it_is_never_admitted_again() -> None:
    references = idle(2, 9000, "idle_largest")
    found = findings(view(idle(), cycles([200] * 3), references, largest("end", False, False, False)))
    assert found["reclaim.largest_not_readmitted"].severity is Severity.FAULT
    later = findings(view(idle(), cycles([200] * 3), references, largest("prefill/disconnect", False, True)))
    assert later["reclaim.largest_not_readmitted"].severity is Severity.CAUTION


def test_readmission_is_compared_with_idle_when_it_completed() -> None:
    """600 ms against 400 ms: 1.5 times."""
    references = idle(2, 9000, "idle_largest")
    asked = [*largest("prefill/disconnect", True, ttft_ms=600), *largest("decode/disconnect", True, ttft_ms=600)]
    found = said(view(idle(), cycles([200] * 3), references, asked))
    ratio = found["reclaim.readmission_ratio"]
    assert isinstance(ratio.value, Measured)
    assert ratio.value.value == pytest.approx(1.5)
    assert found["reclaim.readmitted"].samples == (1.0, 1.0)


def test_nothing_is_claimed_when_nothing_was_asked() -> None:
    assert list(read(build_view())) == []
