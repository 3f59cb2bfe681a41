"""What one replica's prefix cache holds, block by block, as far as anybody can know.

    name ─▶ marks         bits 0..2: the tiers that hold the block        bits 3..: running requests that use it (· 8)

`ToldContents` believes the replica's events. `GuessedContents` has none and follows our own traffic: what a request has
brought is there, and the least recently used goes first once `capacity_blocks` are full. A block that a running request
uses is there in both, since an engine does not evict it (nor can it be forgotten here before the request ends).

Both take any order of events: a second store or removal changes nothing, a removal of what was never stored is ignored.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from longproof.domain.kv_event import Tier

_BIT = {Tier.DEVICE: 1, Tier.HOST: 2, Tier.DISK: 4}
_TIERS = 7
_USE = 8
_FIRST_RUN = 64
_SIZE_WEIGHT = 1 / 32
_SMALLEST_BLOCK, _LARGEST_BLOCK = 1 / 16, 64.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """How much of a prompt a replica can use again: whole blocks from its start, each counted at its nearest tier."""

    device_blocks: int = 0
    host_blocks: int = 0
    disk_blocks: int = 0

    @property
    def blocks(self) -> int:
        """All of them."""
        return self.device_blocks + self.host_blocks + self.disk_blocks


NO_MATCH = Match()


class Contents(Protocol):
    """The blocks of one replica."""

    bytes_per_block: int
    """What one known block costs in memory, as `benchmarks/prefix_index.py` measures it."""

    def __len__(self) -> int:
        """Blocks known."""
        ...

    def match(self, blocks: Sequence[int]) -> Match:
        """The longest run of `blocks`, from the first, that is there."""
        ...

    def store(self, blocks: Sequence[int], tier: Tier, room: int) -> int:
        """Note blocks as held, at most `room` new ones; returns how many found no room."""
        ...

    def remove(self, blocks: Sequence[int], tier: Tier) -> None:
        """Note blocks as gone from a tier."""
        ...

    def clear(self) -> None:
        """Forget everything but what running requests use."""
        ...

    def use(self, blocks: Sequence[int], room: int) -> int:
        """A request brings these blocks and uses them; returns how many of the first ones were noted: `unuse` exactly
        those."""
        ...

    def unuse(self, blocks: Sequence[int], kept: bool) -> None:
        """The request has ended. `kept`: its prefill was done, so the blocks are cached now as far as can be told."""
        ...


class ToldContents:
    """Contents of a replica that publishes events. Bounded by what the replica stores and by the room it is given."""

    bytes_per_block = 112

    def __init__(self) -> None:
        self._marks: dict[int, int] = {}
        self._far_seen = False

    def __len__(self) -> int:
        return len(self._marks)

    def match(self, blocks: Sequence[int]) -> Match:
        return _match(self._marks, blocks, self._far_seen)

    def store(self, blocks: Sequence[int], tier: Tier, room: int) -> int:
        marks, bit, refused = self._marks, _BIT[tier], 0
        self._far_seen |= bit != 1
        for name in blocks:
            known = marks.get(name)
            if known is not None:
                marks[name] = known | bit
            elif room > 0:
                marks[name] = bit
                room -= 1
            else:
                refused += 1
        return refused

    def remove(self, blocks: Sequence[int], tier: Tier) -> None:
        marks, others = self._marks, ~_BIT[tier]
        for name in blocks:
            left = marks.get(name, 0) & others
            if left:
                marks[name] = left
            else:
                marks.pop(name, None)

    def clear(self) -> None:
        self._marks = {name: mark & ~_TIERS for name, mark in self._marks.items() if mark >= _USE}
        self._far_seen = False

    def use(self, blocks: Sequence[int], room: int) -> int:
        marks = self._marks
        for noted, name in enumerate(blocks):
            known = marks.get(name)
            if known is None:
                if room <= 0:
                    return noted
                room -= 1
                known = 0
            marks[name] = known + _USE
        return len(blocks)

    def unuse(self, blocks: Sequence[int], kept: bool) -> None:  # noqa: ARG002  the events say what was kept
        marks = self._marks
        for name in blocks:
            left = marks.get(name, 0) - _USE
            if left > 0:
                marks[name] = left
            else:
                marks.pop(name, None)


class GuessedContents:
    """Contents of a replica that tells nothing: least recently used goes first, as in the engines, where the last
    blocks of a prompt go before its first. `capacity_blocks`: the replica's KV pool in our blocks."""

    bytes_per_block = 192

    def __init__(self, capacity_blocks: int) -> None:
        if capacity_blocks < 1:
            raise ValueError(f"a cache of {capacity_blocks} blocks")
        self.capacity_blocks = self._nominal_blocks = capacity_blocks
        self._block_size: float | None = None
        self._marks: OrderedDict[int, int] = OrderedDict()  # oldest first

    def __len__(self) -> int:
        return len(self._marks)

    def match(self, blocks: Sequence[int]) -> Match:
        return _match(self._marks, blocks, far=False)

    def store(self, blocks: Sequence[int], tier: Tier, room: int) -> int:
        marks = self._marks
        if tier is not Tier.DEVICE:
            return 0  # who tells of tiers publishes events
        allowed = len(marks) + room
        for name in reversed(blocks):
            marks[name] = marks.get(name, 0) | 1
            marks.move_to_end(name)
        self._evict(min(allowed, self.capacity_blocks))
        return 0

    def remove(self, blocks: Sequence[int], tier: Tier) -> None:
        if tier is Tier.DEVICE:
            for name in blocks:
                left = self._marks.get(name, 0) & ~1
                if left:
                    self._marks[name] = left
                else:
                    self._marks.pop(name, None)

    def met(self, block_size: float) -> None:
        """The blocks of a request are so many times as large as those the capacity is told in: a block of text is what
        its text makes of it. The capacity follows the mean of what was met lately."""
        if block_size == self._block_size:
            return
        size = min(_LARGEST_BLOCK, max(_SMALLEST_BLOCK, block_size))
        known = size if self._block_size is None else self._block_size
        self._block_size = known + (size - known) * _SIZE_WEIGHT
        self.capacity_blocks = max(1, int(self._nominal_blocks / self._block_size))

    def clear(self) -> None:
        self._marks = OrderedDict((name, mark & ~_TIERS) for name, mark in self._marks.items() if mark >= _USE)

    def use(self, blocks: Sequence[int], room: int) -> int:
        marks = self._marks
        limit = len(marks) + room
        for name in blocks:  # first of all, so that making room does not take them
            if name in marks:
                marks[name] += _USE
        missing = [at for at, name in enumerate(blocks) if name not in marks]
        self._evict(max(0, min(limit, self.capacity_blocks) - len(missing)))
        fits = max(0, limit - len(marks))
        noted = missing[fits] if fits < len(missing) else len(blocks)
        for at in missing[:fits]:
            marks[blocks[at]] = _USE
        for name in blocks[noted:]:
            if name in marks:
                self._unuse(name, kept=False)
        return noted

    def unuse(self, blocks: Sequence[int], kept: bool) -> None:
        marks, cached = self._marks, int(kept)
        move = marks.move_to_end
        for name in reversed(blocks):  # written out: a prompt of a million tokens has very many
            mark = marks.get(name, 0)
            left = (mark - _USE if mark >= _USE else mark & _TIERS) | cached
            if left:
                marks[name] = left
                move(name)
            else:
                marks.pop(name, None)
        self._evict(self.capacity_blocks)

    def _unuse(self, name: int, kept: bool) -> None:
        marks = self._marks
        mark = marks.get(name, 0)
        left = max(mark - _USE, mark & _TIERS) | int(kept)
        if left:
            marks[name] = left
            marks.move_to_end(name)
        else:
            marks.pop(name, None)

    def _evict(self, down_to: int) -> None:
        """Drop the oldest that no request uses. Those in use are passed over once, so this ends."""
        marks = self._marks
        passed = 0
        while len(marks) - passed > 0 and len(marks) > down_to:
            name, mark = marks.popitem(last=False)
            if mark >= _USE:
                marks[name] = mark
                passed += 1


def _match(marks: dict[int, int] | OrderedDict[int, int], blocks: Sequence[int], far: bool) -> Match:
    """Runs of doubling length are looked up at once, in C: 40 ns a block for a prompt of a million tokens, and no
    look-up of the rest for a prompt that is unknown after its first."""
    if not blocks or blocks[0] not in marks:
        return NO_MATCH
    found, size, end = 0, _FIRST_RUN, len(blocks)
    while found < end:
        run = list(map(marks.__contains__, blocks[found : found + size]))
        if False in run:
            found += run.index(False)
            break
        found += len(run)
        size *= 2
    if not far:
        return Match(device_blocks=found)
    held = [marks[name] for name in blocks[:found]]
    device = sum(1 for mark in held if mark & 1 or mark >= _USE)
    host = sum(1 for mark in held if mark < _USE and mark & 3 == 2)
    return Match(device_blocks=device, host_blocks=host, disk_blocks=found - device - host)
