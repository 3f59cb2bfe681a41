"""How far a model uses its context: which cell to ask next, when to stop, and what is then proven.

    control      the evidence alone, no filler             certified above the floor  →  climb
                                                           refuted                    →  *cannot*
    climb        shortest length first, every cell until it is decided;  certified → next length
                                                                         refuted   → done
                                                                         given up  → look for the end
    look         longer lengths, which can now only be refuted, until the first that is

Errors. Claiming a length that does not hold: at most `alpha` (a fixed sequence of tests at that level, each valid
whenever one stops). A refuted length that holds after all: at most `alpha`, shared by all lengths and families.

The rule for early stopping: cells stop on their own results, so their verdicts and bounds come from `sprt` alone, which
allows that. A fixed-n interval (Clopper-Pearson, Wilson) of such a cell would be wrong, and nothing here prints one.

Outcomes stand in the order their items were *asked* in, not the order answers came back: right answers may be the
faster ones. Items of a cell must come in an order that has nothing to do with their depth (`design.asking_order`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from longproof.stats.cell import CERTIFIED, OPEN, REFUTED, UNASKED, UNDECIDED, Codes, Counts, decide, fewest_more
from longproof.stats.climb import brackets, walk
from longproof.stats.design import Design, Rule
from longproof.stats.fixed_sequence import LengthBracket
from longproof.stats.sprt import Side, anytime_bound


class Verdict(StrEnum):
    """What is known of one cell."""

    CERTIFIED = "certified"
    REFUTED = "refuted"
    UNDECIDED = "undecided"
    """Given up, or at its cap."""
    OPEN = "open"
    """More answers are needed."""
    UNASKED = "unasked"
    """Not reached."""


_VERDICTS = {
    CERTIFIED: Verdict.CERTIFIED,
    REFUTED: Verdict.REFUTED,
    UNDECIDED: Verdict.UNDECIDED,
    OPEN: Verdict.OPEN,
    UNASKED: Verdict.UNASKED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One length, or the control (`length_tokens` None).

    `right` and `n` count everything asked; `decided_after` answers gave the verdict. `at_least` and `at_most` hold each
    with the error its verdict has, whenever the asking stopped.
    """

    length_tokens: int | None
    verdict: Verdict
    right: float
    n: int
    decided_after: int | None
    at_least: float
    at_most: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """The next cell to ask: item number `item` of it; `together` items may be under way without one in vain."""

    length_tokens: int | None
    item: int
    together: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What the outcomes so far prove, and what to ask next; None when there is nothing left to ask.

    `cannot`: the control is refuted, so no length can hold. `control_holds` is None where no control was asked.
    """

    control: Cell | None
    cells: tuple[Cell, ...]
    bracket: LengthBracket
    ask: Ask | None
    cannot: bool

    @property
    def tokens_spent(self) -> int:
        """Prompt tokens of all answers at the lengths; the control's are not known here."""
        return sum(cell.n * cell.length_tokens for cell in self.cells if cell.length_tokens is not None)


def judge(design: Design, outcomes: Mapping[int, Sequence[float]], control: Sequence[float] | None = None) -> Judgement:
    """Judges the `outcomes` by length in tokens: 1 right, 0 wrong, or the mean score of a haystack's questions.

    Items without a score (budget, length unproven, refused) are no outcomes. `control` None: there is none, and the
    climb starts at once; a retention design needs one. Raises ValueError for a length that the design does not have.
    """
    strange = sorted(set(outcomes) - set(design.lengths_tokens))
    if strange:
        raise ValueError(f"lengths {strange} are not of the design {design.lengths_tokens}")
    if control is None and design.rule is Rule.RETENTION:
        raise ValueError("retention is relative to a control, and there is none")
    standing = None if control is None else _judge_control(design, control)
    codes, used = _walk_one(design, outcomes)
    if standing is not None and standing.verdict is not Verdict.CERTIFIED and _stops(design, standing):
        codes[:], used[:] = UNASKED, 0
    cells = tuple(
        _cell(design, length, outcomes.get(length, ()), int(code), int(after))
        for length, code, after in zip(design.lengths_tokens, codes, used, strict=True)
    )
    certified, refuted = brackets(design, codes[None, :])
    return Judgement(
        control=standing,
        cells=cells,
        bracket=LengthBracket(
            certified_tokens=int(certified[0]) or None,
            refuted_tokens=int(refuted[0]) or None,
        ),
        ask=_next(design, cells, outcomes, standing, control or ()),
        cannot=standing is not None and standing.verdict is Verdict.REFUTED,
    )


def _stops(design: Design, control: Cell) -> bool:
    """An undecided control stops only what is relative to it."""
    return control.verdict in (Verdict.OPEN, Verdict.REFUTED) or design.rule is Rule.RETENTION


def _walk_one(design: Design, outcomes: Mapping[int, Sequence[float]]) -> tuple[Codes, Counts]:
    rows = [np.asarray(outcomes.get(length, ()), dtype=np.float64) for length in design.lengths_tokens]
    width = max(1, *(len(row) for row in rows))
    padded = np.zeros((1, len(rows), width))
    for j, row in enumerate(rows):
        padded[0, j, : len(row)] = row
    codes, used = walk(design, padded, np.array([[len(row) for row in rows]]))
    return codes[0], used[0]


def _judge_control(design: Design, outcomes: Sequence[float]) -> Cell:
    floor, lost = design.control_tests
    scores = np.asarray(outcomes, dtype=np.float64)[None, : design.cap]
    asked = np.array([scores.shape[1]])
    if not asked[0]:
        code, after = OPEN, 0
    else:
        code, after = (int(found[0]) for found in decide(floor, scores, asked))
        below, below_after = (int(found[0]) for found in decide(lost, scores, asked))
        if below == REFUTED:
            code, after = REFUTED, below_after
    return Cell(
        length_tokens=None,
        verdict=_VERDICTS[code],
        right=float(sum(outcomes)),
        n=len(outcomes),
        decided_after=after if code != OPEN else None,
        at_least=anytime_bound(outcomes, Side.ABOVE, design.alpha),
        at_most=anytime_bound(outcomes, Side.BELOW, design.alpha_refuted),
    )


def _cell(design: Design, length_tokens: int, outcomes: Sequence[float], code: int, after: int) -> Cell:
    return Cell(
        length_tokens=length_tokens,
        verdict=_VERDICTS[code],
        right=float(sum(outcomes)),
        n=len(outcomes),
        decided_after=after if code not in (OPEN, UNASKED) else None,
        at_least=anytime_bound(outcomes, Side.ABOVE, design.alpha),
        at_most=anytime_bound(outcomes, Side.BELOW, design.alpha_refuted),
    )


def _next(
    design: Design,
    cells: tuple[Cell, ...],
    outcomes: Mapping[int, Sequence[float]],
    standing: Cell | None,
    control: Sequence[float],
) -> Ask | None:
    if standing is not None and standing.verdict is Verdict.OPEN:
        return Ask(length_tokens=None, item=len(control), together=fewest_more(design.control_tests[0], control))
    climbing = True
    for cell in cells:
        if cell.verdict is Verdict.OPEN:
            assert cell.length_tokens is not None
            seen = outcomes.get(cell.length_tokens, ())
            test = design.test_at(cell.length_tokens, may_certify=climbing)
            return Ask(length_tokens=cell.length_tokens, item=len(seen), together=fewest_more(test, seen))
        climbing = climbing and cell.verdict is Verdict.CERTIFIED
    return None
