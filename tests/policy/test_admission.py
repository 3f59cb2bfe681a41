"""Admission: three questions, one answer, with the numbers it rests on. The first examples are the project's own."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longproof.domain.shapes import RequestShape
from longproof.domain.verdict import AdmissionVerdict, Admit, Question, Queue, Reject
from longproof.policy.admission import (
    INCREMENTAL,
    MEASURED,
    SGLANG,
    UPFRONT,
    AdmissionRule,
    Reservation,
    decide,
    longest_total_tokens,
    reserved_tokens,
    shortage_blocks,
)
from longproof.policy.ledger import Ledger, Pool, PoolState
from longproof.policy.need import BlockNeed

MILLION = RequestShape(content_tokens=1_040_000, output_tokens=32)
WINDOW = AdmissionRule(limit_tokens=1_048_576)


def prefill_pool(ratio: int) -> Ledger:
    """An SGLang prefill pool of 49,344 tokens times a ratio."""
    return Ledger.of([Pool(stage="prefill PP8", capacity_blocks=49_344 * ratio)])


def test_million_tokens_are_rejected_when_the_pool_is_49344_times_10() -> None:
    verdict = decide(MILLION, prefill_pool(10).states(), WINDOW)
    assert isinstance(verdict, Reject)
    assert (verdict.binding.question, verdict.binding.where) == (Question.CAPACITY, "prefill PP8")
    # 493,440 tokens against 1,040,000 + 32
    assert (verdict.binding.needed, verdict.binding.available) == (1_040_032, 493_440)
    assert verdict.change.wanted == 1_040_032
    assert "1,040,032" in verdict.reason
    assert "493,440" in verdict.reason


def test_one_million_token_request_fits_with_45536_to_spare_when_the_ratio_is_22() -> None:
    ledger = prefill_pool(22)
    verdict = decide(MILLION, ledger.states(), WINDOW)
    assert isinstance(verdict, Admit)
    load = next(c for c in verdict.checks if c.question is Question.LOAD)
    assert (load.available, load.margin) == (1_085_568, 45_536)  # 1,085,568 - 1,040,032
    assert ledger.reserve("first", reserved_tokens(MILLION, ledger.states(), WINDOW)) is None
    second = decide(MILLION, ledger.states(), WINDOW)
    assert isinstance(second, Queue)
    assert (second.binding.available, second.change.wanted) == (45_536, 1_040_032)


def test_two_fit_and_a_third_waits_when_the_ratio_is_46() -> None:
    ledger = prefill_pool(46)
    for name in ("first", "second"):
        assert isinstance(decide(MILLION, ledger.states(), WINDOW), Admit)
        assert ledger.reserve(name, reserved_tokens(MILLION, ledger.states(), WINDOW)) is None
    # 2,269,824 - 2 · 1,040,032 = 189,760
    third = decide(MILLION, ledger.states(), WINDOW)
    assert isinstance(third, Queue)
    assert third.binding.available == 189_760
    assert "189,760" in third.reason


def test_stages_are_judged_one_by_one_when_prefill_has_room_and_decode_has_not() -> None:
    ledger = Ledger.of(
        [
            Pool(stage="prefill PP8", capacity_blocks=49_344 * 22),
            Pool(stage="decode PP4", capacity_blocks=900_000),
        ]
    )
    verdict = decide(MILLION, ledger.states(), WINDOW)
    assert isinstance(verdict, Reject)
    assert verdict.binding.where == "decode PP4"
    assert {c.where: c.fits for c in verdict.checks if c.question is Question.CAPACITY} == {
        "prefill PP8": True,
        "decode PP4": False,
    }


def test_spare_room_elsewhere_does_not_help_when_one_stage_is_full() -> None:
    ledger = Ledger.of([Pool(stage=name, capacity_blocks=100) for name in ("A", "B", "C")])
    ledger.reserve("other", {"B": 80})
    verdict = decide(RequestShape(content_tokens=20, output_tokens=10), ledger.states(), AdmissionRule(limit_tokens=64))
    assert isinstance(verdict, Queue)
    assert (verdict.binding.where, verdict.binding.needed, verdict.binding.available) == ("B", 30, 20)


def test_output_shares_the_window_when_the_input_fills_it() -> None:
    pools = Ledger.of([Pool(stage="kv", capacity_blocks=100_000)]).states()
    rule = AdmissionRule(limit_tokens=8192)
    full = RequestShape(content_tokens=8192, output_tokens=1)
    verdict = decide(full, pools, rule)
    assert isinstance(verdict, Reject)
    assert verdict.binding.question is Question.LIMIT
    assert (verdict.change.name, verdict.change.current, verdict.change.wanted) == ("input content", 8192, 8191)
    too_much_output = decide(RequestShape(content_tokens=8000, output_tokens=500), pools, rule)
    assert isinstance(too_much_output, Reject)
    assert (too_much_output.change.name, too_much_output.change.wanted) == ("output allowance", 192)  # 8192 - 8000


def test_the_limit_is_the_number_to_change_when_template_and_output_alone_exceed_it() -> None:
    pools = Ledger.of([Pool(stage="kv", capacity_blocks=100)]).states()
    shape = RequestShape(content_tokens=3, template_tokens=31, output_tokens=10)
    verdict = decide(shape, pools, AdmissionRule(limit_tokens=32))
    assert isinstance(verdict, Reject)
    assert (verdict.change.current, verdict.change.wanted) == (32, 44)


def test_template_tokens_count_when_they_push_a_request_over_the_limit() -> None:
    pools = Ledger.of([Pool(stage="kv", capacity_blocks=100_000)]).states()
    rule = AdmissionRule(limit_tokens=8192)
    bare = RequestShape(content_tokens=8000, output_tokens=180)
    assert isinstance(decide(bare, pools, rule), Admit)
    templated = RequestShape(content_tokens=8000, template_tokens=31, output_tokens=180)  # 8,211
    assert isinstance(decide(templated, pools, rule), Reject)


@pytest.mark.parametrize(
    ("reservation", "tokens"),
    [
        (UPFRONT, 16_000),  # 6,000 + 10,000
        (INCREMENTAL, 6_000),
        (SGLANG, 8_868),  # 6,000 + ceil(0.7 · min(10,000, 4,096)) = 6,000 + 2,868
    ],
)
def test_entry_charge_follows_the_engine_when_policies_differ(reservation: Reservation, tokens: int) -> None:
    assert reservation.entry_tokens(RequestShape(content_tokens=6_000, output_tokens=10_000)) == tokens


def test_capacity_is_judged_at_full_length_when_the_reservation_is_incremental() -> None:
    pools = Ledger.of([Pool(stage="kv", capacity_blocks=10_000)]).states()
    verdict = decide(
        RequestShape(content_tokens=6_000, output_tokens=5_000),
        pools,
        AdmissionRule(limit_tokens=None, reservation=INCREMENTAL),
    )
    assert isinstance(verdict, Reject)
    assert verdict.binding.needed == 11_000


def test_watermark_holds_back_new_requests_when_others_run_but_never_starves_an_idle_pool() -> None:
    ledger = Ledger.of([Pool(stage="kv", capacity_blocks=100, watermark_blocks=20)])
    rule = AdmissionRule(limit_tokens=None)
    big = RequestShape(content_tokens=80, output_tokens=10)
    assert isinstance(decide(big, ledger.states(), rule), Admit)
    ledger.reserve("small", {"kv": 5})
    waiting = decide(big, ledger.states(), rule)
    assert isinstance(waiting, Queue)
    assert waiting.binding.available == 75  # 100 - 5 - 20


def test_ledger_charges_output_growth_when_outputs_were_measured() -> None:
    shape = RequestShape(content_tokens=1_000, output_tokens=4_000)
    assert MEASURED.entry_tokens(shape) == 5_000  # nothing is known: the whole allowance …
    unlimited = RequestShape(content_tokens=1_000, output_tokens=100_000)
    assert MEASURED.entry_tokens(unlimited) == 5_096  # … up to 4,096, until something is known
    assert MEASURED.entry_tokens(unlimited, 20_000) == 21_000
    assert MEASURED.entry_tokens(shape, 300) == 1_300
    assert MEASURED.entry_tokens(shape, 9_000) == 5_000  # never more than it may produce
    assert INCREMENTAL.entry_tokens(shape, 300) == 1_000  # an engine's own policy does not look at it


def test_a_prefix_that_runs_already_needs_no_room_when_a_request_shares_it() -> None:
    ledger = Ledger.of([Pool(stage="kv", capacity_blocks=100)])
    ledger.reserve("other", {"kv": 70})
    shape = RequestShape(content_tokens=50, output_tokens=10)
    assert isinstance(decide(shape, ledger.states(), AdmissionRule(limit_tokens=None)), Queue)
    shared = decide(shape, ledger.states(), AdmissionRule(limit_tokens=None), shared_blocks={"kv": 40})
    assert isinstance(shared, Admit)
    assert next(c for c in shared.checks if c.question is Question.LOAD).needed == 20  # 60 - 40
    # but not even a wholly shared prefix makes a request fit that an idle stage could not hold
    giant = RequestShape(content_tokens=101, output_tokens=0)
    assert isinstance(
        decide(giant, ledger.states(), AdmissionRule(limit_tokens=None), shared_blocks={"kv": 101}), Reject
    )


def test_no_pool_is_our_mistake_when_admission_is_asked() -> None:
    with pytest.raises(ValueError, match="no pool"):
        decide(MILLION, (), WINDOW)
    with pytest.raises(ValueError, match="no pool"):
        shortage_blocks(1, ())


pool_sizes = st.integers(0, 3000)
rules = st.builds(
    AdmissionRule,
    limit_tokens=st.one_of(st.none(), st.integers(1, 3000)),
    reservation=st.sampled_from([UPFRONT, INCREMENTAL, SGLANG, MEASURED]),
)
shapes = st.builds(
    RequestShape,
    content_tokens=st.integers(0, 2000),
    template_tokens=st.integers(0, 100),
    output_tokens=st.integers(0, 1500),
)


@st.composite
def states(draw: st.DrawFn) -> tuple[PoolState, ...]:
    found: list[PoolState] = []
    for index in range(draw(st.integers(1, 3))):
        capacity = draw(pool_sizes)
        pool = Pool(
            stage=f"s{index}",
            capacity_blocks=capacity,
            watermark_blocks=draw(st.integers(0, capacity)),
            need=BlockNeed(block_tokens=draw(st.sampled_from([1, 16, 64]))),
        )
        held = draw(st.integers(0, capacity))
        found.append(
            PoolState(
                pool=pool,
                held_blocks=held,
                requests=draw(st.integers(0 if held == 0 else 1, 9)),
                stopped=draw(st.booleans()),
                caution_blocks=draw(st.integers(0, 50)),
            )
        )
    return tuple(found)


def severity(verdict: AdmissionVerdict) -> int:
    return {Admit: 0, Queue: 1, Reject: 2}[type(verdict)]


@given(shape=shapes, more=shapes, pools=states(), rule=rules)
def test_a_larger_request_is_never_treated_better_when_all_else_is_equal(
    shape: RequestShape, more: RequestShape, pools: tuple[PoolState, ...], rule: AdmissionRule
) -> None:
    larger = RequestShape(
        content_tokens=shape.content_tokens + more.content_tokens,
        template_tokens=shape.template_tokens + more.template_tokens,
        output_tokens=shape.output_tokens + more.output_tokens,
    )
    assert severity(decide(shape, pools, rule)) <= severity(decide(larger, pools, rule))


@given(shape=shapes, pools=states(), rule=rules)
def test_every_refusal_names_limit_and_actual_and_a_number_to_change(
    shape: RequestShape, pools: tuple[PoolState, ...], rule: AdmissionRule
) -> None:
    verdict = decide(shape, pools, rule)
    if isinstance(verdict, Admit):
        assert all(check.fits for check in verdict.checks)
        return
    assert verdict.binding.margin < 0
    numbers = {int(found.replace(",", "")) for found in re.findall(r"\d[\d,]*", verdict.reason)}
    assert verdict.binding.available in numbers
    assert shape.total_tokens in numbers
    assert verdict.change.wanted != verdict.change.current
    if verdict.change.name in ("output allowance", "input content"):  # changing that one number passes the limit
        name = {"output allowance": "output_tokens", "input content": "content_tokens"}[verdict.change.name]
        changed = replace(shape, **{name: verdict.change.wanted})
        again = decide(changed, pools, rule)
        assert isinstance(again, Admit) or again.binding.question is not Question.LIMIT
    if isinstance(verdict, Queue):  # the limit and an idle server were both asked before
        assert verdict.binding.question is Question.LOAD


@given(shape=shapes, sizes=st.lists(pool_sizes, min_size=1, max_size=3), rule=rules)
def test_what_is_admitted_can_be_reserved_when_the_ledger_is_asked_next(
    shape: RequestShape, sizes: list[int], rule: AdmissionRule
) -> None:
    ledger = Ledger.of([Pool(stage=f"s{i}", capacity_blocks=size) for i, size in enumerate(sizes)])
    if isinstance(decide(shape, ledger.states(), rule), Admit):
        assert ledger.reserve("it", reserved_tokens(shape, ledger.states(), rule)) is None


@given(
    shape=shapes,
    pools=states(),
    rule=rules,
    shared=st.dictionaries(st.sampled_from(["s0", "s1", "s2"]), st.integers(0, 40)),
    expected=st.one_of(st.none(), st.integers(0, 2000)),
)
def test_the_numbers_say_what_decide_says_for_any_request_and_pools(
    shape: RequestShape,
    pools: tuple[PoolState, ...],
    rule: AdmissionRule,
    shared: dict[str, int],
    expected: int | None,
) -> None:
    verdict = decide(shape, pools, rule, shared_blocks=shared, expected_output_tokens=expected)
    longest = longest_total_tokens(pools, rule)
    assert isinstance(verdict, Reject) == (longest is not None and shape.total_tokens > longest)
    if not isinstance(verdict, Reject):
        short = shortage_blocks(rule.reservation.entry_tokens(shape, expected), pools, shared)
        assert isinstance(verdict, Queue) == (short > 0)
        if isinstance(verdict, Queue):
            assert verdict.binding.margin == -short
