"""What is left of an ability when filler is added: right at a length among the items that were right without filler.

The share right of a length mixes two things, whether the model can do the task and whether it still can in a long
prompt. Asking only about items whose control (the evidence alone) was right separates them: each is right or wrong
once, so every interval and test for shares applies. The rule needs a floor, or a model that can do one item in fifty
keeps all of nothing: `effective_context` climbs only where the control itself is certified above it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from longproof.domain.measure import Interval
from longproof.stats.confidence_sequence import share_interval

Score = float | None
"""1 right, 0 wrong, between for parts; None: not asked, or no score."""


def retained(control: Sequence[Score], full: Sequence[Score]) -> tuple[float, ...]:
    """The scores at full length of the items whose control was entirely right, in the order of the items.

    Both are aligned by item, in asking order; items without a control or without a score are left out. Raises
    ValueError for sequences of different lengths.
    """
    return tuple(
        score
        for passed, score in zip(control, full, strict=True)
        if passed is not None and passed >= 1 and score is not None
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """`kept` of `passed` items were right at full length too; `asked` items have both answers.

    `gained` were wrong in the control and right at full length: guesses, or a control that is harder than it should be.
    """

    asked: int
    passed: int
    kept: int
    gained: int
    interval: Interval | None
    """None where no control was right."""


def retention(
    control: Sequence[bool | None],
    full: Sequence[bool | None],
    *,
    planned_n: int | None,
    confidence: float = 0.95,
) -> Retention:
    """Counts the pairs. `planned_n` is the number of passed items fixed in advance, or None where the run stopped on
    its results; it decides the interval (`confidence_sequence.share_interval`)."""
    pairs = [(c, f) for c, f in zip(control, full, strict=True) if c is not None and f is not None]
    passed = sum(c for c, _ in pairs)
    kept = sum(c and f for c, f in pairs)
    return Retention(
        asked=len(pairs),
        passed=passed,
        kept=kept,
        gained=sum(f and not c for c, f in pairs),
        interval=share_interval(kept, passed, planned_n=planned_n, confidence=confidence) if passed else None,
    )
