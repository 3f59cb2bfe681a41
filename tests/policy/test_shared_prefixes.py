"""Prefixes in use: the tree against a reference that keeps every block by itself."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from longproof.policy.shared_prefixes import Pin, SharedPrefixes


def chain(*tokens: int) -> tuple[int, ...]:
    """Names of blocks that stand for all before them, as hashes do."""
    return tuple(hash(("block", tokens[: i + 1])) for i in range(len(tokens)))


def test_a_shared_beginning_is_counted_once_when_two_requests_use_it() -> None:
    prefixes = SharedPrefixes()
    first = prefixes.pin(chain(1, 2, 3, 4))
    prefixes.computed(first)
    second = prefixes.pin(chain(1, 2, 9))
    assert (second.found, second.depth) == (2, 3)
    assert prefixes.blocks_in_use == 5  # 1 2 3 4 and 9


def test_blocks_stay_when_one_of_two_requests_ends() -> None:
    prefixes = SharedPrefixes()
    first = prefixes.pin(chain(1, 2, 3, 4))
    prefixes.computed(first)
    second = prefixes.pin(chain(1, 2))
    assert prefixes.unpin(first) == (2, 4)  # 3 and 4 are nobody's any more, 1 and 2 are still used
    assert prefixes.blocks_in_use == 2
    assert prefixes.unpin(second) == (0, 2)
    assert prefixes.blocks_in_use == 0


def test_blocks_are_not_shared_before_they_are_computed() -> None:
    prefixes = SharedPrefixes()
    first = prefixes.pin(chain(1, 2, 3))
    assert prefixes.found(chain(1, 2, 3)) == 0
    second = prefixes.pin(chain(1, 2, 3))
    assert (second.found, second.depth) == (0, 0)  # it computes them again, in blocks of its own
    prefixes.computed(first)
    assert prefixes.found(chain(1, 2, 3)) == 3
    prefixes.unpin(second)
    assert prefixes.blocks_in_use == 3


def test_what_the_engine_has_cached_is_shared_at_once() -> None:
    prefixes = SharedPrefixes()
    first = prefixes.pin(chain(1, 2, 3, 4), 2)
    assert prefixes.found(chain(1, 2, 3, 4)) == 2
    second = prefixes.pin(chain(1, 2, 9), 2)
    assert (second.found, second.depth) == (2, 3)
    assert prefixes.blocks_in_use == 5  # 1 2 3 4 and 9
    # a third comes when the engine has announced 3 as well, though the first has not produced a token
    third = prefixes.pin(chain(1, 2, 3, 7), 3)
    assert (third.found, third.depth) == (3, 4)
    prefixes.computed(first)
    for pin in (first, second, third):
        prefixes.unpin(pin)
    assert (prefixes.runs, prefixes.blocks_in_use) == (0, 0)


def test_pinning_costs_no_time_per_block_when_a_prompt_is_long() -> None:
    prefixes, steps = SharedPrefixes(), 0

    class Names(list[int]):
        def __getitem__(self, at):  # type: ignore[no-untyped-def]
            nonlocal steps
            steps += 1
            return super().__getitem__(at)

    first = prefixes.pin(Names(chain(*range(4_096))))
    prefixes.computed(first)
    steps = 0
    prefixes.pin(Names(chain(*range(2_000), *range(5_000, 5_100))))
    assert steps < 60  # two bisections of 2^12, not 2,000 looks


@pytest.mark.parametrize("tail", [(), (99,)])
@pytest.mark.parametrize("at_once", [True, False])
def test_runs_do_not_pile_up_when_many_leave_a_long_prefix_at_many_points(tail: tuple[int, ...], at_once: bool) -> None:
    prefixes = SharedPrefixes()
    prefixes.computed(prefixes.pin(chain(*range(50))))
    pins = []
    for end in range(1, 50):
        pins.append(prefixes.pin(chain(*range(end), *tail)))
        prefixes.computed(pins[-1])
        if not at_once:
            prefixes.unpin(pins.pop())
            assert prefixes.runs == 1
    for pin in pins:
        prefixes.unpin(pin)
    assert (prefixes.runs, prefixes.blocks_in_use) == (1, 50)


def test_two_runs_become_one_when_the_second_is_computed_after_the_first_has_gone() -> None:
    prefixes = SharedPrefixes()
    first = prefixes.pin(chain(1, 2))
    prefixes.computed(first)
    longer = prefixes.pin(chain(1, 2, 3))
    prefixes.unpin(first)
    assert (prefixes.runs, prefixes.found(chain(1, 2, 3))) == (2, 2)
    prefixes.computed(longer)
    assert (prefixes.runs, prefixes.found(chain(1, 2, 3))) == (1, 3)


class Reference:
    """Block by block: who refers to it, and who brought it."""

    def __init__(self) -> None:
        self.refs: dict[int, int] = {}
        self.ready: dict[int, bool] = {}
        self.paths: dict[int, tuple[int, ...]] = {}
        self.own: dict[int, tuple[int, ...]] = {}

    def pin(self, request: int, names: tuple[int, ...], cached: int) -> tuple[int, int]:
        found = 0
        while found < len(names) and names[found] in self.ready and (self.ready[names[found]] or found < cached):
            self.ready[names[found]] = True
            found += 1
        blocked = found < len(names) and names[found] in self.ready
        path = names[:found] if blocked else names
        self.own[request] = path[max(found, min(cached, len(path))) :]
        for at, name in enumerate(path[found:], found):
            self.ready[name] = at < cached
        for name in path:
            self.refs[name] = self.refs.get(name, 0) + 1
        self.paths[request] = path
        return found, len(path)

    def computed(self, request: int) -> None:
        for name in self.own[request]:
            self.ready[name] = True
        self.own[request] = ()

    def unpin(self, request: int) -> int:
        gone = 0
        for name in self.paths.pop(request):
            self.refs[name] -= 1
            if not self.refs[name]:
                del self.refs[name], self.ready[name]
                gone += 1
        return gone


tokens_of_chains = st.lists(st.integers(0, 2), max_size=8)
chains = tokens_of_chains.map(lambda tokens: chain(*tokens))


class Tree(RuleBasedStateMachine):
    """Any history of pins: the tree says what a table of blocks says."""

    pins = Bundle("pins")

    def __init__(self) -> None:
        super().__init__()
        self.tree, self.table = SharedPrefixes(), Reference()
        self.number = 0
        self.tokens: dict[int, list[int]] = {}

    @rule(target=pins, held=pins, at=st.integers(0, 8), tail=st.lists(st.integers(0, 2), max_size=2))
    def pin_beside(self, held: tuple[int, Pin], at: int, tail: list[int]) -> tuple[int, Pin]:
        """A turn of somebody's conversation, or another end of it: what was sent before is computed."""
        self.computed(held)
        return self.pin([*self.tokens[held[0]][:at], *tail], 0)

    @rule(target=pins, tokens=tokens_of_chains, cached=st.integers(0, 9))
    def pin(self, tokens: list[int], cached: int) -> tuple[int, Pin]:
        self.number += 1
        self.tokens[self.number], names = tokens, chain(*tokens)
        before = self.tree.found(names, cached)
        pin = self.tree.pin(names, cached)
        assert (pin.found, pin.depth) == self.table.pin(self.number, names, cached)
        assert before == pin.found
        return self.number, pin

    @rule(held=pins)
    def computed(self, held: tuple[int, Pin]) -> None:
        self.tree.computed(held[1])
        self.table.computed(held[0])

    @rule(held=consumes(pins))
    def unpin(self, held: tuple[int, Pin]) -> None:
        start, end = self.tree.unpin(held[1])
        assert end - start == self.table.unpin(held[0])

    @invariant()
    def every_block_is_counted_once(self) -> None:
        assert self.tree.blocks_in_use == len(self.table.refs)
        assert self.tree.runs <= 3 * len(self.table.paths)

    @invariant()
    def an_edge_is_referred_to_by_whoever_is_below_it(self) -> None:
        edges = [self.tree._root]
        while edges:
            edge = edges.pop()
            assert edge.refs == edge.ends + sum(child.refs for child in edge.children.values())
            edges += edge.children.values()

    @rule(names=chains)
    def found(self, names: tuple[int, ...]) -> None:
        known = 0
        while known < len(names) and self.table.ready.get(names[known], False):
            known += 1
        assert self.tree.found(names) == known


TestTree = Tree.TestCase
TestTree.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@given(names=st.lists(chains, max_size=12))
def test_nothing_is_left_when_everybody_has_gone(names: list[tuple[int, ...]]) -> None:
    prefixes = SharedPrefixes()
    pins = [prefixes.pin(each) for each in names]
    for pin in pins:
        prefixes.computed(pin)
    for pin in pins:
        prefixes.unpin(pin)
    assert prefixes.blocks_in_use == 0
    assert prefixes.pin(chain(0, 1, 2)).found == 0
