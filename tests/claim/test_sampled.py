"""Statements about samples say only what can be."""

from __future__ import annotations

from longproof.claim.sampled import Sampled, sampled_statement
from longproof.claim.statements import Statement


def stated(metric: str, *values: float) -> Statement:
    samples = [Sampled(value=value, key=f"speed/cold/512/{at}") for at, value in enumerate(values)]
    return sampled_statement(
        metric, samples, probe="speed", subject="It", at_tokens=512, conditions={}, why_none="none"
    )


def test_a_time_is_not_below_zero_when_two_samples_spread_wide() -> None:
    # Mean 2, standard deviation 1.414, t(1, 0.975) = 12.7: 2 ± 12.7 reaches down to -10.7 s.
    statement = stated("ttft", 1.0, 3.0)
    assert statement.interval is not None
    assert statement.interval.low == 0.0
    assert round(statement.interval.high, 1) == 14.7
    assert "-" not in statement.text


def test_a_gap_between_two_clocks_may_be_negative() -> None:
    statement = stated("engine_ttft_gap", -0.001, 0.001)
    assert statement.interval is not None
    assert statement.interval.low < 0
