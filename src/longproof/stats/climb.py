"""Which cells decide an effective length, shortest first; many runs at once: simulations and proofs share it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from longproof.stats.cell import CERTIFIED, REFUTED, UNASKED, UNDECIDED, Codes, Counts, decide
from longproof.stats.design import Design
from longproof.stats.sprt import Floats


def walk(design: Design, outcomes: Floats, asked: Counts) -> tuple[Codes, Counts]:
    """Climbs and looks, for many runs at once.

    `outcomes` (runs, lengths, answers) are scores in asking order, the first `asked` (runs, lengths) of them there.
    Returns a code per run and length (see `cell`) and how many answers decided it. A run waits at its first open cell.
    """
    runs, lengths, answers = outcomes.shape
    if lengths != len(design.lengths_tokens):
        raise ValueError(f"outcomes of {lengths} lengths for a design of {len(design.lengths_tokens)}")
    codes = np.full((runs, lengths), UNASKED, dtype=np.int8)
    used = np.zeros((runs, lengths), dtype=np.int64)
    climbing, going = np.ones(runs, dtype=np.bool_), np.ones(runs, dtype=np.bool_)
    for j, length_tokens in enumerate(design.lengths_tokens):
        for may_certify in (True, False):
            here = np.flatnonzero(going & (climbing == may_certify))
            if not here.size:
                continue
            test = design.test_at(length_tokens, may_certify=may_certify)
            width = min(test.cap, answers)
            codes[here, j], used[here, j] = decide(test, outcomes[here, j, :width], np.minimum(asked[here, j], width))
        going &= (codes[:, j] == CERTIFIED) | (codes[:, j] == UNDECIDED)
        climbing &= codes[:, j] == CERTIFIED
    return codes, used


def brackets(design: Design, codes: Codes) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The certified and the refuted length of every run of `walk`, in tokens; 0 stands for none."""
    lengths = np.array(design.lengths_tokens)
    certified = np.where(codes == CERTIFIED, lengths, 0).max(axis=1)
    refuted = np.where(codes == REFUTED, lengths, 0).max(axis=1)
    return certified, refuted
