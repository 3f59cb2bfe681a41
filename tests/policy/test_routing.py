"""Where a request goes: predicted time to first token, what it takes from others, and never a match alone.

All replicas prefill 10,000 tokens per second: 1,000 tokens are 100 ms. Blocks have 100 tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longproof.domain.kv_event import KvCleared, KvStored, Tier
from longproof.domain.units import NS_PER_S
from longproof.policy.arrivals import Arrival
from longproof.policy.choice import Router
from longproof.policy.pools import PoolRule
from longproof.policy.prefill_cost import PrefillCost
from longproof.policy.routing import PrefixRouter, RestoreCost, RoutingRule

MS = 1_000_000
BLOCK = 100
PREFILL = PrefillCost.at_rate(10_000)


@dataclass(frozen=True)
class View:
    name: str
    pool: str = "default"
    block_tokens: int = BLOCK
    prefill: PrefillCost = PREFILL
    decode_ns_per_token: int = 20 * MS
    pending_prefill_tokens: int = 0
    prefilling: int = 0
    decoding: int = 0
    held_blocks: int = 0
    capacity_blocks: int = 10_000
    room_in_ns: int | None = 0
    exclusive: bool = False


A, B, C = View("a"), View("b"), View("c")


def _router(rule: RoutingRule | None = None, *, cache_blocks: int | None = None) -> PrefixRouter:
    router = PrefixRouter(rule or RoutingRule())
    for name in "abc":
        router.follow(name, block_tokens=BLOCK, cache_blocks=cache_blocks, events=True)
    return router


def _arrival(request: str = "r", tokens: int = 1_000, first: int = 1, session: str | None = None) -> Arrival:
    """`first`: the name of its first block; prompts with other firsts share nothing."""
    blocks = tuple(range(first, first + tokens // BLOCK)) if first else ()
    return Arrival(
        id=request,
        tenant="t",
        model="m",
        input_tokens=tokens,
        exact=True,
        output_tokens=100,
        blocks=blocks,
        session=session,
    )


def test_the_router_is_the_one_the_controller_asks_for() -> None:
    router: Router = PrefixRouter()  # the type checker compares; at run time, that the calls exist
    assert all(callable(getattr(router, call)) for call in ("choose", "on_dispatch", "on_end", "on_kv_event", "forget"))


def test_a_conversation_goes_where_its_blocks_are_when_load_is_equal() -> None:
    router = _router()
    router.on_kv_event("b", KvStored(blocks=tuple(range(1, 9))), 0)
    choice = router.choose(_arrival(), [A, B, C], 0)
    assert choice.replica == "b"
    assert choice.reason == "most of it is cached there"
    assert [score.cached_tokens for score in choice.scores] == [0, 800, 0]
    assert [score.predicted_ttft_ns for score in choice.scores] == [100 * MS, 20 * MS, 100 * MS]
    assert choice.best == choice.scores[1]


def test_the_last_token_is_always_computed_when_the_whole_prompt_is_cached() -> None:
    router = _router()
    router.on_kv_event("a", KvStored(blocks=tuple(range(1, 11))), 0)
    score = router.choose(_arrival(tokens=1_000), [A], 0).scores[0]
    assert (score.cached_tokens, score.uncached_tokens) == (900, 100)
    score = router.choose(_arrival(tokens=1_001), [A], 0).scores[0]
    assert (score.cached_tokens, score.uncached_tokens) == (1_000, 1)


def test_a_backlog_outweighs_a_match_when_waiting_costs_more_than_prefilling() -> None:
    # home: backlog + 20 ms + 3 · 20 ms; elsewhere 100 ms + 3 · 100 ms: 320 ms of backlog are even
    router = _router()
    router.on_kv_event("b", KvStored(blocks=tuple(range(1, 9))), 0)
    at_home = router.choose(_arrival(), [A, replace(B, pending_prefill_tokens=3_100)], 0)
    elsewhere = router.choose(_arrival(), [A, replace(B, pending_prefill_tokens=3_300)], 0)
    assert (at_home.replica, elsewhere.replica) == ("b", "a")
    assert elsewhere.reason == "least load; nothing of it is cached there"


def test_a_prefix_everybody_uses_is_copied_when_its_home_is_busy_for_longer_than_patience() -> None:
    # 400,000 cached tokens are 40 s of prefill: weighed threefold they would hold everybody at home for two minutes
    router = _router(RoutingRule(patience_ns=5 * NS_PER_S, pools=PoolRule(long_from_tokens=None)))
    router.on_kv_event("b", KvStored(blocks=tuple(range(1, 4_001))), 0)
    arrival = _arrival(tokens=401_000)
    waits = router.choose(arrival, [A, replace(B, pending_prefill_tokens=440_000)], 0)
    copies = router.choose(arrival, [A, replace(B, pending_prefill_tokens=460_000)], 0)
    assert (waits.replica, copies.replica) == ("b", "a")


def test_misses_go_by_load_when_nothing_is_cached_anywhere() -> None:
    router = _router()
    router.on_kv_event("c", KvStored(blocks=tuple(range(5_000, 5_100))), 0)
    views = [
        replace(A, pending_prefill_tokens=10),
        replace(B, pending_prefill_tokens=5),
        replace(C, pending_prefill_tokens=50),
    ]
    choice = router.choose(_arrival(first=900), views, 0)
    assert (choice.replica, choice.reason) == ("b", "least load; nothing of it is cached")


def test_the_next_request_goes_elsewhere_when_load_is_charged_at_the_choice() -> None:
    # no answer has come back from anybody: the views' pending tokens are what was charged
    router = _router()
    pending = dict.fromkeys("abc", 0)
    chosen: list[str] = []
    for number in range(6):
        arrival = _arrival(str(number), tokens=2_000, first=1_000 * (number + 1))
        views = [View(name, pending_prefill_tokens=tokens) for name, tokens in pending.items()]
        choice = router.choose(arrival, views, number)
        assert choice.replica is not None
        router.on_dispatch(arrival, choice.replica, number)
        pending[choice.replica] += 2_000
        chosen.append(choice.replica)
    assert sorted(chosen[:3]) == sorted(chosen[3:]) == ["a", "b", "c"]


def test_a_burst_with_one_new_prefix_stays_together_when_its_first_request_was_just_sent() -> None:
    router = _router()
    first = _arrival("first", tokens=2_000)
    router.on_dispatch(first, "c", 0)
    choice = router.choose(_arrival("second", tokens=2_000), [A, B, replace(C, pending_prefill_tokens=2_000)], 1)
    assert choice.replica == "c"
    router.on_end(first, "c", None, 2)
    assert router.choose(_arrival("third", tokens=2_000), [A, B, C], 3).scores[2].cached_tokens == 0


def test_equal_replicas_take_turns_when_nothing_distinguishes_them() -> None:
    router = _router()
    chosen: list[str | None] = []
    for number in range(6):
        arrival = _arrival(str(number), tokens=50, first=0)
        choice = router.choose(arrival, [A, B, C], number)
        router.on_dispatch(arrival, choice.replica or "", number)
        chosen.append(choice.replica)
    assert chosen == ["a", "b", "c", "a", "b", "c"]


def test_a_long_prefill_keeps_away_from_running_streams_when_load_is_equal() -> None:
    router = _router()
    assert router.choose(_arrival(tokens=20_000), [replace(A, decoding=5), B], 0).replica == "b"


def test_new_content_goes_where_nothing_is_pushed_out_when_one_cache_is_full() -> None:
    router = _router(cache_blocks=50)
    for name in "ab":
        router.on_kv_event(name, KvStored(blocks=tuple(range(1_000, 1_050))), 0)
    assert router.choose(_arrival(), [A, B, C], 0).replica == "c"
    # 10 new blocks into a full cache: 1,000 tokens are 100 ms, a fifth of it is charged
    costs = [score.cost_ns for score in router.choose(_arrival(), [A, B, C], 0).scores]
    assert [costs[0] - costs[2], costs[1] - costs[2]] == [20 * MS, 20 * MS]


def test_a_hit_on_a_slower_tier_counts_between_cached_and_computed_when_restoring_is_cheaper() -> None:
    rule = RoutingRule(restore={"b": RestoreCost(host_ns_per_token=10_000)})  # 10 µs a token; prefilling takes 100
    router = _router(rule)
    router.on_kv_event("a", KvStored(blocks=tuple(range(1, 9))), 0)
    router.on_kv_event("b", KvStored(blocks=tuple(range(1, 9)), tier=Tier.HOST), 0)
    router.on_kv_event("c", KvStored(blocks=tuple(range(1, 9)), tier=Tier.DISK), 0)
    device, host, disk = router.choose(_arrival(), [A, B, C], 0).scores
    assert (device.restore_ns, host.restore_ns) == (0, 8 * MS)  # 800 tokens · 10 µs
    assert disk.restore_ns == 56 * MS  # nobody said what it costs: 0.7 of the 80 ms of computing them
    assert device.cost_ns < host.cost_ns < disk.cost_ns


def test_room_is_waited_for_when_it_comes_sooner_than_a_prefill_elsewhere_ends() -> None:
    router = _router()
    router.on_kv_event("a", KvStored(blocks=tuple(range(1, 9))), 0)
    soon = router.choose(_arrival(), [replace(A, room_in_ns=200 * MS), B], 0)
    late = router.choose(_arrival(), [replace(A, room_in_ns=2_000 * MS), B], 0)
    assert (soon.replica, late.replica) == ("a", "b")
    assert soon.scores[0].room_ns == 200 * MS


@pytest.mark.parametrize("view", [replace(A, room_in_ns=None), replace(A, exclusive=True)])
def test_a_replica_that_promises_no_room_comes_last_when_there_is_another(view: View) -> None:
    router = _router()
    router.on_kv_event("a", KvStored(blocks=tuple(range(1, 9))), 0)
    assert router.choose(_arrival(), [view, replace(B, pending_prefill_tokens=90_000)], 0).replica == "b"
    assert router.choose(_arrival(), [view], 0).replica == "a"


def test_a_long_request_waits_when_the_last_free_replica_is_kept_for_shorts() -> None:
    router = _router()
    router.on_dispatch(_arrival("short"), "c", 0)
    views = [replace(A, pending_prefill_tokens=200_000), replace(B, pending_prefill_tokens=200_000), C]
    choice = router.choose(_arrival(tokens=200_000, first=5_000), views, 1)
    assert choice.replica is None
    assert choice.best is not None
    assert choice.best.replica == "c"
    assert choice.reason == "no replica now: kept for short requests"
    assert router.choose(_arrival("other", tokens=1_000, first=9_000), views, 1).replica == "c"
    a_minute_later = 61 * NS_PER_S  # no short request since: nothing is kept idle for them
    assert router.choose(_arrival(tokens=200_000, first=5_000), views, a_minute_later).replica == "c"


def test_a_long_prompt_is_short_where_its_beginning_is_cached() -> None:
    router = _router()
    router.on_dispatch(_arrival("short", first=9_000), "c", 0)
    router.on_kv_event("b", KvStored(blocks=tuple(range(1, 1_991))), 0)
    views = [replace(A, pending_prefill_tokens=200_000), replace(B, pending_prefill_tokens=40_000), C]
    choice = router.choose(_arrival(tokens=200_000), views, 1)
    assert [score.note for score in choice.scores] == [
        "a long prefill is running there",
        "",
        "kept for short requests",
    ]
    assert choice.replica == "b"


def test_a_session_keeps_its_replica_when_block_names_are_not_known() -> None:
    router = _router()
    first = _arrival("1", tokens=8_000, first=0, session="s")
    router.on_dispatch(first, "b", 0)
    choice = router.choose(_arrival("2", tokens=9_000, first=0, session="s"), [A, B, C], 1)
    assert choice.replica == "b"
    assert choice.scores[1].cached_tokens == 8_000
    router.forget("b")
    assert router.choose(_arrival("3", tokens=9_000, first=0, session="s"), [A, B, C], 1).scores[1].cached_tokens == 0


def test_nothing_is_expected_of_a_replica_when_it_was_restarted() -> None:
    router = _router()
    router.on_kv_event("a", KvStored(blocks=tuple(range(1, 9))), 0)
    router.on_kv_event("b", KvStored(blocks=tuple(range(1, 9))), 0)
    router.on_kv_event("a", KvCleared(), 0)
    assert [score.cached_tokens for score in router.choose(_arrival(), [A, B], 0).scores] == [0, 800]
    router.forget("b")
    assert [score.cached_tokens for score in router.choose(_arrival(), [A, B], 0).scores] == [0, 0]
    router.on_kv_event("b", KvStored(blocks=(1, 2)), 0)  # it is followed on, from nothing
    assert router.choose(_arrival(), [A, B], 0).scores[1].cached_tokens == 200


def test_contents_are_guessed_from_our_own_traffic_when_a_replica_publishes_nothing() -> None:
    router = PrefixRouter()
    router.follow("a", block_tokens=BLOCK, cache_blocks=1_000, events=False)
    router.follow("b", block_tokens=BLOCK, cache_blocks=None, events=False)
    first = _arrival("1")
    for name in "ab":
        router.on_dispatch(first, name, 0)
        router.on_end(first, name, None, 1)
    scores = router.choose(_arrival("2", tokens=1_050), [A, B], 2).scores
    assert [score.cached_tokens for score in scores] == [1_000, 0]  # of b nobody knows how much it can hold


def test_the_index_shows_how_far_it_can_be_trusted_when_replies_tell_what_was_cached() -> None:
    router = _router()
    router.on_kv_event("a", KvStored(blocks=tuple(range(1, 11))), 0)
    arrival = _arrival()
    router.on_dispatch(arrival, "a", 0)
    router.on_end(arrival, "a", 300, 1)
    figures = router.index.figures("a")
    assert (figures.predicted_blocks, figures.found_blocks) == (10, 3)


@given(
    st.lists(st.tuples(st.integers(0, 50_000), st.integers(0, 40), st.integers(0, 30)), min_size=1, max_size=5),
    st.integers(1, 4_000),
)
def test_a_choice_is_the_same_and_changes_nothing_when_it_is_asked_for_twice(
    loads: list[tuple[int, int, int]], tokens: int
) -> None:
    router = PrefixRouter()
    views: list[View] = []
    for at, (pending, blocks, decoding) in enumerate(loads):
        router.follow(str(at), block_tokens=BLOCK, cache_blocks=500, events=True)
        router.on_kv_event(str(at), KvStored(blocks=tuple(range(1, 1 + blocks))), 0)
        views.append(View(str(at), pending_prefill_tokens=pending, decoding=decoding))
    arrival = _arrival(tokens=tokens)
    choice = router.choose(arrival, views, 0)
    assert choice == router.choose(arrival, views, 0)
    assert choice.replica is not None
    assert choice.best is not None
    assert choice.best.cost_ns == min(score.cost_ns for score in choice.scores)
    assert all(score.cached_tokens + score.uncached_tokens == tokens for score in choice.scores)
    assert all(score.cost_ns >= score.predicted_ttft_ns for score in choice.scores)


@given(
    st.lists(st.tuples(st.integers(0, 5_000), st.integers(0, 40)), min_size=2, max_size=5),
    st.integers(100, 4_000),
    st.integers(1, 50_000),
)
def test_more_work_on_a_replica_never_draws_a_request_there(
    loads: list[tuple[int, int]], tokens: int, more: int
) -> None:
    router = PrefixRouter(RoutingRule(pools=PoolRule(long_from_tokens=None)))
    views: list[View] = []
    for at, (pending, blocks) in enumerate(loads):
        router.follow(str(at), block_tokens=BLOCK, cache_blocks=500, events=True)
        router.on_kv_event(str(at), KvStored(blocks=tuple(range(1, 1 + blocks))), 0)
        views.append(View(str(at), pending_prefill_tokens=pending))
    arrival = _arrival(tokens=tokens)
    chosen = router.choose(arrival, views, 0).replica
    for at, view in enumerate(views):
        if view.name != chosen:
            busier = [
                *views[:at],
                replace(view, pending_prefill_tokens=view.pending_prefill_tokens + more),
                *views[at + 1 :],
            ]
            assert router.choose(arrival, busier, 0).replica == chosen


def test_a_request_meant_for_one_replica_goes_there_or_waits_when_others_are_better() -> None:
    router = _router()
    router.on_kv_event("b", KvStored(blocks=tuple(range(1, 9))), 0)
    meant = replace(_arrival(), only="c")
    assert router.choose(meant, [A, B, replace(C, pending_prefill_tokens=30_000)], 0).replica == "c"
    away = router.choose(meant, [A, B], 0)
    assert (away.replica, away.reason) == (None, "no replica now: it is meant for c")


def test_watchers_hear_of_every_dispatch_with_what_was_expected_in_the_cache() -> None:
    router = _router()
    heard: list[tuple[str, str, int, int]] = []
    router.watchers.append(lambda arrival, replica, blocks, now_ns: heard.append((arrival.id, replica, blocks, now_ns)))
    router.on_kv_event("a", KvStored(blocks=(1, 2, 3)), 0)
    router.on_dispatch(_arrival(), "a", 7)
    assert heard == [("r", "a", 3, 7)]


def test_weights_below_zero_are_refused_when_a_rule_is_made() -> None:
    with pytest.raises(ValueError, match="negative"):
        RoutingRule(uncached_weight=-1)
