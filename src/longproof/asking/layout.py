"""Where filler and inserts stand between nonce and question.

    nonce | insert depth 0 | body ……… | insert 0.5 | body ……… | tail … | insert depth 1 | question
                             └──────────── filler, F tokens ───────────┘
                                                       last max(64, F/16)┘

A stretch is filler without anything in it. The tail is a stretch (or more, where an insert stands in it) whose words
are drawn apart from the body's: another tail nonce changes it and leaves every byte before it. Corrections to the
exact length go there too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from longproof.asking.filler import FEWEST_TOKENS

_TAIL_TOKENS = 64
_TAIL_SHARE = 16
_ROOM_PER_STRETCH = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Insert:
    """A text that must stand in the prompt as it is. `depth`: 0 = right after the nonce, 1 = right before the
    question.
    """

    depth: float
    text: str

    def __post_init__(self) -> None:
        if not 0 <= self.depth <= 1:
            raise ValueError(f"depth is {self.depth}, not in 0..1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """`tokens` of filler, of which `correction` were added (or taken away) after a count; `index` keeps the words of
    different stretches apart."""

    tokens: int
    index: int
    in_tail: bool
    correction: int = 0


Piece: TypeAlias = Stretch | str
"""What stands between nonce and question, in order: filler or an insert's own text."""


def lay_out(filler_tokens: int, inserts: Sequence[Insert]) -> tuple[Piece, ...] | None:
    """Pieces in order, their stretches adding up to `filler_tokens`; None when there is too little filler to spread."""
    tail_at = max(0, filler_tokens - max(_TAIL_TOKENS, filler_tokens // _TAIL_SHARE))
    waiting = sorted(inserts, key=_depth)
    cuts = sorted({tail_at, *(round(insert.depth * filler_tokens) for insert in waiting)} - {0, filler_tokens})
    if filler_tokens < _ROOM_PER_STRETCH * (len(cuts) + 1):
        return None
    bounds = _apart([0, *cuts, filler_tokens])
    pieces: list[Piece] = []
    for index, (original, begin, end) in enumerate(zip([0, *cuts], bounds, bounds[1:], strict=False)):
        while waiting and round(waiting[0].depth * filler_tokens) <= original:
            pieces.append(waiting.pop(0).text)
        pieces.append(Stretch(tokens=end - begin, index=index, in_tail=original >= tail_at))
    pieces.extend(insert.text for insert in waiting)
    return tuple(pieces)


def in_order(inserts: Sequence[Insert]) -> tuple[Piece, ...]:
    """The inserts alone, by depth."""
    return tuple(insert.text for insert in sorted(inserts, key=_depth))


def lengthen(pieces: Sequence[Piece], tokens: int, *, correction: int = 0) -> tuple[Piece, ...] | None:
    """The same pieces with the last stretch `tokens` longer (or shorter), `correction` of them as one; None when it
    cannot give that many."""
    last = max(index for index, piece in enumerate(pieces) if isinstance(piece, Stretch))
    stretch = pieces[last]
    assert isinstance(stretch, Stretch)
    longer = stretch.tokens + tokens
    if longer < FEWEST_TOKENS:
        return None
    changed = replace(stretch, tokens=longer, correction=correction)
    return (*pieces[:last], changed, *pieces[last + 1 :])


def shortest(pieces: Sequence[Piece]) -> tuple[Piece, ...]:
    """The same order of pieces with every stretch as short as it can be: what everything but the filler costs."""
    return tuple(
        Stretch(tokens=FEWEST_TOKENS, index=piece.index, in_tail=piece.in_tail) if isinstance(piece, Stretch) else piece
        for piece in pieces
    )


def filler_tokens(pieces: Sequence[Piece]) -> int:
    """Tokens of all stretches together."""
    return sum(piece.tokens for piece in pieces if isinstance(piece, Stretch))


def _depth(insert: Insert) -> float:
    return insert.depth


def _apart(bounds: list[int]) -> list[int]:
    """The same bounds, each at least FEWEST_TOKENS after the one before, the last one unmoved."""
    for index in range(1, len(bounds) - 1):
        bounds[index] = max(bounds[index], bounds[index - 1] + FEWEST_TOKENS)
    for index in range(len(bounds) - 2, 0, -1):
        bounds[index] = min(bounds[index], bounds[index + 1] - FEWEST_TOKENS)
    return bounds
