"""A mix of sessions: which lengths run together, in which shares, and what each holds of a pool.

    table, histogram or trace ─▶ SessionMix ─▶ blocks one running session holds ─▶ plan.concurrency

Shares are shares of the sessions that *run* together. Arrivals are something else: a session that lives ten times as
long is met ten times as often (`running_shares` turns the one into the other).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from longproof.errors import UsageError
from longproof.plan.traces import TraceRow
from longproof.policy.need import BlockNeed

_GROWTH_STEPS = 16
"""Into how many equal moments the growth of one session's output is cut."""


class Growth(StrEnum):
    """What a running session holds of its output."""

    UPFRONT = "upfront"
    """All it may produce, from the start."""
    INCREMENTAL = "incremental"
    """What it has produced: at a random moment anything from nothing to all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionShare:
    """Sessions of one length. `share` is relative to the others. `shared_tokens` of the input lie in prefixes that
    other sessions hold as well; they are counted once for the mix (`SessionMix.pinned_tokens`)."""

    input_tokens: int
    output_tokens: int
    share: float
    shared_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        """Input and output together."""
        return self.input_tokens + self.output_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionMix:
    """Sessions that run together. `pinned_tokens`: shared prefixes, each counted once and as if always held."""

    sessions: tuple[SessionShare, ...]
    source: str
    pinned_tokens: int = 0

    def __post_init__(self) -> None:
        if not self.sessions or self.pinned_tokens < 0:
            raise UsageError("a mix needs at least one kind of session", advice="give lengths and shares")
        for one in self.sessions:
            if one.share <= 0 or min(one.input_tokens, one.output_tokens, one.shared_tokens) < 0:
                raise UsageError(
                    f"a session of {one.input_tokens} + {one.output_tokens} tokens with share {one.share}"
                    f" and {one.shared_tokens} shared tokens cannot be",
                    advice="lengths are not negative and shares are positive",
                )
            if one.shared_tokens > one.input_tokens:
                raise UsageError(
                    f"{one.shared_tokens} tokens are shared of an input of {one.input_tokens}",
                    advice="a shared prefix is part of the input",
                )

    @property
    def longest_tokens(self) -> int:
        """The longest session, input and output."""
        return max(one.total_tokens for one in self.sessions)

    @property
    def mean_tokens(self) -> float:
        """Mean of input and output together."""
        weight = sum(one.share for one in self.sessions)
        return sum(one.total_tokens * one.share for one in self.sessions) / weight

    def part(self, low_tokens: int, high_tokens: int | None) -> tuple[SessionMix | None, float]:
        """The sessions of low < total ≤ high tokens (None: no bound) and their share of all. None when there are
        none. Shared prefixes stay pinned in both parts: each pool needs its own copy."""
        chosen = tuple(
            one
            for one in self.sessions
            if one.total_tokens > low_tokens and (high_tokens is None or one.total_tokens <= high_tokens)
        )
        share = sum(one.share for one in chosen) / sum(one.share for one in self.sessions)
        return (replace(self, sessions=chosen) if chosen else None), share


@dataclass(frozen=True, slots=True, kw_only=True)
class HistogramBin:
    """`share` of the sessions have a total length up to `high_tokens`. `output_tokens` of them are output."""

    high_tokens: int
    share: float
    output_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How long sessions live: prefill and decode speed of one session, in tokens per second."""

    prefill_tokens_per_s: float
    decode_tokens_per_s: float

    def seconds(self, session: SessionShare) -> float:
        """Life of one session; shared tokens are not prefilled again."""
        fresh = session.input_tokens - session.shared_tokens
        return fresh / self.prefill_tokens_per_s + session.output_tokens / self.decode_tokens_per_s


def mix_from_histogram(bins: Sequence[HistogramBin], *, source: str = "histogram") -> SessionMix:
    """Every session counts as long as its bin allows: never too little."""
    return SessionMix(
        sessions=tuple(
            SessionShare(
                input_tokens=one.high_tokens - one.output_tokens, output_tokens=one.output_tokens, share=one.share
            )
            for one in bins
            if one.share > 0
        ),
        source=source,
    )


def mix_from_trace(rows: Sequence[TraceRow], *, pin_share: float = 0.02, source: str = "trace") -> SessionMix:
    """All rows as sessions. Prefix blocks that at least `pin_share` of the rows start with count once for the mix.

    Block ids name whole prefixes, so the rows that hold a block hold all before it. With `pin_share` 0.02 a block is
    met by about one in fifty sessions: among a hundred running, it is nearly always there. Rows without ids share
    nothing.
    """
    if not rows:
        raise UsageError("the trace is empty", advice="give a trace with at least one request")
    seen = Counter(block for row in rows for block in set(row.block_ids))
    pinned = {block for block, count in seen.items() if count >= max(2.0, pin_share * len(rows))}
    kinds: Counter[tuple[int, int, int]] = Counter()
    lengths: dict[int, int] = {}
    for row in rows:
        shared = 0
        for index, block in enumerate(row.block_ids):
            if block not in pinned:
                break
            held = min(row.block_tokens, row.input_tokens - index * row.block_tokens)
            shared += held
            lengths[block] = max(held, lengths.get(block, 0))
        kinds[row.input_tokens, row.output_tokens, shared] += 1
    sessions = tuple(
        SessionShare(input_tokens=size, output_tokens=output, share=float(count), shared_tokens=shared)
        for (size, output, shared), count in sorted(kinds.items())
    )
    return SessionMix(sessions=sessions, source=source, pinned_tokens=sum(lengths.values()))


def running_shares(mix: SessionMix, pace: Pace) -> SessionMix:
    """Shares of arrivals → shares of running sessions: each weighs as long as it lives (Little's law)."""
    alive = tuple(replace(one, share=one.share * pace.seconds(one)) for one in mix.sessions if pace.seconds(one) > 0)
    return replace(mix, sessions=alive, source=f"{mix.source}, weighted by how long sessions live")


def held_blocks(mix: SessionMix, need: BlockNeed, growth: Growth) -> list[tuple[int, float]]:
    """(blocks, probability) of what one running session holds of its own at a random moment."""
    weights: dict[int, float] = {}
    for one in mix.sessions:
        for tokens, part in _moments(one, growth):
            blocks = _own_blocks(need, tokens, one.shared_tokens)
            weights[blocks] = weights.get(blocks, 0.0) + one.share * part
    total = sum(weights.values())
    return [(blocks, weight / total) for blocks, weight in sorted(weights.items())]


def growth_blocks(mix: SessionMix, need: BlockNeed) -> list[tuple[int, float]]:
    """(blocks, probability) of what one running session may still grow by, at a random moment."""
    weights: dict[int, float] = {}
    for one in mix.sessions:
        whole = need.blocks(one.total_tokens)
        for tokens, part in _moments(one, Growth.INCREMENTAL):
            more = whole - need.blocks(tokens)
            weights[more] = weights.get(more, 0.0) + one.share * part
    total = sum(weights.values())
    return [(blocks, weight / total) for blocks, weight in sorted(weights.items())]


def pinned_blocks(mix: SessionMix, need: BlockNeed) -> int:
    """Blocks of the shared prefixes, once: groups that keep every token hold them, windows and states do not."""
    return need.full_groups * -(-mix.pinned_tokens // need.block_tokens)


def _own_blocks(need: BlockNeed, tokens: int, shared_tokens: int) -> int:
    return need.blocks(tokens) - need.full_groups * (min(shared_tokens, tokens) // need.block_tokens)


def _moments(one: SessionShare, growth: Growth) -> Iterable[tuple[int, float]]:
    """Lengths a session has in its life and how much of it: the whole input while it is prefilled, then the output
    in equal steps, each at its end."""
    if growth is Growth.UPFRONT or one.output_tokens == 0:
        return [(one.total_tokens, 1.0)]
    steps = min(_GROWTH_STEPS, one.output_tokens)
    return [(one.input_tokens + -(-one.output_tokens * (index + 1) // steps), 1.0 / steps) for index in range(steps)]
