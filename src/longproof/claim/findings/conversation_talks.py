"""Conversations as they were held: what each turn took, how long it was and what of it was already known."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from longproof.claim.cached import cached_reports
from longproof.claim.view import EvidenceView
from longproof.domain.outcome import completed_as_asked

PROBE = "conversation"


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One answered turn. `prompt_tokens`: all of it, by our own count or else by `usage`; `cached_tokens` by the
    server's word. None = unknown."""

    key: str
    turn: int
    ttft_s: float
    prompt_tokens: int | None
    cached_tokens: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Talk:
    """One conversation: its answered turns from the first on."""

    concurrency: int
    turns: tuple[Turn, ...]

    @property
    def later(self) -> tuple[tuple[Turn, Turn], ...]:
        """Every later turn with the one before it."""
        return tuple(zip(self.turns, self.turns[1:], strict=False))

    def kept_shares(self) -> list[float]:
        """Of each later turn: what was cached, as a share of the prompt before it."""
        return [
            turn.cached_tokens / before.prompt_tokens
            for before, turn in self.later
            if turn.cached_tokens is not None and before.prompt_tokens
        ]

    def price(self) -> float | None:
        """What later turns cost, as a share of what they would if every token took what a token of the first turn
        took: 1 = nothing is reused. The geometric mean over the turns; None where lengths are unknown."""
        first = self.turns[0]
        logs = [
            math.log(turn.ttft_s / first.ttft_s * first.prompt_tokens / turn.prompt_tokens)
            for _, turn in self.later
            if first.prompt_tokens and turn.prompt_tokens
        ]
        return math.exp(statistics.fmean(logs)) if logs else None


def talks_of(view: EvidenceView) -> dict[int, list[Talk]]:
    """Conversations by how many were held at once; those whose first turn failed are none."""
    turns: dict[tuple[int, int, int, int], dict[int, Turn]] = {}
    for window in view.windows(PROBE):
        cell = window.body.cell
        for key, body in window.requests:
            timeline = body.timeline
            ttft_ns = timeline.ttft_ns
            if not ttft_ns or not completed_as_asked(timeline):
                continue
            told = timeline.usage.prompt_tokens if timeline.usage is not None else None
            own = timeline.prompt_tokens_sent
            turn = Turn(
                key=key,
                turn=int(cell["turn"]),
                ttft_s=ttft_ns / 1e9,
                prompt_tokens=told if own is None else own,
                cached_tokens=cached_reports(body).most,
            )
            at = (int(cell["concurrency"]), int(cell["repeat"]), int(cell["attempt"]), int(body.cell["conversation"]))
            turns.setdefault(at, {})[turn.turn] = turn
    found: dict[int, list[Talk]] = {}
    for at, by_turn in sorted(turns.items()):
        answered = _unbroken(by_turn)
        if answered:
            found.setdefault(at[0], []).append(Talk(concurrency=at[0], turns=answered))
    return found


def prices(talks: Sequence[Talk]) -> list[float]:
    """One per conversation with a later turn."""
    return [price for talk in talks if (price := talk.price()) is not None]


def _unbroken(by_turn: dict[int, Turn]) -> tuple[Turn, ...]:
    turns: list[Turn] = []
    while len(turns) + 1 in by_turn:
        turns.append(by_turn[len(turns) + 1])
    return tuple(turns)
