"""What a design costs, before the first answer: exactly, for an accuracy one is prepared to assume."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from longproof.stats.cell import operating
from longproof.stats.design import Design


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Mean numbers of answers and of prompt tokens at the lengths; the control comes on top."""

    answers: float
    tokens: float


def expected_cost(design: Design, accuracy: Sequence[float]) -> Cost:
    """The mean cost of one family if independent answers at each length are right with probability `accuracy`.

    Raises ValueError where there is not one accuracy per length.
    """
    answers, tokens = 0.0, 0.0
    climbing, looking = 1.0, 0.0  # the chance to come to a length that way
    for length, share in zip(design.lengths_tokens, accuracy, strict=True):
        climb = operating(design.test_at(length), share)
        look = operating(design.test_at(length, may_certify=False), share)
        here = climbing * climb.mean_answers + looking * look.mean_answers
        answers += here
        tokens += here * length
        looking = climbing * climb.undecided + looking * look.undecided
        climbing *= climb.certified
    return Cost(answers=answers, tokens=tokens)


def fixed_cost(design: Design, answers_per_cell: int) -> Cost:
    """What the same lengths cost with so many answers in every cell, none left out."""
    return Cost(
        answers=float(answers_per_cell * len(design.lengths_tokens)),
        tokens=float(answers_per_cell * sum(design.lengths_tokens)),
    )
