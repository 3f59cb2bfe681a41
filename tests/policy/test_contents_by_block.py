"""Contents that are kept by runs and stretches, held against plain ones that keep every block by itself."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from random import Random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from longproof.domain.kv_event import Tier
from longproof.policy.guessed import GuessedContents
from longproof.policy.told import ToldContents

ROOM = 1_000_000
BIT = {Tier.DEVICE: 1, Tier.HOST: 2, Tier.DISK: 4}
USE = 8


class Names:
    """Names as hashing makes them: one for each chain of tokens, told apart by what comes before it."""

    def __init__(self) -> None:
        self.after: dict[tuple[int, int], int] = {}
        self.before: dict[int, int] = {}

    def chain(self, tokens: Sequence[int], each: int, less: int) -> tuple[int, ...]:
        """`each` blocks for every token, without the last `less`."""
        parent, blocks = 0, list[int]()
        for token in [token for token in tokens for _ in range(each)]:
            parent = self.after.setdefault((parent, token), len(self.after) + 1)
            self.before.setdefault(parent, blocks[-1] if blocks else 0)
            blocks.append(parent)
        return tuple(blocks[: max(1, len(blocks) - less)])

    def chains(self) -> list[tuple[int, ...]]:
        """Every chain that ends a branch."""
        inner = set(self.before.values())
        found: list[tuple[int, ...]] = []
        for name in self.before:
            if name not in inner:
                path, at = list[int](), name
                while at:
                    path.append(at)
                    at = self.before[at]
                found.append(tuple(reversed(path)))
        return found

    def with_what_follows(self, names: Sequence[int]) -> set[int]:
        """These, and every name of a chain beyond them; names come after those before them."""
        found = set(names)
        for name, before in self.before.items():
            if before in found:
                found.add(name)
        return found


class PlainGuessed:
    """What `GuessedContents` does, block by block: 0 or 1 for cached, 8 for each use; oldest first."""

    def __init__(self, capacity_blocks: int) -> None:
        self.capacity_blocks = capacity_blocks
        self.marks: OrderedDict[int, int] = OrderedDict()

    def match(self, blocks: Sequence[int]) -> int:
        return next((at for at, name in enumerate(blocks) if name not in self.marks), len(blocks))

    def store(self, blocks: Sequence[int], room: int) -> None:
        allowed = len(self.marks) + room
        for name in reversed(blocks):
            self.marks[name] = self.marks.get(name, 0) | 1
            self.marks.move_to_end(name)
        self.evict(min(allowed, self.capacity_blocks))

    def remove(self, names: set[int]) -> None:
        for name in names & self.marks.keys():
            self.marks[name] &= ~1
            if not self.marks[name]:
                del self.marks[name]

    def clear(self) -> None:
        self.marks = OrderedDict((name, mark & ~1) for name, mark in self.marks.items() if mark >= USE)

    def use(self, blocks: Sequence[int], room: int) -> int:
        limit = len(self.marks) + room
        known = [name for name in blocks if name in self.marks]
        for name in known:
            self.marks[name] += USE
        missing = [name for name in blocks if name not in self.marks]
        self.evict(max(0, min(limit, self.capacity_blocks) - len(missing)))
        fits = max(0, limit - len(self.marks))
        for name in missing[:fits]:
            self.marks[name] = USE
        return len(known) + len(missing[:fits])

    def unuse(self, blocks: Sequence[int], *, kept: bool) -> None:
        for name in reversed(blocks):
            self.marks[name] = (self.marks[name] - USE) | int(kept)
            self.marks.move_to_end(name)
            if not self.marks[name]:
                del self.marks[name]
        self.evict(self.capacity_blocks)

    def evict(self, down_to: int) -> None:
        for name in [name for name, mark in self.marks.items() if mark < USE]:
            if len(self.marks) <= down_to:
                break
            del self.marks[name]


class PlainTold:
    """What `ToldContents` does, block by block: the tiers that hold it, and 8 for each use."""

    def __init__(self) -> None:
        self.marks: dict[int, int] = {}

    def match(self, blocks: Sequence[int]) -> tuple[int, int, int]:
        end = next((at for at, name in enumerate(blocks) if name not in self.marks), len(blocks))
        held = [self.marks[name] for name in blocks[:end]]
        device = sum(mark >= USE or mark & 1 for mark in held)
        host = sum(mark < USE and mark & 3 == 2 for mark in held)
        return device, host, end - device - host

    def store(self, blocks: Sequence[int], tier: Tier) -> None:
        for name in blocks:
            self.marks[name] = self.marks.get(name, 0) | BIT[tier]

    def remove(self, blocks: Sequence[int], tier: Tier) -> None:
        for name in blocks:
            self.marks[name] = self.marks.get(name, 0) & ~BIT[tier]
            if not self.marks[name]:
                del self.marks[name]

    def clear(self) -> None:
        self.marks = {name: mark & ~7 for name, mark in self.marks.items() if mark >= USE}

    def use(self, blocks: Sequence[int]) -> None:
        for name in blocks:
            self.marks[name] = self.marks.get(name, 0) + USE

    def unuse(self, blocks: Sequence[int]) -> None:
        for name in blocks:
            self.marks[name] -= USE
            if not self.marks[name]:
                del self.marks[name]


tokens = st.lists(st.sampled_from([0, 0, 0, 1]), min_size=1, max_size=5)
rooms = st.one_of(st.just(ROOM), st.integers(-4, 12))


class GuessedAsBlocks(RuleBasedStateMachine):
    """Prompts of up to fifteen blocks, many with the same beginning, in a cache of twenty."""

    running = Bundle("running")

    def __init__(self) -> None:
        super().__init__()
        self.names = Names()
        self.contents = GuessedContents(20)
        self.plain = PlainGuessed(20)

    @rule(target=running, tokens=tokens, less=st.integers(0, 2), room=rooms)
    def use(self, tokens: list[int], less: int, room: int) -> tuple[int, ...]:
        blocks = self.names.chain(tokens, 3, less)
        noted = self.contents.use(blocks, room)
        assert noted == self.plain.use(blocks, room)
        return blocks[:noted]

    @rule(blocks=consumes(running), kept=st.booleans())
    def unuse(self, blocks: tuple[int, ...], kept: bool) -> None:
        self.contents.unuse(blocks, kept)
        self.plain.unuse(blocks, kept=kept)

    @rule(tokens=tokens, less=st.integers(0, 2), room=rooms)
    def store(self, tokens: list[int], less: int, room: int) -> None:
        blocks = self.names.chain(tokens, 3, less)
        assert self.contents.store(blocks, Tier.DEVICE, room) == 0
        self.plain.store(blocks, room)

    @rule(target=running, blocks=running)
    def use_again(self, blocks: tuple[int, ...]) -> tuple[int, ...]:
        """What another request uses: it is all there."""
        assert self.contents.use(blocks, ROOM) == self.plain.use(blocks, ROOM) == len(blocks)
        return blocks

    @rule(tokens=st.lists(st.integers(0, 1), min_size=1, max_size=2), start=st.integers(0, 5), count=st.integers(1, 4))
    def remove(self, tokens: list[int], start: int, count: int) -> None:
        """What follows is of no use without them, and goes with them."""
        gone = self.names.chain(tokens, 3, 0)[start : start + count]
        self.contents.remove(gone, Tier.DEVICE)
        self.plain.remove(self.names.with_what_follows(gone))

    @rule()
    def clear(self) -> None:
        self.contents.clear()
        self.plain.clear()

    @rule(size=st.sampled_from([0.5, 1.0, 3.0]))
    def met(self, size: float) -> None:
        self.contents.met(size)
        self.plain.capacity_blocks = self.contents.capacity_blocks

    @invariant()
    def both_hold_the_same(self) -> None:
        assert len(self.contents) == len(self.plain.marks)
        for blocks in self.names.chains():
            assert self.contents.match(blocks).blocks == self.plain.match(blocks)

    def teardown(self) -> None:
        """Make room, one block at a time, until only what is in use is left: both forget in the same order."""
        for _ in range(len(self.plain.marks)):
            self.contents.use((), -1)
            self.plain.use((), -1)
            self.both_hold_the_same()
        assert all(mark >= USE for mark in self.plain.marks.values())


class ToldAsBlocks(RuleBasedStateMachine):
    """Prompts of up to fifty blocks: events of a few are kept block by block, longer ones as stretches."""

    running = Bundle("running")

    def __init__(self) -> None:
        super().__init__()
        self.names = Names()
        self.contents = ToldContents()
        self.plain = PlainTold()
        self.uses = 0

    @rule(target=running, tokens=tokens, less=st.integers(0, 9))
    def use(self, tokens: list[int], less: int) -> tuple[int, ...]:
        blocks = self.names.chain(tokens, 10, less)
        assert self.contents.use(blocks, ROOM) == len(blocks)
        self.plain.use(blocks)
        self.uses += 1
        return blocks

    @rule(blocks=consumes(running))
    def unuse(self, blocks: tuple[int, ...]) -> None:
        self.contents.unuse(blocks, kept=True)
        self.plain.unuse(blocks)
        self.uses -= 1

    @rule(
        tokens=tokens,
        start=st.one_of(st.just(0), st.integers(0, 49)),
        count=st.integers(1, 50),
        tier=st.sampled_from([Tier.DEVICE] * 4 + [Tier.HOST, Tier.DISK]),
    )
    def store(self, tokens: list[int], start: int, count: int, tier: Tier) -> None:
        blocks = self.names.chain(tokens, 10, 0)[start : start + count]
        assert self.contents.store(blocks, tier, ROOM) == 0
        self.plain.store(blocks, tier)

    @rule(
        tokens=tokens,
        start=st.integers(0, 49),
        count=st.integers(1, 12),
        tail_first=st.booleans(),
        tier=st.sampled_from([Tier.DEVICE] * 4 + [Tier.HOST, Tier.DISK]),
    )
    def remove(self, tokens: list[int], start: int, count: int, tail_first: bool, tier: Tier) -> None:
        blocks = self.names.chain(tokens, 10, 0)[start : start + count]
        gone = tuple(reversed(blocks)) if tail_first else blocks
        self.contents.remove(gone, tier)
        self.plain.remove(gone, tier)

    @rule(blocks=running, count=st.integers(1, 20))
    def evict_the_end(self, blocks: tuple[int, ...], count: int) -> None:
        gone = tuple(reversed(blocks[-count:]))
        self.contents.remove(gone, Tier.DEVICE)
        self.plain.remove(gone, Tier.DEVICE)

    @rule()
    def clear(self) -> None:
        self.contents.clear()
        self.plain.clear()

    @invariant()
    def both_hold_the_same(self) -> None:
        for blocks in self.names.chains():
            found = self.contents.match(blocks)
            assert (found.device_blocks, found.host_blocks, found.disk_blocks) == self.plain.match(blocks)
        if not self.uses:
            assert len(self.contents) == len(self.plain.marks)


_BOUNDED = settings(derandomize=True, max_examples=40, stateful_step_count=30, deadline=None)
TestGuessedAsBlocks = GuessedAsBlocks.TestCase
TestGuessedAsBlocks.settings = _BOUNDED
TestToldAsBlocks = ToldAsBlocks.TestCase
TestToldAsBlocks.settings = _BOUNDED


def test_guessed_contents_are_those_of_single_blocks_when_walks_are_long() -> None:
    """Longer than Hypothesis draws them; where this fails, it is the one to find the shortest."""
    for seed in range(60):
        chance, both, running = Random(seed), GuessedAsBlocks(), list[tuple[int, ...]]()
        for _ in range(60):
            tokens = chance.choices([0, 0, 0, 1], k=chance.randint(1, 5))
            less, room = chance.randint(0, 2), chance.choice([ROOM, ROOM, chance.randint(-4, 12)])
            match chance.choices(
                ["use", "again", "unuse", "store", "remove", "clear", "met"], [6, 2, 8, 4, 2, 0.2, 0.5]
            ):
                case ["use"]:
                    running.append(both.use(tokens, less, room))
                case ["again"] if running:
                    running.append(both.use_again(chance.choice(running)))
                case ["unuse"] if running:
                    both.unuse(running.pop(chance.randrange(len(running))), chance.random() < 0.7)
                case ["store"]:
                    both.store(tokens, less, room)
                case ["remove"]:
                    both.remove(tokens[:2], chance.randint(0, 5), chance.randint(1, 4))
                case ["clear"]:
                    both.clear()
                case _:
                    both.met(chance.choice([0.5, 1.0, 3.0]))
            both.both_hold_the_same()
        both.teardown()


def test_told_contents_are_those_of_single_blocks_when_walks_are_long() -> None:
    for seed in range(40):
        chance, both, running = Random(seed), ToldAsBlocks(), list[tuple[int, ...]]()
        for _ in range(60):
            tokens = chance.choices([0, 0, 0, 1], k=chance.randint(1, 5))
            start, tier = chance.choice([0, 0, chance.randrange(50)]), chance.choice([*[Tier.DEVICE] * 8, *Tier])
            match chance.choices(["use", "unuse", "store", "remove", "evict", "clear"], [4, 4, 8, 3, 3, 0.2]):
                case ["use"]:
                    running.append(both.use(tokens, chance.randint(0, 9)))
                case ["unuse"] if running:
                    both.unuse(running.pop(chance.randrange(len(running))))
                case ["store"]:
                    both.store(tokens, start, chance.randint(1, 50), tier)
                case ["remove"]:
                    both.remove(tokens, start, chance.randint(1, 12), chance.random() < 0.5, tier)
                case ["evict"] if running:
                    both.evict_the_end(chance.choice(running), chance.randint(1, 20))
                case ["clear"]:
                    both.clear()
                case _:
                    pass
            both.both_hold_the_same()
        for blocks in running:
            both.unuse(blocks)
        both.both_hold_the_same()
