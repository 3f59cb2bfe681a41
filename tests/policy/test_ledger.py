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
