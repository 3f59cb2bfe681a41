"""What a protocol costs, and what is left out when the budget does not hold it."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from longproof.evidence.records import Step
from longproof.prove.cost import cost_of, fit, step_cost
from longproof.prove.options import DROP_ORDER
from longproof.testing.builders import build_protocol

SPEED = Step(probe="speed", parameters={"lengths": [512, 1024], "repeats": 2})
"""With 16 output tokens: 528 once to warm up, then (528 + 1,040) twice: 3,664 tokens in 5 requests."""
WARMTH = Step(probe="warmth", parameters={"lengths": [512], "repeats": 2})
"""528 tokens, three arms, twice: 3,168 tokens in 6 requests."""
BOUNDARY = Step(probe="boundary", parameters={"top_tokens": 1000, "repeats": 1})
"""1,000 tokens twice: 2,000."""
PROTOCOL = build_protocol(output_tokens=16, steps=(BOUNDARY, SPEED, WARMTH))


def per_token(tokens: int, requests: int) -> float:
    return tokens * 1e6


def test_costs_add_up_when_a_protocol_has_several_steps() -> None:
    assert step_cost(SPEED, 16).tokens == 3_664
    assert cost_of(PROTOCOL).tokens == 2_000 + 3_664 + 3_168
    assert cost_of(PROTOCOL).requests == 2 + 5 + 6


def test_everything_is_kept_when_there_is_no_limit() -> None:
    found = fit(PROTOCOL, tokens_left=None, ns_left=None, predict=per_token)
    assert found.kept == PROTOCOL.steps
    assert found.dropped == {}


def test_warmth_goes_before_speed_when_time_is_short() -> None:
    """8,832 tokens at 1 ms each are 8.8 s. In 6 s: without warmth 5.7 s, which fits."""
    found = fit(PROTOCOL, tokens_left=None, ns_left=6e9, predict=per_token)
    assert [step.probe for step in found.kept] == ["boundary", "speed"]
    assert "8.83 s of the 6 s left, this one 3.17 s" in found.dropped["warmth"]


def test_tokens_are_named_when_they_are_what_is_short() -> None:
    found = fit(PROTOCOL, tokens_left=3_000, ns_left=None, predict=per_token)
    assert [step.probe for step in found.kept] == ["boundary"]
    assert "tokens" in found.dropped["speed"]


@given(tokens=st.integers(0, 12_000), more=st.integers(0, 12_000))
def test_a_larger_budget_never_loses_more(tokens: int, more: int) -> None:
    tight = fit(PROTOCOL, tokens_left=tokens, ns_left=None, predict=per_token)
    loose = fit(PROTOCOL, tokens_left=tokens + more, ns_left=None, predict=per_token)
    assert set(loose.dropped) <= set(tight.dropped)
    assert {step.probe for step in tight.kept} | set(tight.dropped) == {"boundary", "speed", "warmth"}


def test_what_everything_rests_on_is_never_dropped_when_nothing_fits() -> None:
    found = fit(replace(PROTOCOL, steps=(BOUNDARY,)), tokens_left=1, ns_left=1.0, predict=per_token)
    assert found.kept == (BOUNDARY,)
    assert {"accounting", "boundary"}.isdisjoint(DROP_ORDER)


def test_quality_is_cut_short_when_it_is_all_there_is() -> None:
    """It asks in rounds: what the budget holds is a curve of fewer answers."""
    quality = Step(probe="quality", parameters={"families": ["literal"], "lengths": [512], "answers": 8})
    alone = fit(replace(PROTOCOL, steps=(quality,)), tokens_left=1_000, ns_left=None, predict=per_token)
    assert (alone.kept, alone.dropped) == ((quality,), {})
    beside = fit(replace(PROTOCOL, steps=(quality, SPEED)), tokens_left=4_000, ns_left=None, predict=per_token)
    assert beside.kept == (SPEED,)
