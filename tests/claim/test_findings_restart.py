"""What is read from a restart: ratios by hand, what moved, and an honest engine that varies."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from longproof.claim.findings.restart import read
from longproof.claim.statements import Finding, Severity, Standing, Statement
from longproof.claim.view import EvidenceView
from longproof.domain.measure import Interval, Measured
from longproof.evidence.records import Body, NoteBody
from longproof.testing.builders import build_refusal, build_request, build_timeline, build_view

MS = 1_000_000
Entry = tuple[str, Body]


def arm(
    phase: str, ttft_ms: Sequence[float], *, what: str = "speed", length: int = 1000, cached: int = 0, itl_ms: float = 5
) -> list[Entry]:
    return [
        (
            f"restart/{phase}/{what}/{length}/{i}",
            build_request(
                "restart",
                {"phase": phase, "what": what, "length": length, "repeat": i},
                build_timeline(
                    prompt_tokens=length, ttft_ns=round(ms * MS), itl_ns=round(itl_ms * MS), cached_tokens=cached
                ),
            ),
        )
        for i, ms in enumerate(ttft_ms)
    ]


def refused(phase: str, n: int, *, what: str = "largest", length: int = 8000) -> list[Entry]:
    return [
        (
            f"restart/{phase}/{what}/{length}/{i}",
            build_request(
                "restart",
                {"phase": phase, "what": what, "length": length, "repeat": i},
                build_refusal(prompt_tokens=length, limit_tokens=4096),
            ),
        )
        for i in range(n)
    ]


def first(ttft_ms: float, length: int = 1000) -> list[Entry]:
    cell = {"phase": "after", "what": "first", "length": length, "repeat": 0}
    timeline = build_timeline(prompt_tokens=length, ttft_ns=round(ttft_ms * MS))
    return [("restart/first", build_request("restart", dict(cell), timeline))]


def note(what: str, key: str = "", **detail: str | int | bool) -> Entry:
    return (f"restart/{key or what}", NoteBody(probe="restart", what=what, detail=dict(detail)))


RESTARTED = note(
    "restarted",
    how="systemctl restart engine",
    took_ns=2_000 * MS,
    ready_ns=30_000 * MS,
    tries=3,
    same_process=False,
    exit_code=0,
    output="",
)


def view(*groups: Sequence[Entry]) -> EvidenceView:
    return build_view(*(entry for group in groups for entry in group))


def said(found: EvidenceView) -> dict[str, Statement]:
    return {item.id: item for item in read(found) if isinstance(item, Statement)}


def findings(found: EvidenceView) -> dict[str, Finding]:
    return {item.id: item for item in read(found) if isinstance(item, Finding)}


def test_the_ratio_is_that_of_geometric_means_when_both_sides_were_asked() -> None:
    """sqrt(100 × 400) = 200 before, 300 after: 1.5 times. TTFT and TPOT, alone and together, share the level of 1 %."""
    both = view(arm("before", [100, 400]), [RESTARTED], arm("after", [300, 300]))
    found = said(both)["restart.restart_ttft_ratio.1000"]
    assert isinstance(found.value, Measured)
    assert found.value.value == pytest.approx(1.5)
    assert isinstance(found.interval, Interval)
    assert found.interval.confidence == pytest.approx(0.9975)


def test_the_time_counts_to_the_first_answer_when_it_restarted() -> None:
    found = said(view([RESTARTED]))["restart.time"]
    assert found.samples == (30.0,)
    assert "systemctl" in found.text


@pytest.mark.parametrize(
    ("after", "ids"),
    [
        ([101, 99, 100], []),
        ([140, 141, 139], []),  # surely slower, and by less than a machine drifts
        ([200, 202, 198], ["restart.moved"]),
        ([50, 51, 49], ["restart.moved"]),  # faster is another figure as well
        ([90, 400, 110], []),  # one slow request is no other server
    ],
)
def test_a_figure_moved_when_it_is_beyond_its_interval_and_by_half(after: list[float], ids: list[str]) -> None:
    assert list(findings(view(arm("before", [100, 101, 99]), [RESTARTED], arm("after", after)))) == ids


def test_an_honest_engine_is_rarely_accused_when_it_varies() -> None:
    """200 restarts of an engine whose times vary by 30 % (lognormal), four figures each: all share a level of 1 %, so
    about 2 are expected; 6 or more would come once in 60."""
    accused = 0
    for seed in range(200):
        rng = random.Random(seed)

        def times(n: int, rng: random.Random = rng) -> list[float]:
            return [100 * rng.lognormvariate(0, 0.3) for _ in range(n)]

        entries = [
            entry
            for phase in ("before", "after")
            for what, length in (("speed", 1000), ("speed", 4000), ("largest", 8000), ("again", 1000))
            for entry in arm(phase, times(3), what=what, length=length)
        ]
        accused += "restart.moved" in findings(view(entries))
    assert accused < 6


def test_all_lengths_together_show_what_none_shows_alone_when_times_vary() -> None:
    """2.5 times in each of three cells that vary by a factor of two."""
    cells = [("speed", 1000), ("speed", 4000), ("largest", 8000)]
    before = [entry for what, length in cells for entry in arm("before", [70, 100, 140], what=what, length=length)]
    after = [entry for what, length in cells for entry in arm("after", [175, 250, 350], what=what, length=length)]
    moved = findings(view(before, [RESTARTED], after))["restart.moved"]
    assert moved.details == {"phase": "after", "all.ttft": "2.5"}


def test_outcomes_moved_when_each_side_agrees_with_itself_alone() -> None:
    found = findings(view(arm("before", [900] * 3, what="largest", length=8000), [RESTARTED], refused("after", 3)))
    assert found["restart.moved"].details["largest.outcome.8000"] == "completed → refused for length"
    largest = said(view(arm("before", [900] * 3, what="largest", length=8000), [RESTARTED], refused("after", 3)))
    assert largest["restart.largest"].standing is Standing.REFUTED
    mixed = [*arm("after", [900], what="largest", length=8000), *refused("after", 3)[1:]]
    assert findings(view(arm("before", [900] * 3, what="largest", length=8000), [RESTARTED], mixed)) == {}


def test_a_cache_that_is_gone_moved_when_nothing_is_reused_any_more() -> None:
    before = arm("before", [10, 10, 10], what="again", cached=990)
    found = findings(view(before, [RESTARTED], arm("after", [10, 10, 10], what="again", cached=0)))
    assert found["restart.moved"].details["again.cached.1000"] == "990 → 0"


def test_changed_facts_are_a_fault_and_another_pool_size_a_caution_when_it_is_about_the_same() -> None:
    pool = note("fact_changed", "fact/kv_blocks", name="kv_blocks", before="10000", after="10050")
    window = note("fact_changed", "fact/limit", name="configured_limit_tokens", before="8192", after="4096")
    assert findings(view([RESTARTED, pool]))["restart.changed"].severity is Severity.CAUTION
    both = findings(view([RESTARTED, pool, window]))["restart.changed"]
    assert both.severity is Severity.FAULT
    assert both.details["configured_limit_tokens"] == "8192 → 4096"


@pytest.mark.parametrize(
    ("ms", "ids"),
    [(2_000, ["restart.slower_first"]), (210, []), (130, [])],  # 210: twice the others, and 110 ms more …
)
def test_a_slow_first_request_is_a_caution_when_it_is_far_above_later_ones(ms: float, ids: list[str]) -> None:
    """… but of three that lie between 90 and 115 ms a fourth may take up to 270 ms, once in a hundred."""
    found = view([RESTARTED], first(ms), arm("after", [90, 100, 115]))
    assert list(findings(found)) == ids
    assert "restart.first_ratio" in said(found)


def test_the_same_process_is_a_failed_restart_when_it_says_so() -> None:
    same = note("restarted", **{**RESTARTED[1].detail, "same_process": True})  # type: ignore[union-attr,arg-type]
    assert findings(view([same]))["restart.failed"].severity is Severity.CAUTION


def test_nothing_is_said_when_nothing_was_asked() -> None:
    assert list(read(build_view())) == []
