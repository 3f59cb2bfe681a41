"""Whether both sides said the same to the same prompt, and whether each says the same twice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from longproof.claim.compare_pairs import SIDES, Pair
from longproof.claim.view import EvidenceView
from longproof.domain.outcome import completed_as_asked
from longproof.evidence.records import RequestBody


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputsAtLength:
    """Answers to prompts of one length."""

    length: int
    compared: int
    equal: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputsCompared:
    """Greedy answers (temperature 0) to byte-identical prompts. `first_difference_chars`: where the earliest of the
    unequal ones part, and `parted`: (length, characters in common, A goes on, B goes on) of that one. `again_a`,
    `again_b`: the same prompt twice on one side, (compared, equal): what differs there is not the factor's doing."""

    compared: int
    equal: int
    by_length: tuple[OutputsAtLength, ...]
    first_difference_chars: int | None
    parted: tuple[int, int, str, str] | None
    again_a: tuple[int, int]
    again_b: tuple[int, int]

    @property
    def attributable(self) -> bool:
        """Whether each side repeats itself, so that a difference between them is one of configurations."""
        return all(n > 0 and n == equal for n, equal in (self.again_a, self.again_b))


_SHOWN_CHARS = 40


def compare_outputs(a: EvidenceView, b: EvidenceView, pairs: Sequence[Pair]) -> OutputsCompared:
    """Every pair of single requests whose prompts are the same, byte for byte."""
    same = [
        (pair.length, *pair.single)
        for pair in pairs
        if pair.single is not None and all(pair.done) and pair.single[0].prompt_sha256 == pair.single[1].prompt_sha256
    ]
    unequal = [(length, mine, other) for length, mine, other in same if _said(mine) != _said(other)]
    parted = min(
        ((length, _common(_said(mine), _said(other)), mine, other) for length, mine, other in unequal),
        key=lambda found: found[1],
        default=None,
    )
    return OutputsCompared(
        compared=len(same),
        equal=len(same) - len(unequal),
        by_length=tuple(
            OutputsAtLength(
                length=length,
                compared=sum(at == length for at, _, _ in same),
                equal=sum(at == length and _said(mine) == _said(other) for at, mine, other in same),
            )
            for length in sorted({at for at, _, _ in same})
        ),
        first_difference_chars=None if parted is None else parted[1],
        parted=None
        if parted is None
        else (parted[0], parted[1], _from(_said(parted[2]), parted[1]), _from(_said(parted[3]), parted[1])),
        again_a=_again(a),
        again_b=_again(b),
    )


def _again(view: EvidenceView) -> tuple[int, int]:
    """(compared, equal) of prompts that this side was asked twice."""
    first: dict[str, RequestBody] = {}
    compared = equal = 0
    for _, body in view.requests(SIDES):
        if not completed_as_asked(body.timeline):
            continue
        if body.cell.get("arm") == "pair":
            first[body.prompt_sha256] = body
        elif body.cell.get("arm") == "again" and body.prompt_sha256 in first:
            compared += 1
            equal += _said(first[body.prompt_sha256]) == _said(body)
    return compared, equal


def _said(body: RequestBody) -> str:
    return body.timeline.reasoning + body.timeline.text


def _common(left: str, right: str) -> int:
    return sum(1 for _ in takewhile(lambda both: both[0] == both[1], zip(left, right, strict=False)))


def _from(text: str, at: int) -> str:
    return text[at : at + _SHOWN_CHARS]
