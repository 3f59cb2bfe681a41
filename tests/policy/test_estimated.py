"""Requests whose length is estimated and whose blocks are named by their text."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longproof.domain.kv_event import KvCleared, KvGap, KvRemoved, KvStored
from longproof.policy.actions import Dispatch, Refusal, Wait
from longproof.policy.arrivals import Arrival, Ended, EndKind
from longproof.policy.claim_gate import ProvenLimits
from longproof.policy.controller import Controller
from longproof.policy.controller_config import ControllerConfig
from longproof.policy.prefix import PrefixIndex
from longproof.policy.routing import PrefixRouter
from longproof.policy.spread_names import SpreadNames
from longproof.testing.controllers import LeastBacklog, S, arrival, replica_rule

NAMES = tuple(range(1_000, 1_100))


def estimated(name: str, tokens: int, *, blocks: tuple[int, ...] = NAMES, by_text: int = 4, output: int = 1) -> Arrival:
    return replace(arrival(name, tokens, output, exact=False), blocks=blocks, by_text=by_text)


def one_replica(*, limit: int | None = None, capacity: int = 1_000_000) -> Controller:
    rule = replica_rule(capacity_blocks=capacity, limit_tokens=limit)
    return Controller(ControllerConfig(replicas=(rule,)), LeastBacklog())


def test_an_estimate_is_sent_at_once_when_it_is_far_from_any_limit() -> None:
    assert isinstance(one_replica(limit=50_000).on_arrival(estimated("a", 20_000), 0), Dispatch)


def test_names_alone_are_waited_for_when_a_long_text_has_none_yet() -> None:
    gateway = one_replica(limit=50_000)
    wait = gateway.on_arrival(estimated("a", 20_000, blocks=()), 0)
    assert isinstance(wait, Wait)
    assert (wait.count, wait.exact, wait.reserved) == (True, False, True)
    (sent,) = gateway.on_counted("a", 20_000, NAMES, 0, by_text=4)
    assert isinstance(sent, Dispatch)


@pytest.mark.parametrize(("exact", "sent"), [(49_000, True), (51_000, False)])
def test_the_exact_length_decides_when_an_estimate_is_near_a_limit(exact: int, sent: bool) -> None:
    gateway = one_replica(limit=50_000)
    wait = gateway.on_arrival(estimated("a", 52_000), 0)
    assert isinstance(wait, Wait)
    assert (wait.count, wait.exact) == (True, True)
    (word,) = gateway.on_counted("a", exact, NAMES, 0, by_text=4)
    assert isinstance(word, Dispatch if sent else Refusal)
    if isinstance(word, Refusal):
        assert (word.limit, word.actual) == (50_000, exact + 1)


def test_a_prompt_is_refused_uncounted_when_the_least_it_can_be_is_too_long() -> None:
    refused = one_replica(limit=50_000).on_arrival(estimated("a", 100_000), 0)
    assert isinstance(refused, Refusal)
    # three fifths of the estimate, and one token of output
    assert (refused.limit, refused.actual) == (50_000, 60_001)
    assert "estimated" in refused.reason


def test_an_estimate_asks_for_the_exact_length_when_its_claim_ends_nearby() -> None:
    proven = {"m": ProvenLimits(model="m", admitted_tokens=100_000, effective_tokens=40_000)}
    rule = replica_rule(capacity_blocks=1_000_000)
    gateway = Controller(ControllerConfig(replicas=(rule,), proven=proven), LeastBacklog())
    near = gateway.on_arrival(estimated("near", 45_000), 0)
    assert isinstance(near, Wait)
    assert (near.count, near.exact) == (True, True)
    assert isinstance(gateway.on_arrival(estimated("far", 20_000), 0), Dispatch)


def test_only_names_are_wanted_when_an_estimate_waits_for_room() -> None:
    gateway = one_replica(capacity=30_000)
    assert isinstance(gateway.on_arrival(arrival("full", 25_000), 0), Dispatch)
    wait = gateway.on_arrival(estimated("a", 20_000, blocks=()), 0)
    assert isinstance(wait, Wait)
    assert (wait.count, wait.exact, wait.reserved) == (True, False, False)


def test_a_conversation_comes_back_to_its_replica_when_its_text_is_named() -> None:
    rules = tuple(replica_rule(name, capacity_blocks=100_000) for name in ("r0", "r1"))
    router = PrefixRouter()
    for name in ("r0", "r1"):
        router.follow(name, block_tokens=1, cache_blocks=100_000, events=True)
    gateway = Controller(ControllerConfig(replicas=rules), router)
    first = gateway.on_arrival(estimated("one", 5_000), 0)
    assert isinstance(first, Dispatch)
    gateway.on_first_token("one", S)
    end = Ended(kind=EndKind.COMPLETED, input_tokens=5_000, output_tokens=1, cached_tokens=0)
    gateway.on_finish("one", end, 2 * S)
    again = gateway.on_arrival(estimated("two", 10_000, blocks=(*NAMES, *range(5_000, 5_100))), 3 * S)
    assert isinstance(again, Dispatch)
    # half of its 200 blocks are there, and so is half of its tokens
    assert (again.replica, again.cached_tokens) == (first.replica, 5_000)


def test_the_ledger_counts_shared_text_once_when_two_use_it_together() -> None:
    rule = replica_rule(capacity_blocks=100_000)
    gateway = Controller(ControllerConfig(replicas=(rule,)), LeastBacklog())
    gateway.on_arrival(estimated("one", 1_000), 0)
    gateway.on_first_token("one", S)
    alone = gateway.snapshot(S).replicas[0].stages[0].held_blocks
    gateway.on_arrival(estimated("two", 1_000, output=1), S)
    both = gateway.snapshot(S).replicas[0].stages[0].held_blocks
    # 100 names that stand for 4 blocks each are there already; of the second, the rest is its own
    assert (alone, both) == (1_001, 1_001 + 1_001 - 400)


def test_names_of_text_are_guessed_beside_events_that_never_speak_of_them() -> None:
    index = PrefixIndex()
    index.add("a", capacity_blocks=1_000, events=True)
    index.apply("a", KvStored(blocks=(1, 2, 3)))
    assert index.use("r", "a", NAMES, by_text=4, block_size=4.0) == 0
    assert index.match("a", NAMES).blocks == 100
    index.unuse("r", kept=True)
    assert index.match("a", NAMES).blocks == 100
    assert index.match("a", (1, 2, 3)).blocks == 3
    assert index.known_blocks("a") == 3  # what events told
    index.apply("a", KvRemoved(blocks=(3,)))
    index.apply("a", KvGap(reason="a test"))
    assert index.match("a", NAMES).blocks == 100
    index.apply("a", KvCleared(reason="a test"))
    assert index.match("a", NAMES).blocks == 0


def test_fewer_blocks_fit_when_a_block_of_text_is_larger_than_one_of_the_replica() -> None:
    index = PrefixIndex()
    index.add("a", capacity_blocks=1_000, events=True)
    for number in range(20):
        blocks = tuple(range(number * 100, number * 100 + 100))
        index.use(str(number), "a", blocks, by_text=4, block_size=5.0)
        index.unuse(str(number), kept=True)
    # 1,000 blocks hold 200 that are five times as large: the last two prompts
    held = [index.match("a", tuple(range(number * 100, number * 100 + 100))).blocks for number in range(20)]
    assert held == [0] * 18 + [100, 100]


def test_what_was_found_is_held_against_what_was_promised_when_blocks_are_of_text() -> None:
    router = PrefixRouter()
    router.follow("r0", block_tokens=1, cache_blocks=100_000, events=True)
    first, second = estimated("one", 5_000), estimated("two", 5_000)
    router.on_dispatch(first, "r0", 0)
    router.on_end(first, "r0", 0, S)
    router.on_dispatch(second, "r0", 2 * S)
    router.on_end(second, "r0", 2_500, 3 * S)
    figures = router.index.figures("r0")
    # promised all 100 blocks of the second; 2,500 of its 5,000 tokens are 50 of them
    assert (figures.predicted_blocks, figures.found_blocks) == (100, 50)


@given(st.lists(st.integers(0, 2**64 - 1), max_size=6), st.integers(1, 5), st.integers(-40, 40), st.integers(-40, 40))
def test_spread_names_are_a_sequence_like_any_other(names: list[int], each: int, one: int, two: int) -> None:
    wanted = [name + part for name in names for part in range(each)]
    spread = SpreadNames(tuple(names), each)
    assert list(spread) == wanted
    assert len(spread) == len(wanted)
    assert list(spread[one:two]) == wanted[one:two]
    assert list(spread[:two][:one]) == wanted[:two][:one]
    if -len(wanted) <= one < len(wanted):
        assert spread[one] == wanted[one]
    else:
        with pytest.raises(IndexError):
            spread[one]
