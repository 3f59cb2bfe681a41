"""The same items twice: McNemar, Tango and flips, against scipy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from scipy.stats import binomtest

from longproof.stats.agreement import Pairs, count_pairs, different, flip_rate, paired_difference, worse

COUNTS = st.integers(0, 40)


def pairs(both: int, only_first: int, only_second: int, neither: int) -> Pairs:
    return Pairs(both=both, only_first=only_first, only_second=only_second, neither=neither)


def test_items_are_paired_when_some_are_missing() -> None:
    found = count_pairs([True, True, False, False, None], [True, False, True, False, True])
    assert found == pairs(1, 1, 1, 1)
    with pytest.raises(ValueError, match="no item"):
        count_pairs([None], [True])


@given(COUNTS, COUNTS)
def test_mcnemar_is_the_binomial_test_of_scipy(first: int, second: int) -> None:
    found = pairs(5, first, second, 5)
    if first + second == 0:
        assert worse(found) == different(found) == 1
        return
    assert worse(found) == pytest.approx(binomtest(second, first + second, 0.5, "less").pvalue)
    assert different(found) == pytest.approx(binomtest(second, first + second, 0.5).pvalue)


def test_a_loss_on_prefix_hits_is_seen_when_eight_items_fall_and_one_rises() -> None:
    # P(Binomial(9, 1/2) <= 1) = (1 + 9) / 512 = 0.0195
    assert worse(pairs(50, 8, 1, 3)) == pytest.approx(10 / 512)
    assert worse(pairs(50, 1, 8, 3)) > 0.99


def test_tangos_interval_is_the_known_one() -> None:
    # 12 of 50 gained, 2 lost: a difference of 0.2, from 0.0611 to 0.3447
    found = paired_difference(pairs(36, 2, 12, 0))
    assert (found.low, found.high) == (pytest.approx(0.0611, abs=1e-4), pytest.approx(0.3447, abs=1e-4))


@pytest.mark.parametrize("counts", [(36, 2, 12, 0), (10, 5, 5, 10), (20, 0, 3, 7), (1, 30, 2, 0)])
def test_ends_are_where_the_score_test_rejects(counts: tuple[int, int, int, int]) -> None:
    """The nuisance share is found here by search, there by Tango's formula."""
    found = pairs(*counts)
    b, c, n = found.only_second, found.only_first, found.n
    interval = paired_difference(found)
    for delta in {interval.low, interval.high} - {-1.0, 1.0}:

        def misfit(q: float, delta: float = delta) -> float:
            shares = (q + delta, q, 1 - 2 * q - delta)
            if min(shares) < 0:
                return 1e9
            return -sum(k * math.log(max(p, 1e-300)) for k, p in zip((b, c, n - b - c), shares, strict=True) if k)

        low, high = max(0.0, -delta), (1 - delta) / 2
        q = minimize_scalar(misfit, bounds=(low, high), method="bounded", options={"xatol": 1e-12}).x
        z = (b - c - n * delta) / math.sqrt(n * (2 * q + delta * (1 - delta)))
        assert abs(z) == pytest.approx(1.95996, abs=2e-3)


@given(COUNTS, COUNTS, COUNTS, COUNTS)
def test_the_interval_holds_the_difference_and_mirrors(a: int, b: int, c: int, d: int) -> None:
    if a + b + c + d == 0:
        return
    found, mirrored = paired_difference(pairs(a, b, c, d)), paired_difference(pairs(a, c, b, d))
    assert -1 <= found.low <= pairs(a, b, c, d).difference <= found.high <= 1
    assert found.low == pytest.approx(-mirrored.high, abs=1e-6)


def test_the_interval_has_width_when_nothing_differs() -> None:
    found = paired_difference(pairs(30, 0, 0, 0))
    assert found.low < 0 < found.high
    assert found.high == pytest.approx(3.8415 / (30 + 3.8415), abs=1e-4)  # z^2 / (n + z^2)


def test_the_interval_covers_in_about_95_percent_of_samples() -> None:
    rng = np.random.default_rng(111)
    drawn = rng.multinomial(50, [0.7, 0.1, 0.15, 0.05], size=2000)
    hits = 0
    for row in drawn:
        found = paired_difference(pairs(*(int(k) for k in row)))
        hits += found.low <= 0.05 <= found.high
    assert 0.935 < hits / 2000 < 0.97


def test_flips_are_counted_in_both_directions() -> None:
    found = flip_rate([True] * 18 + [False, True], [True] * 18 + [True, False])
    assert (found.flipped, found.n, found.rate) == (2, 20, 0.1)
    exact = binomtest(2, 20).proportion_ci(0.95, "exact")
    assert (found.interval.low, found.interval.high) == (pytest.approx(exact.low), pytest.approx(exact.high))
