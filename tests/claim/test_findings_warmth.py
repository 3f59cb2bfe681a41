"""What is read from pairs of the same prompt, cold and warm: ratios worked out by hand, and words that contradict
times.
"""

from __future__ import annotations

import pytest

from longproof.claim.findings.warmth import read
from longproof.claim.statements import Finding, Severity, Standing, Statement
from longproof.claim.view import EvidenceView
from longproof.domain.measure import Measured
from longproof.evidence.records import NoteBody, RequestBody
from longproof.testing.builders import build_refusal, build_request, build_sample, build_timeline, build_view

MS = 1_000_000
SHARED = NoteBody(probe="warmth", what="shared_prefix", detail={"tokens": 30})


def asked(arm: str, repeat: int, ttft_ms: float, cached: int | None, length: int = 1000) -> RequestBody:
    timeline = build_timeline(
        prompt_tokens=length,
        ttft_ns=round(ttft_ms * MS),
        cached_tokens=cached,  # type: ignore[arg-type] - None: not reported
    )
    return build_request("warmth", {"arm": arm, "length": length, "repeat": repeat}, timeline)


def pairs(*ratios: float, cached: int | None = 999, arm: str = "again") -> list[RequestBody]:
    """Cold requests of 100 ms with nothing cached, and as many warm ones of these shares of it."""
    cold = [asked("cold", i, 100, 0) for i in range(len(ratios))]
    return [*cold, *(asked(arm, i, 100 * ratio, cached) for i, ratio in enumerate(ratios))]


def statements(view: EvidenceView) -> dict[str, Statement]:
    return {item.id: item for item in read(view) if isinstance(item, Statement)}


def findings(view: EvidenceView) -> dict[str, Finding]:
    return {item.id: item for item in read(view) if isinstance(item, Finding)}


def value(statement: Statement) -> float:
    assert isinstance(statement.value, Measured)
    return statement.value.value


def test_the_ratio_is_the_geometric_mean_of_pairs_when_a_prompt_is_sent_again() -> None:
    """0.1 and 0.4 of the cold time: sqrt(0.04) = 0.2. 999 of 1,000 tokens cached."""
    view = build_view(SHARED, *pairs(0.1, 0.4))
    said = statements(view)
    assert value(said["warmth.warm_ttft_ratio.1000"]) == pytest.approx(0.2)
    assert said["warmth.warm_ttft_ratio.1000"].n == 2
    assert said["warmth.warm_ttft_ratio.1000"].samples == (pytest.approx(0.1), pytest.approx(0.4))
    assert said["warmth.cached_fraction.1000"].samples == (0.999, 0.999)
    assert said["warmth.cached_fraction.1000"].conditions["reported_by"] == "usage"
    assert findings(view) == {}


def test_new_tail_has_its_own_numbers_when_it_was_asked() -> None:
    view = build_view(SHARED, *pairs(0.25, arm="new_tail", cached=900))
    said = statements(view)
    assert value(said["warmth.new_tail_ttft_ratio.1000"]) == pytest.approx(0.25)
    assert value(said["warmth.new_tail_cached_fraction.1000"]) == pytest.approx(0.9)
    assert "warmth.warm_ttft_ratio.1000" not in said


def test_only_whole_pairs_count_when_one_side_failed() -> None:
    cell = {"arm": "again", "length": 1000, "repeat": 2}
    lone = build_request("warmth", cell, build_refusal(prompt_tokens=1000))
    view = build_view(SHARED, *pairs(0.1, 0.1), asked("cold", 2, 100, 0), lone)
    assert statements(view)["warmth.warm_ttft_ratio.1000"].n == 2


@pytest.mark.parametrize(
    ("ratios", "cached", "standing"),
    [
        ((0.1, 0.12, 0.11), 999, Standing.SHOWN),
        ((0.1,), 999, Standing.SHOWN),
        ((0.99, 1.02, 1.0), 0, Standing.REFUTED),
        ((0.97,), None, Standing.REFUTED),
        ((0.7,), None, Standing.NOT_SHOWN),  # one pair between the two: neither
        ((0.99, 1.02, 1.0), 999, Standing.NOT_SHOWN),  # it says it reused, and nothing was saved
    ],
)
def test_reuse_is_shown_or_refuted_by_the_pairs_when_read(
    ratios: tuple[float, ...], cached: int | None, standing: Standing
) -> None:
    view = build_view(SHARED, *pairs(*ratios, cached=cached))
    reuse = [item for item in statements(view).values() if item.metric == "prefix_reuse"]
    assert [item.standing for item in reuse] == [standing]
    assert reuse[0].id == ("warmth.no_reuse" if standing is Standing.REFUTED else "warmth.reuse")
    assert findings(view) == {}


def test_a_hidden_cache_is_a_fault_when_repeats_are_fast_and_usage_says_nothing_was_cached() -> None:
    found = findings(build_view(SHARED, *pairs(0.1, 0.12, 0.11, cached=0)))
    assert list(found) == ["warmth.cache_not_reported"]
    assert found["warmth.cache_not_reported"].severity is Severity.FAULT


def test_one_fast_repeat_is_a_caution_when_usage_says_nothing_was_cached() -> None:
    """The first request may have been slow for another reason."""
    assert findings(build_view(SHARED, *pairs(0.1, cached=0)))["warmth.cache_not_reported"].severity is Severity.CAUTION


def test_silence_is_no_lie_when_usage_does_not_speak_of_the_cache() -> None:
    view = build_view(SHARED, *pairs(0.1, 0.12, 0.11, cached=None))
    assert findings(view) == {}
    assert statements(view)["warmth.cached_fraction.1000"].standing is Standing.NOT_SHOWN


def test_counters_contradict_usage_when_they_grew() -> None:
    again = build_request(
        "warmth",
        {"arm": "again", "length": 1000, "repeat": 0},
        build_timeline(prompt_tokens=1000, ttft_ns=90 * MS, cached_tokens=0),
        before=build_sample(values={"vllm:prefix_cache_hits_total": 0.0}),
        after=build_sample(values={"vllm:prefix_cache_hits_total": 992.0}),
    )
    found = findings(build_view(SHARED, asked("cold", 0, 100, 0), again))
    assert found["warmth.cache_not_reported"].severity is Severity.FAULT
    assert "992" in found["warmth.cache_not_reported"].text


def test_a_pair_is_left_out_when_its_fresh_prompt_was_said_to_be_cached() -> None:
    """31 of at most 30 that can be shared; the other pair stays."""
    view = build_view(
        SHARED,
        asked("cold", 0, 100, 31),
        asked("again", 0, 10, 999),
        asked("cold", 1, 100, 30),
        asked("again", 1, 20, 999),
    )
    assert list(findings(view)) == ["warmth.cached_while_cold"]
    assert statements(view)["warmth.warm_ttft_ratio.1000"].samples == (pytest.approx(0.2),)


@pytest.mark.parametrize(("cached", "ids"), [(0, []), (30, []), (999, ["warmth.cold_ignored"])])
def test_a_forbidden_cache_must_not_be_used_when_the_engine_has_that_switch(cached: int, ids: list[str]) -> None:
    assert list(findings(build_view(SHARED, *pairs(0.1, 0.1), asked("forbidden", 0, 100, cached)))) == ids


def test_a_prompt_warmed_again_after_a_resume_enters_no_number() -> None:
    view = build_view(SHARED, asked("rewarm", 0, 900, 0), *pairs(0.1, 0.1))
    assert statements(view)["warmth.warm_ttft_ratio.1000"].n == 2


def test_nothing_is_said_when_nothing_was_asked() -> None:
    assert list(read(build_view())) == []
