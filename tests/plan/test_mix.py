"""Mixes of sessions: what one holds, how many run together, and what the shortcuts say instead."""

from __future__ import annotations

from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longproof.errors import UsageError
from longproof.plan.concurrency import PoolOffer, plan_mix
from longproof.plan.mix import (
    Growth,
    HistogramBin,
    Pace,
    SessionMix,
    SessionShare,
    growth_blocks,
    held_blocks,
    mix_from_histogram,
    mix_from_trace,
    pinned_blocks,
    running_shares,
)
from longproof.plan.pool_split import Replica, split_pools
from longproof.plan.session_sum import exceed_probability, most_sessions, sum_quantile
from longproof.plan.traces import TraceRow
from longproof.policy.need import BlockNeed, WindowNeed
from longproof.stats.proportion import clopper_pearson


def share(inputs: int, outputs: int, weight: float, shared: int = 0) -> SessionShare:
    return SessionShare(input_tokens=inputs, output_tokens=outputs, share=weight, shared_tokens=shared)


SHORT_AND_LONG = SessionMix(sessions=(share(1_000, 0, 9.0), share(100_000, 0, 1.0)), source="nine short, one long")


def test_concurrency_is_the_binomial_tail_when_there_are_two_lengths() -> None:
    # Sizes 1 and 10 blocks, one in ten long; limit 40. N sessions with k long ones hold N + 9k > 40:
    # N = 13: k >= 4: P = 0.0342; N = 14: 14 + 9k > 40, k >= 3: P = 0.158
    sizes = [(1, 0.9), (10, 0.1)]
    fit = most_sessions(sizes, 40, 0.05, ceiling=40)
    assert (fit.sessions, fit.low, fit.high) == (13, 13, 13)
    tail = sum(comb(13, k) * 0.1**k * 0.9 ** (13 - k) for k in range(4, 14))
    assert fit.risk == pytest.approx(tail, rel=1e-9)
    assert exceed_probability(sizes, 14, 40) == pytest.approx(
        sum(comb(14, k) * 0.1**k * 0.9 ** (14 - k) for k in range(3, 15)), rel=1e-9
    )


@given(
    sizes=st.lists(st.tuples(st.integers(0, 12), st.floats(0.05, 1.0)), min_size=1, max_size=4),
    sessions=st.integers(0, 6),
    limit=st.integers(0, 60),
)
def test_exceeding_is_the_sum_over_all_outcomes_when_enumerated(
    sizes: list[tuple[int, float]], sessions: int, limit: int
) -> None:
    total = sum(weight for _, weight in sizes)
    outcomes = {0: 1.0}
    for _ in range(sessions):
        following: dict[int, float] = {}
        for held, chance in outcomes.items():
            for blocks, weight in sizes:
                following[held + blocks] = following.get(held + blocks, 0.0) + chance * weight / total
        outcomes = following
    expected = sum(chance for held, chance in outcomes.items() if held > limit)
    assert exceed_probability(sizes, sessions, limit) == pytest.approx(expected, abs=1e-9)
    quantile = sum_quantile(sizes, sessions, 0.1)
    assert sum(chance for held, chance in outcomes.items() if held > quantile) <= 0.1 + 1e-9
    assert quantile == 0 or sum(chance for held, chance in outcomes.items() if held > quantile - 1) > 0.1 - 1e-9


@given(
    risk=st.sampled_from([0.001, 0.01, 0.2]),
    limit=st.integers(1, 3000),
    more=st.integers(0, 500),
    sizes=st.lists(st.tuples(st.integers(1, 300), st.floats(0.05, 1.0)), min_size=1, max_size=4),
)
def test_more_room_or_more_risk_never_holds_fewer_when_all_else_is_equal(
    risk: float, limit: int, more: int, sizes: list[tuple[int, float]]
) -> None:
    base = most_sessions(sizes, limit, risk, ceiling=5000).sessions
    assert most_sessions(sizes, limit + more, risk, ceiling=5000).sessions >= base
    assert most_sessions(sizes, limit, min(0.9, risk * 2), ceiling=5000).sessions >= base
    if base < 5000:
        assert exceed_probability(sizes, base, limit) <= risk + 1e-9
        assert exceed_probability(sizes, base + 1, limit) > risk - 1e-9


def test_simulation_agrees_when_the_pool_is_too_large_for_one_block_per_cell() -> None:
    sizes = [(500, 0.6), (7_000, 0.3), (120_000, 0.1)]
    fit = most_sessions(sizes, 2_000_000, 0.02, ceiling=10_000)
    assert fit.low <= fit.sessions <= fit.high <= fit.low + 2
    # 20,000 draws from a seeded generator; the interval covers 99.9 %
    rng = np.random.default_rng(20261130)
    blocks = rng.choice([500, 7_000, 120_000], p=[0.6, 0.3, 0.1], size=(20_000, fit.sessions))
    over = int((blocks.sum(axis=1) > 2_000_000).sum())
    interval = clopper_pearson(over, 20_000, 0.999)
    assert interval.low <= fit.risk <= interval.high


def test_naive_and_average_plans_are_shown_beside_the_mix_when_lengths_differ() -> None:
    plan = plan_mix(SHORT_AND_LONG, PoolOffer(capacity_blocks=1_000_000, need=BlockNeed(), growth=Growth.UPFRONT), 0.01)
    assert plan.naive_sessions == 10  # 1,000,000 / 100,000
    assert plan.average_sessions == 91  # 1,000,000 / 10,900
    assert plan.naive_sessions < plan.sessions < plan.average_sessions
    assert plan.average_risk > 0.2
    assert plan.risk <= 0.01
    assert "it would be 10" in plan.explanation[1]
    assert "it would be 91" in plan.explanation[2]


def test_prefix_is_paid_once_when_sessions_share_it() -> None:
    # 900 of 1,000 input tokens are one system prompt: 100 own tokens each and 900 once.
    mix = SessionMix(sessions=(share(1_000, 0, 1.0, shared=900),), source="shared", pinned_tokens=900)
    pool = PoolOffer(capacity_blocks=10_000, need=BlockNeed(), growth=Growth.UPFRONT)
    assert plan_mix(mix, pool, 0.01).sessions == (10_000 - 900) // 100
    apart = SessionMix(sessions=(share(1_000, 0, 1.0),), source="apart")
    assert plan_mix(apart, pool, 0.01).sessions == 10


def test_only_whole_shared_blocks_are_saved_when_blocks_are_large() -> None:
    mix = SessionMix(sessions=(share(1_000, 0, 1.0, shared=900),), source="shared", pinned_tokens=900)
    need = BlockNeed(block_tokens=64, windows=(WindowNeed(window_tokens=128),))
    # full: ceil(1000 / 64) = 16, of which 900 // 64 = 14 shared; window: 2 + 1, never shared
    assert held_blocks(mix, need, Growth.UPFRONT) == [(16 - 14 + 3, 1.0)]
    assert pinned_blocks(mix, need) == 15


def test_growth_lies_between_input_and_all_when_output_is_reserved_as_it_comes() -> None:
    mix = SessionMix(sessions=(share(1_000, 1_600, 1.0),), source="one")
    held = held_blocks(mix, BlockNeed(), Growth.INCREMENTAL)
    assert (held[0][0], held[-1][0]) == (1_100, 2_600)  # sixteen steps of 100, each at its end
    assert sum(blocks * chance for blocks, chance in held) == pytest.approx(1_850)
    assert held_blocks(mix, BlockNeed(), Growth.UPFRONT) == [(2_600, 1.0)]
    more = growth_blocks(mix, BlockNeed())
    assert (more[0][0], more[-1][0]) == (0, 1_500)


def test_watermark_covers_what_running_sessions_add_when_growth_is_incremental() -> None:
    mix = SessionMix(sessions=(share(1_000, 1_600, 1.0),), source="one")
    pool = PoolOffer(capacity_blocks=100_000, need=BlockNeed())
    plan = plan_mix(mix, pool, 0.01)
    assert plan.watermark_blocks > 0
    assert plan.limit_blocks == 100_000 - plan.watermark_blocks
    assert exceed_probability(growth_blocks(mix, BlockNeed()), plan.sessions, plan.watermark_blocks) <= 0.01
    given_mark = plan_mix(mix, pool, 0.01, watermark_blocks=0)
    assert given_mark.sessions > plan.sessions
    upfront = plan_mix(mix, PoolOffer(capacity_blocks=100_000, need=BlockNeed(), growth=Growth.UPFRONT), 0.01)
    assert (upfront.watermark_blocks, upfront.sessions) == (0, 38)  # 100,000 / 2,600


def test_engine_bounds_hold_when_memory_would_take_more() -> None:
    pool = PoolOffer(capacity_blocks=1_000_000, need=BlockNeed(), most_sessions=4)
    assert plan_mix(SHORT_AND_LONG, pool, 0.01).sessions == 4


def test_too_long_a_session_is_named_with_limit_and_actual_when_it_does_not_fit() -> None:
    with pytest.raises(UsageError, match=r"100,000 tokens\) takes 100,000 blocks, the pool has 50,000"):
        plan_mix(SHORT_AND_LONG, PoolOffer(capacity_blocks=50_000, need=BlockNeed()), 0.01)
    with pytest.raises(UsageError, match="has 100,000 tokens, the limit is 32,768"):
        plan_mix(SHORT_AND_LONG, PoolOffer(capacity_blocks=500_000, need=BlockNeed(), longest_tokens=32_768), 0.01)
    with pytest.raises(UsageError, match="not a probability"):
        plan_mix(SHORT_AND_LONG, PoolOffer(capacity_blocks=500_000, need=BlockNeed()), 1.0)


def test_long_lives_weigh_more_when_arrivals_become_running_sessions() -> None:
    # 1,000 tokens at 1,000/s live 1 s, 100,000 live 100 s: nine arrivals to one become 9 to 100
    running = running_shares(SHORT_AND_LONG, Pace(prefill_tokens_per_s=1_000, decode_tokens_per_s=50))
    assert [one.share for one in running.sessions] == [9.0, 100.0]
    assert running.mean_tokens > SHORT_AND_LONG.mean_tokens


def test_histogram_counts_the_upper_edge_when_bins_are_given() -> None:
    mix = mix_from_histogram(
        [
            HistogramBin(high_tokens=8_192, share=0.9, output_tokens=500),
            HistogramBin(high_tokens=131_072, share=0.1),
            HistogramBin(high_tokens=1_048_576, share=0.0),
        ]
    )
    assert [(one.input_tokens, one.total_tokens) for one in mix.sessions] == [(7_692, 8_192), (131_072, 131_072)]


def test_common_blocks_are_pinned_once_when_a_trace_names_them() -> None:
    # Every row starts with block 0; two rows go on with block 1; the last block of row c is partial (200 of 512).
    rows = [
        TraceRow(at_ns=0, input_tokens=1_500, output_tokens=10, block_ids=(0, 1, 2)),
        TraceRow(at_ns=1, input_tokens=1_400, output_tokens=10, block_ids=(0, 1, 3)),
        TraceRow(at_ns=2, input_tokens=712, output_tokens=10, block_ids=(0, 4)),
    ]
    mix = mix_from_trace(rows)
    assert {(one.input_tokens, one.shared_tokens) for one in mix.sessions} == {(1_500, 1024), (1_400, 1024), (712, 512)}
    assert mix.pinned_tokens == 1024
    all_only = mix_from_trace(rows, pin_share=0.9)  # only block 0 is in at least 2.7 rows
    assert all_only.pinned_tokens == 512


def test_a_mix_refuses_what_cannot_be_when_it_is_made() -> None:
    with pytest.raises(UsageError, match="at least one kind"):
        SessionMix(sessions=(), source="none")
    with pytest.raises(UsageError, match="share 0"):
        SessionMix(sessions=(share(1, 1, 0),), source="none")
    with pytest.raises(UsageError, match="20 tokens are shared of an input of 10"):
        SessionMix(sessions=(share(10, 1, 1, shared=20),), source="none")
    with pytest.raises(UsageError, match="trace is empty"):
        mix_from_trace([])


def test_split_pools_need_fewer_devices_when_only_a_few_sessions_are_long() -> None:
    # Short: one device, 100,000 tokens. Long: eight devices for 600,000 tokens (the layout costs capacity).
    short = Replica(
        layout="TP1", devices=1, pool=PoolOffer(capacity_blocks=100_000, need=BlockNeed(), growth=Growth.UPFRONT)
    )
    long = Replica(
        layout="TP8 DCP8", devices=8, pool=PoolOffer(capacity_blocks=600_000, need=BlockNeed(), growth=Growth.UPFRONT)
    )
    split = split_pools(SHORT_AND_LONG, 32_000, short, long, 200, 0.01)
    # 180 short sessions at 100 per replica: 2 devices; 20 long ones at 6 per replica: 4 x 8 devices
    assert (split.short.sessions, split.short.replicas, split.short.devices) == (180, 2, 2)
    assert (split.long.sessions, split.long.replicas, split.long.devices) == (20, 4, 32)
    assert split.devices == 34
    assert split.single.devices > split.devices
    assert "34 devices" in split.explanation


def test_split_needs_sessions_on_both_sides_when_a_boundary_is_given() -> None:
    replica = Replica(layout="TP1", devices=1, pool=PoolOffer(capacity_blocks=200_000, need=BlockNeed()))
    with pytest.raises(UsageError, match="no session lies on the long side of 100,000 tokens"):
        split_pools(SHORT_AND_LONG, 100_000, replica, replica, 10, 0.01)


def test_the_plan_warns_when_a_shared_prefix_is_shorter_than_a_block() -> None:
    # a hybrid model's attention blocks have hundreds of tokens (784 was seen): 240 shared tokens are never a hit
    pool = PoolOffer(capacity_blocks=10_000, need=BlockNeed(block_tokens=784))

    def said(shared: int) -> str:
        return " ".join(
            plan_mix(SessionMix(sessions=(share(4_000, 100, 1.0, shared),), source="x"), pool, 0.01).explanation
        )

    assert "A shared prefix of 240 tokens is shorter than a block of 784" in said(240)
    assert "shorter than a block" not in said(784)
    assert "shorter than a block" not in said(0)
