"""Long prefills beside short requests: what is lent, what is kept, what waits."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from longproof.policy.pools import PoolRule, lending

LONG = 100_000


@dataclass
class View:
    """What the pools look at."""

    pool: str = "default"
    pending_prefill_tokens: int = 0


def _refusals(
    views: list[View], uncached: int = LONG, *, cached: int = 0, shorts_about: bool = True, rule: PoolRule | None = None
) -> list[str]:
    rules = lending(rule or PoolRule(), views, shorts_about=shorts_about)  # type: ignore[arg-type]
    return [rules.refusal(view, uncached, cached) for view in views]  # type: ignore[arg-type]


def test_a_request_is_long_by_what_it_would_prefill_when_the_rule_names_a_length() -> None:
    assert PoolRule(long_from_tokens=1_000).is_long(1_000)
    assert not PoolRule(long_from_tokens=1_000).is_long(999)
    assert not PoolRule(long_from_tokens=None).is_long(10_000_000)


def test_one_replica_is_kept_for_shorts_when_longs_run_on_the_others() -> None:
    busy, idle = View(pending_prefill_tokens=LONG), View()
    assert _refusals([busy, busy, idle, idle]) == ["a long prefill is running there"] * 2 + ["", ""]
    assert _refusals([busy, busy, busy, idle]) == ["a long prefill is running there"] * 3 + ["kept for short requests"]


def test_everything_is_lent_when_no_short_request_was_seen_lately() -> None:
    busy, idle = View(pending_prefill_tokens=LONG), View()
    assert _refusals([busy, busy, busy, idle], shorts_about=False)[3] == ""


def test_a_long_request_is_served_when_there_is_one_replica_only() -> None:
    assert _refusals([View()]) == [""]
    assert _refusals([View()], rule=PoolRule(keep_replicas=3)) == [""]


def test_a_short_request_may_go_anywhere_when_spilling_is_allowed() -> None:
    views = [View(pool="long", pending_prefill_tokens=LONG), View(pool="short")]
    assert _refusals(views, 100, rule=PoolRule(long_pool="long")) == ["", ""]


def test_a_short_request_stays_out_of_the_long_pool_when_spilling_is_off_unless_most_of_it_is_cached_there() -> None:
    rule = PoolRule(long_pool="long", spill=False)
    views = [View(pool="long"), View(pool="short")]
    assert _refusals(views, 100, rule=rule) == ["pool long is for long requests", ""]
    assert _refusals(views, 100, cached=150_000, rule=rule) == ["", ""]


def test_a_short_replica_is_lent_to_a_long_request_only_while_it_is_idle_when_there_is_a_long_pool() -> None:
    rule = PoolRule(long_pool="long", idle_tokens=2_000)
    views = [View("long", LONG), View("short", 2_001), View("short", 2_000)]
    assert _refusals(views, rule=rule) == ["a long prefill is running there", "not idle enough to be lent", ""]
    views[1] = View("short", LONG)  # lent already: the last one is kept
    assert _refusals(views, rule=rule)[2] == "kept for short requests"


def test_all_short_replicas_may_be_kept_when_the_long_pool_serves_long_requests() -> None:
    rule = PoolRule(long_pool="long", keep_replicas=2)
    assert _refusals([View("long"), View("short"), View("short")], rule=rule) == ["", *["kept for short requests"] * 2]


@pytest.mark.parametrize("wrong", [{"long_from_tokens": 0}, {"keep_replicas": -1}, {"idle_tokens": -1}])
def test_a_rule_that_makes_no_sense_is_refused_when_made(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"tokens|rule"):
        PoolRule(**wrong)
