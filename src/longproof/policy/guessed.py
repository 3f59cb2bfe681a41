"""What a replica holds that tells nothing: guessed from our own traffic. What a request has brought is there, and the
least recently used goes first once `capacity_blocks` are full; of one prompt the last blocks go before the first, as in
the engines.

Held as a tree of runs (`policy.runs`). Whoever touches a chain touches it from its first block on, so what continues a
run was never used later than the run itself, and the oldest run is always the end of a chain:

    oldest ─▶ [ one conversation's last turn ] [ another's ] [ one conversation ] [ system prompt ] ◀─ newest
                     ◀── evicted from here, last block first
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence

from longproof.domain.kv_event import Tier
from longproof.policy.contents import NO_MATCH, Match
from longproof.policy.runs import Run, all_below, along, path_up

_SIZE_WEIGHT = 1 / 32
_SMALLEST_BLOCK, _LARGEST_BLOCK = 1 / 16, 64.0
_NEW_RUNS = 2
"""What one prompt adds at most: its own, and one that is cut in two where it ends or leaves."""


class GuessedContents:
    """Contents by our own traffic. `capacity_blocks`: the replica's KV pool in our blocks.

    Prompts are told from their first block on. A part of one that is told by itself is held as a chain of its own: it
    continues the chains that end where it begins, and what another chain has of it too counts twice. Whatever continues
    a block that was removed is forgotten with it, since it is of no use any more.
    """

    bytes_per_block = 9
    bytes_per_run = 512

    def __init__(self, capacity_blocks: int) -> None:
        if capacity_blocks < 1:
            raise ValueError(f"a cache of {capacity_blocks} blocks")
        self.capacity_blocks = self._nominal_blocks = capacity_blocks
        self._block_size: float | None = None
        self._root = Run(array("Q"), None)
        self._root.children = {}
        self._idle: OrderedDict[Run, None] = OrderedDict()  # runs that no request uses, oldest first
        self._blocks = 0
        self._runs = 0

    def __len__(self) -> int:
        return self._blocks

    @property
    def bytes(self) -> int:
        return self._blocks * self.bytes_per_block + self._runs * self.bytes_per_run

    def room(self, free_bytes: int) -> int:
        return (free_bytes - _NEW_RUNS * self.bytes_per_run) // self.bytes_per_block

    def match(self, blocks: Sequence[int]) -> Match:
        depth = along(self._root, blocks)[2]
        while 0 < depth < len(blocks) and blocks[depth] in self._root.children:  # a part that was told by itself
            depth += along(self._root, blocks[depth:])[2]
        return Match(device_blocks=depth) if depth else NO_MATCH

    def store(self, blocks: Sequence[int], tier: Tier, room: int) -> int:
        if tier is not Tier.DEVICE or not blocks:
            return 0  # who tells of tiers publishes events
        allowed = self._blocks + room
        run, depth = self._reach(blocks)
        if depth < len(blocks):
            run = self._grow(run, blocks[depth:])
        for one in path_up(run):
            one.kept = True
            self._touch(one)
        self._join(run)
        self._evict(min(allowed, self.capacity_blocks))
        return 0

    def remove(self, blocks: Sequence[int], tier: Tier) -> None:
        """Looks at every block that is known: nobody who is guessed tells of removals."""
        if tier is not Tier.DEVICE:
            return
        removed = set(blocks)
        for run in list(all_below(self._root)):
            if removed.isdisjoint(run.names):
                continue
            at = next(place for place, name in enumerate(run.names) if name in removed)
            if run.uses:
                if at:
                    run.cut(at)
                    self._runs += 1
                self._unkeep(run)
            elif run in self._idle:  # else it went with one before it
                self._forget_below(run)
                self._trim(run, at)

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
        self._unkeep(self._root)

    def use(self, blocks: Sequence[int], room: int) -> int:
        limit = self._blocks + room
        run, depth = self._reach(blocks)
        for one in path_up(run):  # first of all, so that making room does not take them
            if not one.uses:
                self._idle.pop(one, None)
            one.uses += 1
        missing = len(blocks) - depth
        self._evict(max(0, min(limit, self.capacity_blocks) - missing))
        new = min(missing, max(0, limit - self._blocks))
        if new:
            self._grow(run, blocks[depth : depth + new]).uses = 1
        return depth + new

    def unuse(self, blocks: Sequence[int], kept: bool) -> None:
        run, _ = self._reach(blocks)
        path = list(path_up(run))
        for one in path:
            one.uses -= one.uses > 0
            one.kept |= kept
            if one.uses or one.kept:
                self._touch(one)
            else:
                self._trim(one, 0)
        self._join(next((one for one in path if one.uses or one.kept), self._root))
        self._evict(self.capacity_blocks)

    def _reach(self, blocks: Sequence[int]) -> tuple[Run, int]:
        """The run that ends where what is known of `blocks` ends, and how many blocks that are. One that is cut for it
        is in use, or about to be touched."""
        run, shared, depth = along(self._root, blocks)
        if shared < len(run.names):
            run = run.cut(shared)
            self._runs += 1
        return run, depth

    def _grow(self, run: Run, blocks: Sequence[int]) -> Run:
        self._runs += 1
        self._blocks += len(blocks)
        return run.grow(array("Q", blocks))

    def _touch(self, run: Run) -> None:
        """It is the newest now, unless it is in use: then it becomes that when it no longer is."""
        if not run.uses:
            self._idle[run] = None
            self._idle.move_to_end(run)

    def _join(self, run: Run) -> None:
        """What was just touched, from `run` up: what is alike, and has nothing else to continue it, becomes one run
        with what is before it. Both are neighbours in the order of use, too."""
        while (upper := run.parent) is not None and upper.parent is not None:
            if len(upper.children) == 1 and upper.uses == run.uses and upper.kept == run.kept:
                upper.absorb(run)
                self._idle.pop(run, None)
                self._runs -= 1
            run = upper

    def _unkeep(self, top: Run) -> None:
        """Nothing is cached any more from `top` on: what no request uses is forgotten."""
        top.kept = False
        for run in reversed(list(all_below(top))):  # what continues a run comes before it
            run.kept = False
            if not run.uses:
                self._trim(run, 0)

    def _forget_below(self, top: Run) -> None:
        """What continues it, which no request uses."""
        for run in reversed(list(all_below(top))):
            self._trim(run, 0)

    def _trim(self, run: Run, at: int) -> None:
        """Forget its blocks from `at` on; nothing continues it."""
        self._blocks -= len(run.names) - at
        if at:
            del run.names[at:]
        else:
            run.leave()
            self._runs -= 1
            self._idle.pop(run, None)

    def _evict(self, down_to: int) -> None:
        """Forget the oldest that no request uses."""
        while self._blocks > down_to and self._idle:
            run = next(iter(self._idle))
            self._trim(run, max(0, len(run.names) - (self._blocks - down_to)))
