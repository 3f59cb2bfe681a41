"""What the quality probe is told to do, and what that costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from longproof.quality.corpora.corpus import Kind
from longproof.stats.design import Design, Rule

SHORTEST_CODE_TOKENS = 1_000
"""Three to six definitions of up to 400 characters each, one token for two or three of them: below this a piece of code
and its question may not fit, or leave no room for filler."""

_CONTROL_TOKENS = 160
"""About what evidence and question are without filler; only the cost depends on it."""


NOT_GATING = frozenset({"copy"})
"""Families that say something about the server rather than about the window: no part of the effective context."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityPlan:
    """`lengths` are prompt tokens, as the server counts them.

    `mode` ``curve``: `answers` items at every length, a curve with wide intervals. ``climb``: shortest length first, as
    many as it takes to decide and at most `answers` (a multiple of it where that is cheap), and no length beyond the
    first that is lost. `threshold` holds for the worst family; `rule`: absolute, or relative to the model's own answers
    without filler. `closed_book`: items asked without any text. `warm`: items of each length asked again at once, so
    that the prefix cache serves them. `thinking_tokens` are allowed on top of the answer's. `together`: requests at a
    time. `corpus`, `code_corpus`: None = the default of the kind.
    """

    families: tuple[str, ...]
    lengths: tuple[int, ...]
    answers: int
    mode: Literal["curve", "climb"] = "curve"
    threshold: float = 0.85
    alpha: float = 0.05
    rule: Literal["absolute", "retention"] = "absolute"
    closed_book: int = 4
    warm: int = 2
    thinking_tokens: int = 0
    together: int = 1
    corpus: str | None = None
    code_corpus: str | None = None
    seed: int = 0

    def lengths_of(self, kind: Kind) -> tuple[int, ...]:
        """Where a family of that kind is asked: code needs room, and is asked from 1,000 tokens on unless all lengths
        are shorter."""
        roomy = tuple(length for length in self.lengths if length >= SHORTEST_CODE_TOKENS)
        return roomy if kind == "code" and roomy else self.lengths

    def design(self, chance: float, kind: Kind = "prose") -> Design:
        """How the answers of a family with that chance are judged."""
        return Design(
            lengths_tokens=self.lengths_of(kind),
            threshold=self.threshold,
            chance=chance,
            rule=Rule(self.rule),
            alpha=self.alpha,
            families=len(self.families),
            cap=self.answers,
        )


def cost(plan: QualityPlan, output_tokens: int) -> tuple[int, int]:
    """(requests, tokens) at most, when no family is settled early. Answers are short, whatever they may take."""
    caps = dict.fromkeys(plan.lengths, plan.answers)
    if plan.mode == "climb":
        design = plan.design(0.0)
        caps = {length: design.cap_at(length) for length in plan.lengths}
    longest = max(caps.values(), default=0)
    controls = longest + plan.closed_book
    each = sum(count * (length + output_tokens) for length, count in caps.items())
    each += controls * (_CONTROL_TOKENS + output_tokens)
    again = min(plan.warm, plan.answers)  # a prefix hit is quick, and still counts as tokens
    each += sum(again * (length + output_tokens) for length in plan.lengths)
    requests = sum(caps.values()) + controls + again * len(plan.lengths)
    return len(plan.families) * requests, len(plan.families) * each
