"""What a replica holds that publishes events.

    marks    name ─▶ the tiers that hold the block (bits 0..2), or the stretch it belongs to
    uses     a tree of runs (`policy.runs`): the blocks of running requests, whatever was told of them

A *stretch* is what one event stored, all of it on the device: consecutive blocks of one chain. As long as nothing but
its end is removed, which is the order in which engines evict, a prompt that has its first block is looked up in it as a
whole. Any other change makes single blocks of what is left of it, which are looked up one by one.

What running requests use counts as known once. How much of that was told is followed along each run, in the order in
which an engine stores a prompt and evicts it, last block first; a block that was told or removed out of that order
counts twice, or not at all, until the request ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from longproof.domain.kv_event import Tier
from longproof.policy.contents import NO_MATCH, Match
from longproof.policy.runs import Run, all_below, along, path_up, shared_blocks

_BIT = {Tier.DEVICE: 1, Tier.HOST: 2, Tier.DISK: 4}
_DEVICE = 1
_LEAST_STRETCH, _LONGEST_STRETCH = 16, 1_024
"""Blocks. A shorter one costs more memory than it saves time; what is left of a longer one could be made single blocks
only at a cost that streams would notice."""
_FIRST_LOOK = 64


class _Stretch:
    """Blocks that one event stored on the device, in the order of their chain."""

    __slots__ = ("names",)

    def __init__(self, names: Sequence[int]) -> None:
        self.names = list(names)


class ToldContents:
    """Contents by events. Bounded by what the replica stores and by the room it is given."""

    bytes_per_block = 128

    def __init__(self) -> None:
        self._marks: dict[int, int | _Stretch] = {}
        self._far_seen = False
        self._uses = Run([], None)
        self._uses.children = {}
        self._awaited: dict[int, Run] = {}
        """The next block to be told of each run in use, where there is one."""
        self._last_told: dict[int, Run] = {}
        """The last one told of each, which is the first that an engine removes."""
        self._untold = 0
        """Blocks in use that were not told."""

    def __len__(self) -> int:
        return len(self._marks) + self._untold

    @property
    def bytes(self) -> int:
        return (len(self._marks) + self._untold) * self.bytes_per_block

    def room(self, free_bytes: int) -> int:
        return max(0, free_bytes // self.bytes_per_block)

    def match(self, blocks: Sequence[int]) -> Match:
        used = along(self._uses, blocks)[2]
        device, host, disk = self._match_told(blocks, used)
        device += used
        return Match(device_blocks=device, host_blocks=host, disk_blocks=disk) if device or host or disk else NO_MATCH

    def store(self, blocks: Sequence[int], tier: Tier, room: int) -> int:
        bit = _BIT[tier]
        self._far_seen |= bit != _DEVICE
        if len(blocks) < _LEAST_STRETCH:
            return self._store_singly(blocks, bit, room)
        if len(blocks) <= room and self._marks.keys().isdisjoint(blocks):  # nearly always
            self._add(blocks, bit)
            return 0
        known = 0
        while known < len(blocks) and (more := self._look(blocks, known, _FIRST_LOOK)):
            known += more
        self._store_singly(blocks[:known], bit, room)
        new = blocks[known:]
        if not self._marks.keys().isdisjoint(new):
            return self._store_singly(new, bit, room)
        fits = max(0, min(len(new), room))
        self._add(new[:fits], bit)
        return len(new) - fits

    def remove(self, blocks: Sequence[int], tier: Tier) -> None:
        marks, last_told, bit = self._marks, self._last_told, _BIT[tier]
        for name in blocks:
            known = marks.pop(name, 0)
            if isinstance(known, int):
                if not known:
                    continue
                if known & ~bit:
                    marks[name] = known & ~bit
                    continue
            elif bit != _DEVICE:
                marks[name] = known
                continue
            elif known.names[-1] == name:
                known.names.pop()
            else:
                self._break(known)
                del marks[name]
            if last_told and name in last_told:
                self._was_removed(last_told[name])

    def clear(self) -> None:
        self._marks = {}
        self._far_seen = False
        self._untold = 0
        self._awaited, self._last_told = {}, {}
        for run in all_below(self._uses):
            run.told = 0
            self._untold += len(run.names)
            self._awaited[run.names[0]] = run

    def use(self, blocks: Sequence[int], room: int) -> int:
        run, shared, depth = along(self._uses, blocks)
        if shared < len(run.names):
            run = self._cut(run, shared)
        told = sum(self._match_told(blocks, depth))
        noted = min(len(blocks), depth + told + max(0, room))
        if noted > depth:
            run = run.grow(list(blocks[depth:noted]))
            run.told = told
            self._untold += noted - depth - told
            self._await(run)
        for one in path_up(run):
            one.uses += 1
        return noted

    def unuse(self, blocks: Sequence[int], kept: bool) -> None:  # noqa: ARG002  the events say what was kept
        run, shared, _ = along(self._uses, blocks)
        if shared < len(run.names):
            run = self._cut(run, shared)
        for one in list(path_up(run)):
            one.uses -= 1
            if one.uses <= 0:
                self._await_no_more(one)
                self._untold -= len(one.names) - one.told
                one.leave()
            elif len(one.children) == 1:
                self._join(one, *one.children.values())

    # ── what was told ─────────────────────────────────────────────────────────────────────────────────────────────

    def _match_told(self, blocks: Sequence[int], start: int) -> tuple[int, int, int]:
        """Blocks from `start` on that were told, as far as there is no hole between them, by their nearest tier."""
        marks, end, size = self._marks, len(blocks), _FIRST_LOOK
        at, device, host, disk = start, 0, 0, 0
        while at < end:
            known = marks.get(blocks[at])
            if known is None:
                break
            if not isinstance(known, int):
                names, size = known.names, _FIRST_LOOK
                first = 0 if names[0] == blocks[at] else names.index(blocks[at])
                shared = shared_blocks(names, first, blocks, at)
                device += shared
                at += shared
                continue
            found = self._look(blocks, at, size)  # more and more at once, so that most of it is done in C
            if self._far_seen:
                for mark, count in Counter(map(marks.__getitem__, blocks[at : at + found])).items():
                    tiers = mark if isinstance(mark, int) else _DEVICE
                    if tiers & _DEVICE:
                        device += count
                    elif tiers & _BIT[Tier.HOST]:
                        host += count
                    else:
                        disk += count
            else:
                device += found
            at += found
            size *= 2
        return device, host, disk

    def _look(self, blocks: Sequence[int], at: int, size: int) -> int:
        """How many of the next `size` blocks are there, up to the first that is not."""
        look = list(map(self._marks.__contains__, blocks[at : at + size]))
        return look.index(False) if False in look else len(look)

    def _store_singly(self, blocks: Sequence[int], bit: int, room: int) -> int:
        marks, awaited, refused = self._marks, self._awaited, 0
        for name in blocks:
            known = marks.get(name)
            if known is None:
                if room <= 0:
                    refused += 1
                    continue
                room -= 1
                marks[name] = bit
                if name in awaited:
                    self._was_told((name,))
            elif isinstance(known, int):
                marks[name] = known | bit
            elif bit != _DEVICE:
                self._break(known)
                marks[name] = bit | _DEVICE
        return refused

    def _add(self, blocks: Sequence[int], bit: int) -> None:
        """Blocks that are not known."""
        for start in range(0, len(blocks), _LONGEST_STRETCH):
            part = blocks[start : start + _LONGEST_STRETCH]
            together = bit == _DEVICE and len(part) >= _LEAST_STRETCH
            new: dict[int, int | _Stretch] = dict.fromkeys(part, _Stretch(part) if together else bit)
            self._marks.update(new if len(new) == len(part) else dict.fromkeys(new, bit))  # no chain repeats a block
        if self._awaited:
            self._was_told(blocks)

    def _break(self, stretch: _Stretch) -> None:
        """Make single blocks of it."""
        for name in stretch.names:
            self._marks[name] = _DEVICE

    # ── what is in use ────────────────────────────────────────────────────────────────────────────────────────────

    def _was_told(self, blocks: Sequence[int]) -> None:
        """What running requests wait to be told of begins there, or does not."""
        at = 0
        while at < len(blocks) and (run := self._awaited.get(blocks[at])) is not None:
            self._await_no_more(run)
            shared = shared_blocks(run.names, run.told, blocks, at)
            run.told += shared
            more = 1
            at += shared
            while more and run.told < len(run.names):  # what was there beyond a hole that is filled now
                more = self._look(run.names, run.told, _FIRST_LOOK)
                run.told += more
                shared += more
            self._untold -= shared
            self._await(run)

    def _was_removed(self, run: Run) -> None:
        """The last block that was told of it, though it is in use; and others before it, perhaps, that went earlier."""
        self._await_no_more(run)
        while run.told and run.names[run.told - 1] not in self._marks:
            run.told -= 1
            self._untold += 1
        self._await(run)

    def _await(self, run: Run) -> None:
        if run.told < len(run.names):
            self._awaited[run.names[run.told]] = run
        if run.told:
            self._last_told[run.names[run.told - 1]] = run

    def _await_no_more(self, run: Run) -> None:
        if run.told < len(run.names):
            self._awaited.pop(run.names[run.told], None)
        if run.told:
            self._last_told.pop(run.names[run.told - 1], None)

    def _cut(self, run: Run, at: int) -> Run:
        self._await_no_more(run)
        upper = run.cut(at)
        self._await(upper)
        self._await(run)
        return upper

    def _join(self, upper: Run, lower: Run) -> None:
        """Undo a cut that nobody needs any more."""
        if upper.uses == lower.uses and (upper.told == len(upper.names) or not lower.told):
            self._await_no_more(upper)
            self._await_no_more(lower)
            upper.absorb(lower)
            self._await(upper)
