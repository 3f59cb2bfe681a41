"""The decision procedure as a run drives it: what it asks next, when it stops, what it says, and how often it errs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from longproof.stats.cell import CERTIFIED
from longproof.stats.climb import brackets, walk
from longproof.stats.design import Design, Rule
from longproof.stats.effective_context import Judgement, Verdict, judge, next_ask
from longproof.stats.fixed_sequence import LengthBracket

K = 1024
DESIGN = Design(lengths_tokens=(K, 2 * K, 4 * K, 8 * K))


def drive(
    design: Design, answer: Callable[[int, int], float], control: Callable[[int], float] | None = None
) -> tuple[Judgement, list[int | None]]:
    """Asks whatever is asked for, one by one, until nothing is; returns the judgement and the lengths in order."""
    outcomes: dict[int, list[float]] = {length: [] for length in design.lengths_tokens}
    controls: list[float] = []
    order: list[int | None] = []
    while True:
        asked = None if control is None else controls
        ask = next_ask(design, outcomes, asked)
        if ask is None:
            return judge(design, outcomes, asked), order
        order.append(ask.length_tokens)
        if ask.length_tokens is None:
            assert control is not None
            assert ask.answer == len(controls)
            controls.append(control(ask.answer))
        else:
            assert ask.answer == len(outcomes[ask.length_tokens])
            outcomes[ask.length_tokens].append(answer(ask.length_tokens, ask.answer))
        assert len(order) < 3000


def test_every_length_is_certified_in_25_answers_when_all_are_right() -> None:
    found, order = drive(DESIGN, lambda length, item: 1.0)
    assert found.bracket == LengthBracket(certified_tokens=8 * K, refuted_tokens=None)
    assert order == [K] * 25 + [2 * K] * 25 + [4 * K] * 25 + [8 * K] * 25
    assert found.tokens_spent == 25 * 15 * K
    assert all(cell.verdict is Verdict.CERTIFIED and cell.decided_after == 25 for cell in found.cells)


def test_longer_lengths_cost_nothing_when_one_is_refuted() -> None:
    # Beyond 2k everything is wrong: ends at alpha / 5 = 0.01, (4.967^3 + 2.417^3) / 2 = 68 < 100 <= 321: 4 answers.
    found, order = drive(DESIGN, lambda length, item: float(length <= 2 * K))
    assert found.bracket == LengthBracket(certified_tokens=2 * K, refuted_tokens=4 * K)
    assert order == [K] * 25 + [2 * K] * 25 + [4 * K] * 4
    assert found.cells[3].verdict is Verdict.UNASKED


def test_the_end_is_looked_for_when_a_length_is_given_up() -> None:
    # At 2k every seventh answer is wrong (0.857): undecided. From there on lengths can only be refuted.
    share = {
        K: lambda i: 1.0,
        2 * K: lambda i: float(i % 7 != 3),
        4 * K: lambda i: float(i % 7 != 3),
        8 * K: lambda i: 0.0,
    }
    found, _ = drive(DESIGN, lambda length, item: share[length](item))
    assert [cell.verdict for cell in found.cells] == [
        Verdict.CERTIFIED, Verdict.UNDECIDED, Verdict.UNDECIDED, Verdict.REFUTED,
    ]  # fmt: skip
    assert found.bracket == LengthBracket(certified_tokens=K, refuted_tokens=8 * K)


def test_a_longer_length_is_not_certified_when_a_shorter_one_was_given_up() -> None:
    found, _ = drive(DESIGN, lambda length, item: float(length != K or item % 7 != 3))
    assert found.bracket == LengthBracket(certified_tokens=None, refuted_tokens=None)


def test_a_few_answers_at_the_shortest_length_end_it_when_the_control_fails() -> None:
    found, order = drive(DESIGN, lambda length, item: 0.0, control=lambda item: 0.0)
    assert found.cannot
    assert set(order) == {None, K}
    assert order.count(K) < 10
    assert found.control is not None
    assert found.control.verdict is Verdict.REFUTED
    assert found.bracket == LengthBracket(certified_tokens=None, refuted_tokens=K)


def test_the_lengths_decide_when_the_control_is_harder_than_they_are() -> None:
    found, _ = drive(DESIGN, lambda length, item: float(length < 4 * K), control=lambda item: 0.0)
    assert not found.cannot
    assert found.bracket == LengthBracket(certified_tokens=2 * K, refuted_tokens=4 * K)


def test_nothing_is_asked_at_length_when_retention_has_no_control_to_keep() -> None:
    retention = Design(lengths_tokens=DESIGN.lengths_tokens, rule=Rule.RETENTION)
    found, order = drive(retention, lambda length, item: 1.0, control=lambda item: 0.0)
    assert found.cannot
    assert set(order) == {None}
    assert found.bracket == LengthBracket(certified_tokens=None, refuted_tokens=None)


def test_the_climb_starts_when_the_control_is_above_its_floor() -> None:
    # Floor 0.5: stakes 0.85 and 0.55 double: per right answer 1.85 and 1.55; (1.85^5 + 1.55^5) / 2 = 15.3 < 20 <= 27
    _, order = drive(DESIGN, lambda length, item: 1.0, control=lambda item: 1.0)
    assert order[:7] == [None] * 6 + [K]


def test_a_control_between_floor_and_threshold_does_when_only_retention_is_asked() -> None:
    # Three of four controls are right: above 0.5. What is retained is all right.
    retention = Design(lengths_tokens=DESIGN.lengths_tokens, rule=Rule.RETENTION)
    found, _ = drive(retention, lambda length, item: 1.0, control=lambda item: float(item % 4 != 1))
    assert not found.cannot
    assert found.bracket.certified_tokens == 8 * K


def test_retention_stops_when_the_control_stays_undecided() -> None:
    retention = Design(lengths_tokens=DESIGN.lengths_tokens, rule=Rule.RETENTION)
    found, order = drive(retention, lambda length, item: 1.0, control=lambda item: float(item % 2))
    assert set(order) == {None}
    assert not found.cannot
    assert found.control is not None
    assert found.control.verdict is Verdict.UNDECIDED


def test_retention_is_refused_when_there_is_no_control() -> None:
    with pytest.raises(ValueError, match="relative to a control"):
        judge(Design(lengths_tokens=(K,), rule=Rule.RETENTION), {})


def test_twins_answered_alike_are_refuted_when_chance_is_half() -> None:
    # "Always yes" scores 0.5 on every pair of twins. The bar is 0.5 + 0.5 * 0.85 = 0.925.
    design = Design(lengths_tokens=(K, 2 * K), chance=0.5)
    assert design.bar == pytest.approx(0.925)
    found, _ = drive(design, lambda length, item: 0.5)
    assert found.bracket == LengthBracket(certified_tokens=None, refuted_tokens=K)


def test_what_was_proven_stands_when_the_budget_ends() -> None:
    outcomes = {K: [1.0] * 25, 2 * K: [1.0] * 10}
    found = judge(DESIGN, outcomes)
    assert found.bracket == LengthBracket(certified_tokens=K, refuted_tokens=None)
    assert [c.verdict for c in found.cells] == [Verdict.CERTIFIED, Verdict.OPEN, Verdict.UNASKED, Verdict.UNASKED]
    assert found.ask is not None
    # Ten right ones leave 0.75^10 = 0.056 of the slower doubter's wealth: 0.056 * 2.417^10 / 2 = 191 >= 100 > 79
    assert (found.ask.length_tokens, found.ask.answer, found.ask.together) == (2 * K, 10, 10)


def test_late_answers_change_counts_only_when_the_cell_is_decided() -> None:
    found = judge(DESIGN, {K: [1.0] * 25 + [0.0] * 3})
    assert found.cells[0].verdict is Verdict.CERTIFIED
    assert (found.cells[0].right, found.cells[0].n, found.cells[0].decided_after) == (25.0, 28, 25)
    assert found.cells[0].at_least >= 0.85


def test_bounds_agree_with_verdicts_when_cells_are_decided() -> None:
    found, _ = drive(DESIGN, lambda length, item: float(length <= 2 * K))
    for cell in found.cells:
        assert (cell.verdict is Verdict.CERTIFIED) == (cell.at_least >= 0.85)
        assert (cell.verdict is Verdict.REFUTED) == (cell.at_most < 0.85)


def test_short_cells_may_take_more_answers_when_they_are_cheap() -> None:
    design = Design(lengths_tokens=tuple(K << j for j in range(8)))
    # 118 up to a quarter of 128k; twice as many where a sample costs an eighth or less: 16k and below.
    assert [design.cap_at(length) for length in design.lengths_tokens] == [236] * 5 + [118] * 3
    assert design.most_tokens == (236 * 31 + 118 * (32 + 64 + 128)) * K


def test_a_strange_length_is_refused() -> None:
    with pytest.raises(ValueError, match="3000"):
        judge(DESIGN, {3000: [1.0]})


@pytest.mark.parametrize(
    "wrong", [{"lengths_tokens": (2, 1)}, {"lengths_tokens": ()}, {"threshold": 1.0}, {"families": 0}, {"alpha": 0.6}]
)
def test_an_impossible_design_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"lengths|threshold|families"):
        Design(**({"lengths_tokens": (1, 2)} | wrong))  # type: ignore[arg-type]


def test_many_runs_and_one_run_agree_when_driven_by_the_same_answers() -> None:
    rng = np.random.default_rng(31)
    scores = (rng.random((12, 4, 236)) < np.array([0.99, 0.95, 0.85, 0.5])[None, :, None]).astype(float)
    codes, used = walk(DESIGN, scores, np.full((12, 4), 236))
    certified, refuted = brackets(DESIGN, codes)
    for run in range(12):
        rows = {length: iter(scores[run, j]) for j, length in enumerate(DESIGN.lengths_tokens)}
        found, order = drive(DESIGN, lambda length, item, rows=rows: float(next(rows[length])))
        assert (found.bracket.certified_tokens or 0, found.bracket.refuted_tokens or 0) == (
            certified[run],
            refuted[run],
        )
        assert [order.count(length) for length in DESIGN.lengths_tokens] == list(used[run])


@pytest.mark.parametrize("below", [0.8499, 0.8])
def test_a_length_is_over_claimed_in_at_most_five_percent_when_it_lies_just_below(below: float) -> None:
    # Two lengths hold at 0.97, the third lies below the bar. 3,000 runs: 5 % and three standard errors are 6.2 %.
    rng = np.random.default_rng(32)
    shares = np.array([0.97, 0.97, below, below])
    codes, _ = walk(DESIGN, (rng.random((3000, 4, 236)) < shares[None, :, None]).astype(float), np.full((3000, 4), 236))
    assert (codes[:, 2] == CERTIFIED).mean() < 0.062
    assert (codes[:, 1] == CERTIFIED).mean() > 0.9


def test_a_length_that_holds_is_refuted_in_at_most_five_percent_of_runs() -> None:
    # All lengths lie just above the bar, where refuting one is most likely.
    rng = np.random.default_rng(33)
    codes, _ = walk(DESIGN, (rng.random((3000, 4, 236)) < 0.8501).astype(float), np.full((3000, 4), 236))
    assert (brackets(DESIGN, codes)[1] > 0).mean() < 0.062
