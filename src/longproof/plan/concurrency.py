"""How many sessions of a mix run together, beside what the usual shortcuts would say.

    capacity ─ pinned prefixes ─ watermark ─▶ limit     most N with P(N sessions hold more than the limit) ≤ risk
    naive     capacity / longest session                safe, and sized for a session that hardly ever comes
    average   capacity / mean session                   exceeded about every other moment

The watermark is what running sessions may still grow by: with it free, admitting one more never evicts one that runs
(with the same probability). Sessions are taken as independent.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from longproof.domain.units import format_tokens
from longproof.errors import UsageError
from longproof.plan.mix import Growth, SessionMix, growth_blocks, held_blocks, pinned_blocks
from longproof.plan.session_sum import exceed_probability, most_sessions, sum_quantile
from longproof.policy.need import BlockNeed


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolOffer:
    """One replica's pool, as an engine's rules give it. `longest_tokens` and `most_sessions`: the engine's own bounds
    (configured limit, running requests), None = no bound."""

    capacity_blocks: int
    need: BlockNeed
    growth: Growth = Growth.INCREMENTAL
    longest_tokens: int | None = None
    most_sessions: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MixPlan:
    """The answer. `risk` is the probability that `sessions` hold more than `limit_blocks`. `sessions_low` and
    `sessions_high` bracket the exact number where a large pool is computed on a grid; else all three agree.

    `naive_sessions`: longest sessions that fit, `average_sessions`: mean sessions that fit, with `average_risk`.
    """

    sessions: int
    sessions_low: int
    sessions_high: int
    risk: float
    limit_blocks: int
    watermark_blocks: int
    pinned_blocks: int
    mean_blocks: float
    longest_blocks: int
    naive_sessions: int
    average_sessions: int
    average_risk: float
    explanation: tuple[str, ...]


def plan_mix(mix: SessionMix, pool: PoolOffer, risk: float, *, watermark_blocks: int | None = None) -> MixPlan:
    """Concurrency of `mix` on one replica at the probability `risk` of exceeding the watermark.

    `watermark_blocks` None: the recommended one. Raises UsageError when the longest session does not fit the pool or
    the engine's limit, or the risk is not within 0 and 1.
    """
    if not 0 < risk < 1:
        raise UsageError(f"a risk of {risk} is not a probability", advice="give e.g. 0.01 for one moment in a hundred")
    longest = pool.need.blocks(mix.longest_tokens)
    _check_longest(mix, pool, longest)
    pinned = pinned_blocks(mix, pool.need)
    sizes = held_blocks(mix, pool.need, pool.growth)
    room = max(0, pool.capacity_blocks - pinned)
    ceiling = room if pool.most_sessions is None else min(room, pool.most_sessions)
    watermark = watermark_blocks
    if watermark is None:
        first = most_sessions(sizes, room, risk, ceiling=ceiling)
        watermark = _watermark(mix, pool, first.sessions, risk)
    limit = max(0, room - watermark)
    fit = most_sessions(sizes, limit, risk, ceiling=ceiling)
    mean = sum(blocks * weight for blocks, weight in sizes)
    average = min(ceiling, int(room / mean)) if mean else ceiling
    plan = MixPlan(
        sessions=fit.sessions,
        sessions_low=fit.low,
        sessions_high=fit.high,
        risk=fit.risk,
        limit_blocks=limit,
        watermark_blocks=watermark,
        pinned_blocks=pinned,
        mean_blocks=mean,
        longest_blocks=longest,
        naive_sessions=min(ceiling, pool.capacity_blocks // longest),
        average_sessions=average,
        average_risk=exceed_probability(sizes, average, room),
        explanation=(),
    )
    return replace(plan, explanation=_explanation(mix, pool, plan, risk))


def _watermark(mix: SessionMix, pool: PoolOffer, sessions: int, risk: float) -> int:
    """What `sessions` may still grow by, exceeded with at most `risk`; nothing where all is reserved at entry.

    Taken at the number that runs without a watermark: fewer run with it and grow by less.
    """
    if pool.growth is Growth.UPFRONT or sessions == 0:
        return 0
    return min(pool.capacity_blocks, sum_quantile(growth_blocks(mix, pool.need), sessions, risk))


def _check_longest(mix: SessionMix, pool: PoolOffer, longest: int) -> None:
    if pool.longest_tokens is not None and mix.longest_tokens > pool.longest_tokens:
        raise UsageError(
            f"the longest session has {format_tokens(mix.longest_tokens)} tokens, the limit is"
            f" {format_tokens(pool.longest_tokens)}",
            advice="raise the limit, or send such sessions to a pool of their own",
        )
    if longest > pool.capacity_blocks:
        raise UsageError(
            f"the longest session ({format_tokens(mix.longest_tokens)} tokens) takes {format_tokens(longest)} blocks,"
            f" the pool has {format_tokens(pool.capacity_blocks)}",
            advice="give this pool more memory, or send such sessions to a pool of their own",
        )


def _explanation(mix: SessionMix, pool: PoolOffer, plan: MixPlan, risk: float) -> tuple[str, ...]:
    unit = "tokens" if pool.need.block_tokens == 1 else "blocks"

    def amount(blocks: float) -> str:
        return f"{format_tokens(blocks)} {unit}"

    times = plan.longest_blocks / plan.mean_blocks
    fits = (
        f"{plan.sessions} sessions ({mix.source}) hold more than {amount(plan.limit_blocks)} with probability"
        f" {plan.risk:.2g}; {risk:g} was allowed."
    )
    naive = (
        f"Sized for the longest session ({format_tokens(mix.longest_tokens)} tokens, {amount(plan.longest_blocks)})"
        f" it would be {plan.naive_sessions}: at a random moment a session holds {amount(plan.mean_blocks)},"
        f" {times:.3g} times less."
    )
    average = (
        f"Sized for the average it would be {plan.average_sessions}, and the pool would overflow with probability"
        f" {plan.average_risk:.2g}."
    )
    sentences = [fits, naive, average]
    if plan.pinned_blocks:
        sentences.append(f"Shared prefixes are held once: {amount(plan.pinned_blocks)} for all sessions.")
    lost = max((one.shared_tokens for one in mix.sessions if one.shared_tokens < pool.need.block_tokens), default=0)
    if lost:
        sentences.append(
            f"A shared prefix of {format_tokens(lost)} tokens is shorter than a block of"
            f" {format_tokens(pool.need.block_tokens)}: it is never found in the cache."
        )
    if plan.watermark_blocks:
        share = 100 * plan.watermark_blocks / pool.capacity_blocks
        sentences.append(
            f"{amount(plan.watermark_blocks)} ({share:.1f} %) stay free for what running sessions still add."
        )
    return tuple(sentences)
