"""How far a model uses its context: which cell to ask next, when to stop, and what is then proven.

    control      the evidence alone, no filler             certified above the floor  →  climb
                                                           refuted                    →  *cannot*, if the climb agrees
    climb        shortest length first, every cell until it is decided;  certified → next length
                                                                         refuted   → done
                                                                         given up  → look for the end
    look         longer lengths, which can now only be refuted, until the first that is

The control speaks of what the model can do, not of a length: evidence that stands close together may be harder to tell
apart than under some filler (SmolLM2-135M: 11 of 32 among eight keys alone, 21 of 32 at 700 tokens). So the shortest
length is asked even where the control is refuted, and a handful of wrong answers there ends it. Retention is relative
to the control, and does stop with it.

Errors. Claiming a length that does not hold: at most `alpha` (a fixed sequence of tests at that level, each valid
whenever one stops). A refuted length that holds after all: at most `alpha`, shared by all lengths and families.

The rule for early stopping: cells stop on their own results, so their verdicts and bounds come from `sprt` alone, which
allows that. A fixed-n interval (Clopper-Pearson, Wilson) of such a cell would be wrong, and nothing here prints one.

Outcomes stand in the order their items were *asked* in, not the order answers came back: right answers may be the
faster ones. The items of a cell must come in an order that covers all depths from the start, drawn
(`design.asking_order`) or spread evenly.
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
    """The next cell to ask (`length_tokens` None: the control): its answer number `answer`, counted from 0.

    `together` answers may be under way at once without one in vain. Where retention is the rule, only items whose
    control was right give answers at a length.
    """

    length_tokens: int | None
    answer: int
    together: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What the outcomes so far prove, and what to ask next: None when there is nothing left to ask.

    `cannot`: the control is refuted, and the shortest length is not certified either. `control` is None where there is
    none.
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


Outcomes = Mapping[int, Sequence[float]]
"""By length in tokens, in asking order: 1 right, 0 wrong, or the mean score of a haystack's questions. Items without a
score (budget, length unproven, refused) are no outcomes."""


def judge(design: Design, outcomes: Outcomes, control: Sequence[float] | None = None) -> Judgement:
    """Judges the outcomes of one family. `control` None: there is none, and the climb starts at once.

    Raises ValueError for a length that the design does not have, and for a retention design without a control.
    """
    standing, codes, used = _decided(design, outcomes, control)
    certified, refuted = brackets(design, codes[None, :])
    return Judgement(
        control=None if control is None or standing is None else _cell(design, None, control, *standing),
        cells=tuple(
            _cell(design, length, outcomes.get(length, ()), int(code), int(after))
            for length, code, after in zip(design.lengths_tokens, codes, used, strict=True)
        ),
        bracket=LengthBracket(
            certified_tokens=int(certified[0]) or None,
            refuted_tokens=int(refuted[0]) or None,
        ),
        ask=next_ask(design, outcomes, control),
        cannot=standing is not None and standing[0] == REFUTED and int(codes[0]) != CERTIFIED,
    )


def next_ask(design: Design, outcomes: Outcomes, control: Sequence[float] | None = None) -> Ask | None:
    """What to ask next, without the bounds that `judge` computes: for the loop of a run. Errors as in `judge`."""
    standing, codes, _ = _decided(design, outcomes, control)
    if control is not None and standing is not None and standing[0] == OPEN:
        together = fewest_more(design.control_tests[0], control)
        return Ask(length_tokens=None, answer=len(control), together=together)
    climbing = True
    for length, code in zip(design.lengths_tokens, codes, strict=True):
        if code == OPEN:
            seen = outcomes.get(length, ())
            test = design.test_at(length, may_certify=climbing)
            return Ask(length_tokens=length, answer=len(seen), together=fewest_more(test, seen))
        climbing = climbing and code == CERTIFIED
    return None


def _decided(
    design: Design, outcomes: Outcomes, control: Sequence[float] | None
) -> tuple[tuple[int, int] | None, Codes, Counts]:
    """The control's code and how many answers it took, then the same for every length."""
    strange = sorted(set(outcomes) - set(design.lengths_tokens))
    if strange:
        raise ValueError(f"lengths {strange} are not of the design {design.lengths_tokens}")
    if control is None and design.rule is Rule.RETENTION:
        raise ValueError("retention is relative to a control, and there is none")
    standing = None if control is None else _control_decided(design, control)
    stops = (OPEN,) if design.rule is Rule.ABSOLUTE else (OPEN, REFUTED, UNDECIDED)
    if standing is not None and standing[0] in stops:
        lengths = len(design.lengths_tokens)
        return standing, np.full(lengths, UNASKED, dtype=np.int8), np.zeros(lengths, dtype=np.int64)
    rows = [np.asarray(outcomes.get(length, ()), dtype=np.float64) for length in design.lengths_tokens]
    padded = np.zeros((1, len(rows), max(1, *(len(row) for row in rows))))
    for j, row in enumerate(rows):
        padded[0, j, : len(row)] = row
    codes, used = walk(design, padded, np.array([[len(row) for row in rows]]))
    return standing, codes[0], used[0]


def _control_decided(design: Design, control: Sequence[float]) -> tuple[int, int]:
    if not control:
        return OPEN, 0
    floor, lost = design.control_tests
    scores = np.asarray(control, dtype=np.float64)[None, : design.cap]
    asked = np.array([scores.shape[1]])
    code, after = (int(found[0]) for found in decide(floor, scores, asked))
    below, below_after = (int(found[0]) for found in decide(lost, scores, asked))
    return (REFUTED, below_after) if below == REFUTED else (code, after)


def _cell(design: Design, length_tokens: int | None, outcomes: Sequence[float], code: int, after: int) -> Cell:
    return Cell(
        length_tokens=length_tokens,
        verdict=_VERDICTS[code],
        right=float(sum(outcomes)),
        n=len(outcomes),
        decided_after=after if code not in (OPEN, UNASKED) else None,
        at_least=anytime_bound(outcomes, Side.ABOVE, design.alpha),
        at_most=anytime_bound(outcomes, Side.BELOW, design.alpha_refuted),
    )
