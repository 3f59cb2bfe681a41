"""Rates of events, against scipy and worked numbers."""

from __future__ import annotations

import pytest
from scipy import stats

from longproof.stats.rates import p_not_below, rate_interval


def test_the_interval_is_garwoods_when_events_were_counted() -> None:
    """10 events in 2 s. Garwood: chi-square quantiles, half of them, 2·10 and 2·11 degrees: 4.795 and 18.390 events."""
    found = rate_interval(10, 2.0)
    assert found.low == pytest.approx(4.795 / 2, abs=1e-3)
    assert found.high == pytest.approx(18.390 / 2, abs=1e-3)


def test_the_interval_begins_at_zero_when_nothing_happened() -> None:
    """-ln 0.025 = 3.689 events at most."""
    found = rate_interval(0, 1.0)
    assert (found.low, found.high) == (0.0, pytest.approx(3.689, abs=1e-3))


def test_a_lower_rate_is_told_when_counts_are_far_apart() -> None:
    """2 against 20 in equal times, half the rate or more assumed: 2 of 22 at 1/3 or fewer."""
    assert p_not_below(2, 1.0, 20, 1.0, 0.5) == pytest.approx(stats.binom.cdf(2, 22, 1 / 3))
    assert p_not_below(2, 1.0, 20, 1.0, 0.5) < 0.02


def test_nothing_is_told_when_nothing_happened_on_either_side() -> None:
    assert p_not_below(0, 1.0, 0, 1.0) == 1.0
    with pytest.raises(ValueError, match="times"):
        p_not_below(1, 0.0, 1, 1.0)
