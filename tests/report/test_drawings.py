"""The states of a request: who left where, and what is known of those that stayed."""

from __future__ import annotations

from longproof.domain.outcome import Outcome
from longproof.report.drawings import flow
from longproof.report.requests import Stage
from longproof.report.waiting import Waited

_STAGES = [
    Stage(name="submitted", reached=10, left=((Outcome.REFUSED_BUSY, 2),)),
    Stage(name="answered 200", reached=8, left=((Outcome.HUNG, 1),)),
    Stage(name="first token", reached=7, left=()),
    Stage(name="completed", reached=7, left=()),
]


def test_waiting_stands_before_the_first_token_when_something_is_known_of_it() -> None:
    drawn = flow(_STAGES, Waited(met_a_queue=3, no_queue=0, not_known=5))
    texts = [[(branch.text, branch.leaves) for branch in box.branches] for box in drawn.boxes]
    assert texts == [
        [("2 × refused: busy", True)],
        [("3 × met a queue", False), ("5 × waiting unknown", False), ("1 × hung, no token", True)],
        [],
        [],
    ]
    assert "of these 3 × met a queue" in drawn.told


def test_waiting_is_not_drawn_when_there_was_no_load() -> None:
    drawn = flow(_STAGES)
    assert all(branch.leaves for box in drawn.boxes for branch in box.branches)


def test_picture_is_as_tall_as_its_branches_when_there_are_many() -> None:
    plain, full = flow(_STAGES), flow(_STAGES, Waited(met_a_queue=1, no_queue=1, not_known=1))
    assert full.height == plain.height + 3 * 22  # one line each
