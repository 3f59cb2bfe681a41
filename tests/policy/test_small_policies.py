"""Watermarks and caution, measured outputs, prefill cost, named by what they decide."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longproof.policy.controller_config import ControllerConfig, KvBudget, QueueRule, SloRule, TenantRule, WatermarkRule
from longproof.policy.ledger import Pool
from longproof.policy.need import BlockNeed
from longproof.policy.output_measure import OutputMeasure
from longproof.policy.prefill_cost import PrefillCost
from longproof.policy.prefill_pace import PrefillPace
from longproof.policy.watermark import Caution, marked
from longproof.testing.controllers import replica_rule

S = 1_000_000_000


def test_the_marks_are_shares_of_the_capacity() -> None:
    pool = marked(Pool(stage="kv", capacity_blocks=1_000), WatermarkRule(stop=0.9, resume=0.7))
    assert (pool.stop_blocks, pool.resume_blocks) == (900, 700)


def test_a_pool_keeps_its_own_reserve_when_that_is_larger() -> None:
    pool = marked(Pool(stage="kv", capacity_blocks=1_000, watermark_blocks=400), WatermarkRule(stop=0.9, resume=0.7))
    assert (pool.stop_blocks, pool.resume_blocks) == (600, 600)


def test_no_slot_is_held_back_when_a_block_is_a_whole_window() -> None:
    slots = Pool(stage="kv", capacity_blocks=4, need=BlockNeed(block_tokens=8_192))
    assert marked(slots, WatermarkRule()).stop_blocks == 4


def test_places_have_no_marks_because_nobody_grows_into_them() -> None:
    places = Pool(stage="slots", capacity_blocks=4, need=BlockNeed(full_groups=0, fixed_blocks=1))
    assert marked(places, WatermarkRule(stop=0.5, resume=0.2)) == places


@given(capacity=st.integers(0, 10_000), stop=st.floats(0, 1), share=st.floats(0, 1))
def test_the_marks_are_in_order_for_any_pool(capacity: int, stop: float, share: float) -> None:
    pool = marked(Pool(stage="kv", capacity_blocks=capacity), WatermarkRule(stop=stop, resume=stop * share))
    assert pool.resume_blocks is not None
    assert 0 <= pool.resume_blocks <= pool.stop_blocks <= capacity


def test_caution_rises_with_preemptions_and_falls_with_calm() -> None:
    caution = Caution()
    caution.preempted(2, 0)
    assert caution.share(0) == pytest.approx(0.10)
    assert caution.alarmed(29 * S)
    assert not caution.alarmed(31 * S)
    assert caution.share(60 * S) == pytest.approx(0.05)
    assert caution.share(600 * S) == 0
    caution.preempted(1_000, 600 * S)
    assert caution.share(600 * S) == 0.5  # never more than half


def test_nine_in_ten_produce_no_more_than_is_expected() -> None:
    outputs = OutputMeasure()
    for tokens in range(1, 16):
        outputs.produced("t", "m", tokens)
    assert outputs.expected("t", "m") is None  # 15 say too little
    for tokens in range(16, 101):
        outputs.produced("t", "m", tokens)
    assert outputs.expected("t", "m") == 91
    assert outputs.expected("other", "m") is None


def test_old_outputs_are_forgotten_when_new_ones_come() -> None:
    outputs = OutputMeasure()
    for tokens in [5] * 256 + [900] * 256:
        outputs.produced("t", "m", tokens)
    assert outputs.expected("t", "m") == 900


def test_measures_are_bounded_when_tenants_are_without_number() -> None:
    outputs = OutputMeasure()
    for number in range(2_100):
        for _ in range(16):
            outputs.produced(f"t{number}", "m", 1)
    assert outputs.expected("t0", "m") is None
    assert outputs.expected("t2099", "m") == 1


def test_prefill_grows_with_the_context_when_attention_is_priced() -> None:
    flat = PrefillCost.at_rate(10_000)
    assert flat.ns(20_000) == 2 * S
    steep = PrefillCost(ns_per_token=100_000, fixed_ns=5, ns_per_token_of_context=10)
    # 1,000 · (100,000 + 10 · (9,000 + 500)) + 5
    assert steep.ns(1_000, 9_000) == 195_000_005


def test_the_prefill_rate_is_learned_from_first_tokens_when_nobody_gave_it() -> None:
    pace = PrefillPace(PrefillCost.at_rate(10_000))
    for number in range(3):
        assert pace.cost.ns(1_000) == S // 10
        sent = number * 10 * S
        pace.first_token(600, sent, sent + 3 * S)  # 200 a second
    assert pace.cost.ns(1_000) == pytest.approx(5 * S)


def test_prompts_prefilled_together_are_not_taken_for_fast_ones() -> None:
    pace = PrefillPace(PrefillCost.at_rate(10_000))
    for number in range(20):
        sent = number * 100 * S
        for _ in range(4):  # four at once, 800 tokens in 4 s
            pace.first_token(200, sent, sent + 4 * S)
    assert pace.cost.ns(1_000) == pytest.approx(5 * S, rel=0.05)


def test_queued_prefills_are_timed_from_the_end_of_the_one_before() -> None:
    pace = PrefillPace(PrefillCost.at_rate(10_000))
    for number in range(1, 21):
        pace.first_token(500, 0, number * S)  # all sent at once, one done every second
    assert pace.cost.ns(500) == pytest.approx(S)


def test_tiny_prompts_teach_nothing() -> None:
    pace = PrefillPace(PrefillCost.at_rate(10_000))
    for number in range(20):
        pace.first_token(10, number * S, number * S + S // 2)
    assert pace.cost == pace.given


@pytest.mark.parametrize(
    "make",
    [
        lambda: PrefillCost(ns_per_token=0),
        lambda: PrefillCost.at_rate(0),
        lambda: WatermarkRule(stop=0.5, resume=0.6),
        lambda: KvBudget(token_seconds_per_s=0, burst_token_seconds=1),
        lambda: TenantRule(name="t", weight=0),
        lambda: QueueRule(overdue_share=1.5),
        lambda: QueueRule(most_waiting=-1),
        lambda: SloRule(min_hit={"m": 50}),
        lambda: ControllerConfig(replicas=(replica_rule("a"), replica_rule("a"))),
        lambda: Pool(stage="kv", capacity_blocks=10, watermark_blocks=5, resume_blocks=6),
    ],
)
def test_a_rule_that_cannot_be_meant_is_refused_when_it_is_made(make) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=r"."):
        make()
