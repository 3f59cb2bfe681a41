"""The ledger: what is held and what is free add up to the capacity, at every moment."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from longproof.policy.ledger import Ledger, Pool, Shortage
from longproof.policy.need import BlockNeed, WindowNeed


def two_stages() -> Ledger:
    return Ledger.of(
        [
            Pool(stage="prefill", capacity_blocks=10, need=BlockNeed(block_tokens=64)),
            Pool(stage="decode", capacity_blocks=4, need=BlockNeed(block_tokens=64)),
        ]
    )


def test_reserve_takes_whole_blocks_at_every_stage_when_it_fits() -> None:
    ledger = two_stages()
    # 129 tokens in blocks of 64: 3 blocks
    assert ledger.reserve("a", {"prefill": 129, "decode": 129}) is None
    assert [s.free_blocks for s in ledger.states()] == [7, 1]
    assert ledger.holds("a") == {"prefill": 3, "decode": 3}


def test_reserve_takes_nothing_anywhere_when_one_stage_is_short() -> None:
    ledger = two_stages()
    # 5 blocks fit prefill (10) but not decode (4)
    assert ledger.reserve("a", {"prefill": 320, "decode": 320}) == Shortage(
        pool="decode", wanted_blocks=5, free_blocks=4
    )
    assert [s.held_blocks for s in ledger.states()] == [0, 0]
    assert ledger.holds("a") == {}


def test_grow_takes_only_the_difference_when_a_request_gets_longer() -> None:
    ledger = two_stages()
    ledger.reserve("a", {"prefill": 64, "decode": 64})
    assert ledger.grow("a", {"decode": 256}) is None  # 1 → 4 blocks
    assert ledger.holds("a") == {"prefill": 1, "decode": 4}
    assert ledger.grow("a", {"decode": 257}) == Shortage(pool="decode", wanted_blocks=1, free_blocks=0)
    assert ledger.holds("a") == {"prefill": 1, "decode": 4}


def test_release_gives_back_one_stage_when_prefill_hands_over() -> None:
    ledger = two_stages()
    ledger.reserve("a", {"prefill": 128, "decode": 128})
    assert ledger.release("a", "prefill") == {"prefill": 2}
    assert [(s.held_blocks, s.requests) for s in ledger.states()] == [(0, 0), (2, 1)]
    assert ledger.release("a") == {"decode": 2}
    assert ledger.release("a") == {}
    assert [s.free_blocks for s in ledger.states()] == [10, 4]


def test_growth_may_use_the_watermark_when_admission_may_not() -> None:
    ledger = Ledger.of([Pool(stage="kv", capacity_blocks=10, watermark_blocks=2)])
    ledger.reserve("a", {"kv": 8})
    assert ledger.state("kv").admissible_blocks == 0
    assert ledger.grow("a", {"kv": 10}) is None
    assert ledger.state("kv").free_blocks == 0


def test_misuse_raises_when_a_request_reserves_twice_or_shrinks() -> None:
    ledger = two_stages()
    ledger.reserve("a", {"decode": 128})
    with pytest.raises(ValueError, match="holds blocks already"):
        ledger.reserve("a", {"decode": 64})
    with pytest.raises(ValueError, match="cannot grow to less"):
        ledger.grow("a", {"decode": 64})
    with pytest.raises(KeyError):
        ledger.grow("b", {"decode": 64})
    with pytest.raises(ValueError, match="two pools are called kv"):
        Ledger.of([Pool(stage="kv", capacity_blocks=1), Pool(stage="kv", capacity_blocks=2)])


def test_need_adds_groups_windows_and_states_when_a_model_is_hybrid() -> None:
    # Gemma-3-270m at 32,768 tokens in vLLM 0.32 (blocks of 128): full 256, five window groups of
    # ceil((512 - 1 + 2048) / 128) + 1 = 21 → 256 + 5 · 21 = 361
    need = BlockNeed(block_tokens=128, windows=(WindowNeed(window_tokens=512 - 1 + 2048),) * 5)
    assert need.blocks(32_768) == 361
    assert need.blocks(0) == 0
    assert need.blocks(1) == 1 + 5 * 2


@given(
    block=st.integers(1, 256),
    groups=st.integers(0, 4),
    windows=st.lists(st.integers(1, 5000), max_size=3),
    fixed=st.integers(0, 5),
    lengths=st.tuples(st.integers(0, 100_000), st.integers(0, 100_000)),
    blocks=st.integers(0, 5000),
)
def test_need_never_shrinks_and_is_inverted_when_lengths_vary(
    block: int, groups: int, windows: list[int], fixed: int, lengths: tuple[int, int], blocks: int
) -> None:
    need = BlockNeed(
        block_tokens=block,
        full_groups=groups,
        windows=tuple(WindowNeed(window_tokens=w) for w in windows),
        fixed_blocks=fixed,
    )
    shorter, longer = sorted(lengths)
    assert need.blocks(shorter) <= need.blocks(longer)
    longest = need.longest_tokens(blocks, at_most=100_000)
    assert need.blocks(longest) <= blocks
    assert longest == 100_000 or need.blocks(longest + 1) > blocks


def prefix(*tokens: int) -> tuple[int, ...]:
    """Names of blocks, each standing for all before it."""
    return tuple(hash(tokens[: i + 1]) for i in range(len(tokens)))


def test_a_shared_prefix_is_held_once_when_two_requests_have_it() -> None:
    ledger = Ledger.of([Pool(stage="kv", capacity_blocks=100, need=BlockNeed(block_tokens=16))], block_tokens=16)
    # 64 tokens of shared prompt (4 blocks), and 20 and 40 tokens of their own
    assert ledger.reserve("a", {"kv": 84}, prefix(1, 2, 3, 4)) is None  # ⌈84 / 16⌉ = 6
    ledger.computed("a")
    assert ledger.found_blocks(prefix(1, 2, 3, 4)) == {"kv": 4}
    assert ledger.reserve("b", {"kv": 104}, prefix(1, 2, 3, 4)) is None  # ⌈104 / 16⌉ = 7, of which 4 are there
    assert ledger.state("kv").held_blocks == 6 + 7 - 4
    assert ledger.holds("b") == {"kv": 7}


def test_a_shared_prefix_stays_pinned_when_the_request_that_brought_it_ends() -> None:
    ledger = Ledger.of([Pool(stage="kv", capacity_blocks=100, need=BlockNeed(block_tokens=16))], block_tokens=16)
    ledger.reserve("a", {"kv": 84}, prefix(1, 2, 3, 4))
    ledger.computed("a")
    ledger.reserve("b", {"kv": 104}, prefix(1, 2, 3, 4))
    assert ledger.release("a") == {"kv": 2}  # its own two; the four are b's now
    assert ledger.state("kv").held_blocks == 7
    assert ledger.release("b") == {"kv": 7}


def test_the_same_prompt_is_held_twice_when_neither_is_computed_yet() -> None:
    # an engine that prefills two equal prompts at once computes both: to share them on paper would admit too much
    ledger = Ledger.of([Pool(stage="kv", capacity_blocks=10, need=BlockNeed(block_tokens=16))], block_tokens=16)
    assert ledger.reserve("a", {"kv": 96}, prefix(*range(6))) is None
    assert ledger.reserve("b", {"kv": 96}, prefix(*range(6))) == Shortage(pool="kv", wanted_blocks=6, free_blocks=4)
    ledger.computed("a")
    assert ledger.reserve("b", {"kv": 96}, prefix(*range(6))) is None
    assert ledger.state("kv").held_blocks == 6


def test_named_blocks_are_converted_when_the_pool_has_larger_ones() -> None:
    # 5 named blocks of 16 tokens = 80 tokens: one whole block of 64; twice, for two groups of layers
    need = BlockNeed(block_tokens=64, full_groups=2, fixed_blocks=1)
    ledger = Ledger.of([Pool(stage="kv", capacity_blocks=100, need=need)], block_tokens=16)
    ledger.reserve("a", {"kv": 80}, prefix(*range(5)))  # 2 · 2 + 1 = 5
    ledger.computed("a")
    ledger.reserve("b", {"kv": 80}, prefix(*range(5)))  # 5 less 2 · 1
    assert ledger.state("kv").held_blocks == 8


def test_a_prefix_is_cut_to_the_length_when_it_is_named_too_long() -> None:
    ledger = Ledger.of([Pool(stage="kv", capacity_blocks=100)], block_tokens=4)
    ledger.reserve("a", {"kv": 9}, prefix(1, 2, 3, 4))
    assert ledger.state("kv").held_blocks == 9
    assert ledger.release("a") == {"kv": 9}


def test_a_true_length_shrinks_the_reservation_when_it_was_a_bound() -> None:
    ledger = Ledger.of([Pool(stage="kv", capacity_blocks=10)], block_tokens=1)
    ledger.reserve("a", {"kv": 8})
    assert ledger.correct("a", {"kv": 3}) is None
    assert ledger.state("kv").held_blocks == 3
    assert ledger.correct("a", {"kv": 11}) == Shortage(pool="kv", wanted_blocks=8, free_blocks=7)
    assert ledger.holds("a") == {"kv": 3}


def test_foreign_blocks_are_not_free_and_never_more_than_there_is() -> None:
    ledger = Ledger.of([Pool(stage="kv", capacity_blocks=10)])
    ledger.reserve("a", {"kv": 4})
    ledger.set_foreign("kv", 100)
    assert (ledger.state("kv").held_blocks, ledger.state("kv").free_blocks) == (10, 0)
    ledger.set_foreign("kv", 3)
    assert ledger.state("kv").free_blocks == 3


def test_nothing_new_enters_before_the_low_mark_when_growth_has_passed_the_high_one() -> None:
    ledger = Ledger.of([Pool(stage="kv", capacity_blocks=100, watermark_blocks=10, resume_blocks=70)])
    ledger.reserve("a", {"kv": 60})
    ledger.reserve("b", {"kv": 30})
    assert not ledger.state("kv").stopped  # 90 held: full, but admission alone never stops it
    ledger.grow("a", {"kv": 61})
    assert ledger.state("kv").stopped
    ledger.release("b")  # 61 held ≤ 70
    assert not ledger.state("kv").stopped
    ledger.reserve("c", {"kv": 30})  # 91
    ledger.correct("c", {"kv": 20})  # 81: between the marks
    assert (ledger.state("kv").stopped, ledger.state("kv").admissible_blocks) == (True, 0)


def test_used_blocks_are_those_reached_when_more_was_reserved() -> None:
    ledger = Ledger.of([Pool(stage="kv", capacity_blocks=100, need=BlockNeed(block_tokens=16))], block_tokens=16)
    ledger.reserve("a", {"kv": 320}, prefix(1, 2))  # 20 blocks, 2 of them named
    ledger.reserve("b", {"kv": 160})
    # a has reached 50 tokens: 4 blocks; b is not named: all its 10
    assert ledger.used_blocks({"a": 50}) == {"kv": 14}


class Books(RuleBasedStateMachine):
    """Random reservations, growths and releases; an independent sum of what every request holds must agree."""

    held = Bundle("held")

    @initialize(capacities=st.lists(st.integers(0, 60), min_size=1, max_size=3), block=st.integers(1, 8))
    def open(self, capacities: list[int], block: int) -> None:
        pools = [
            Pool(stage=f"s{i}", capacity_blocks=c, need=BlockNeed(block_tokens=block)) for i, c in enumerate(capacities)
        ]
        self.ledger = Ledger.of(pools)
        self.capacities = capacities
        self.length: dict[str, int] = {}
        self.count = 0

    @rule(target=held, tokens=st.integers(0, 120))
    def reserve(self, tokens: int) -> str:
        self.count += 1
        name = f"r{self.count}"
        if self.ledger.reserve(name, dict.fromkeys(self.ledger.pools, tokens)) is None:
            self.length[name] = tokens
        return name

    @rule(request=held, more=st.integers(0, 40))
    def grow(self, request: str, more: int) -> None:
        if request in self.length:
            wanted = self.length[request] + more
            if self.ledger.grow(request, dict.fromkeys(self.ledger.pools, wanted)) is None:
                self.length[request] = wanted

    @rule(request=consumes(held))
    def release(self, request: str) -> None:
        self.ledger.release(request)
        self.length.pop(request, None)
        assert self.ledger.holds(request) == {}

    @invariant()
    def nothing_is_lost(self) -> None:
        for state, capacity in zip(self.ledger.states(), self.capacities, strict=True):
            held = sum(state.pool.need.blocks(tokens) for tokens in self.length.values())
            assert state.held_blocks == held
            assert state.free_blocks == capacity - held >= 0
            assert state.requests == len(self.length)


TestBooks = Books.TestCase


class SharedBooks(RuleBasedStateMachine):
    """The same with prefixes, corrections and foreign blocks: no history makes the books lie or overflow."""

    held = Bundle("shared")

    @initialize(
        capacity=st.integers(0, 60), block=st.sampled_from([1, 4, 6]), groups=st.integers(1, 2), named=st.integers(1, 6)
    )
    def open(self, capacity: int, block: int, groups: int, named: int) -> None:
        need = BlockNeed(block_tokens=block, full_groups=groups)
        pool = Pool(
            stage="kv", capacity_blocks=capacity, need=need, watermark_blocks=capacity // 5, resume_blocks=capacity // 2
        )
        self.ledger, self.need, self.named, self.capacity = Ledger.of([pool], block_tokens=named), need, named, capacity
        self.length: dict[str, int] = {}
        self.count = 0

    @rule(target=held, tokens=st.integers(0, 60), names=st.lists(st.integers(0, 1), max_size=8))
    def reserve(self, tokens: int, names: list[int]) -> str:
        self.count += 1
        name, chain = f"r{self.count}", prefix(*names)
        found = self.ledger.found_blocks(chain[: tokens // self.named]).get("kv", 0)
        before = self.ledger.state("kv")
        short = self.ledger.reserve(name, {"kv": tokens}, chain)
        taken = self.need.blocks(tokens) - found
        assert (short is None) == (taken <= before.free_blocks)
        if short is None:
            self.length[name] = tokens
            assert self.ledger.state("kv").held_blocks == before.held_blocks + taken
        return name

    @rule(request=held)
    def computed(self, request: str) -> None:
        held = self.ledger.state("kv").held_blocks
        self.ledger.computed(request)
        assert self.ledger.state("kv").held_blocks == held

    @rule(request=held, tokens=st.integers(0, 80))
    def correct(self, request: str, tokens: int) -> None:
        if request in self.length and self.ledger.correct(request, {"kv": tokens}) is None:
            self.length[request] = tokens

    @rule(blocks=st.integers(0, 80))
    def foreign(self, blocks: int) -> None:
        self.ledger.set_foreign("kv", blocks)

    @rule(request=consumes(held))
    def release(self, request: str) -> None:
        before = self.ledger.state("kv").free_blocks
        given = self.ledger.release(request).get("kv", 0)
        assert self.ledger.state("kv").free_blocks == before + given
        self.length.pop(request, None)
        assert self.ledger.release(request) == {}

    @invariant()
    def held_and_free_are_the_capacity(self) -> None:
        account, state = self.ledger.accounts["kv"], self.ledger.state("kv")
        assert state.held_blocks + state.free_blocks == self.capacity
        assert min(account.own_blocks, account.shared_blocks, account.foreign_blocks, state.free_blocks) >= 0
        assert state.requests == len(self.length)
        single = sum(self.ledger.holds(request)["kv"] for request in self.length)
        assert account.own_blocks + account.shared_blocks <= single  # sharing never costs
        if not self.length:
            assert (account.own_blocks, account.shared_blocks, account.prefixes.blocks_in_use) == (0, 0, 0)


TestSharedBooks = SharedBooks.TestCase


def test_growth_within_a_prefix_that_is_longer_than_the_request_takes_nothing() -> None:
    ledger = Ledger.of([Pool(stage="kv", capacity_blocks=100, need=BlockNeed(block_tokens=16))])
    ledger.reserve("a", {"kv": 160}, tuple(range(10)))
    ledger.correct("a", {"kv": 40})  # its true length: less than the ten blocks it refers to
    assert ledger.grow("a", {"kv": 60}) is None
    assert ledger.state("kv").held_blocks == 10
