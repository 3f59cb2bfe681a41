"""Costs foreseen and costs met."""

from __future__ import annotations

import numpy as np
import pytest

from longproof.stats.climb import walk
from longproof.stats.cost import expected_cost, fixed_cost
from longproof.stats.design import Design

DESIGN = Design(lengths_tokens=(1000, 2000, 4000, 8000))


def test_a_faultless_model_costs_25_answers_a_length() -> None:
    found = expected_cost(DESIGN, [1.0] * 4)
    assert found.answers == pytest.approx(100)
    assert found.tokens == pytest.approx(25 * 15_000)


def test_longer_lengths_cost_nothing_when_all_is_wrong_at_the_first() -> None:
    # Four wrong answers refute at 0.05 / 5.
    assert expected_cost(DESIGN, [0.0] * 4).tokens == pytest.approx(4 * 1000)


def test_the_cost_foreseen_is_the_mean_cost_of_simulated_runs() -> None:
    rng = np.random.default_rng(121)
    shares = np.array([0.98, 0.94, 0.8, 0.4])
    scores = (rng.random((1500, 4, 236)) < shares[None, :, None]).astype(float)
    _, used = walk(DESIGN, scores, np.full((1500, 4), 236))
    found = expected_cost(DESIGN, list(shares))
    assert found.answers == pytest.approx(used.sum(axis=1).mean(), rel=0.04)
    assert found.tokens == pytest.approx((used @ np.array(DESIGN.lengths_tokens)).mean(), rel=0.04)


def test_every_cell_counts_when_nothing_stops_early() -> None:
    # 60 answers at 1k to 128k are 60 * 255k = 15.3 M tokens
    design = Design(lengths_tokens=tuple(1000 << j for j in range(8)))
    assert fixed_cost(design, 60).tokens == 15_300_000


def test_accuracies_must_match_the_lengths() -> None:
    with pytest.raises(ValueError, match="shorter"):
        expected_cost(DESIGN, [0.9])
