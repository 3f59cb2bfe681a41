"""Chains of blocks as a tree of runs, so that what is done to a prompt costs time per run and not per block.

Blocks are chained (`policy.hashing`): equal names at one depth mean equal names everywhere before it. So where a chain
leaves a run is found by bisection, and a prompt of 62,500 blocks is looked up as fast as one of six.

    root ──[ system prompt, 64 ]──┬──[ one conversation, 836 ]──[ its last turn, 40 ]
                                  └──[ another, 6 ]

A run is cut in two where chains part, or where one ends inside it, and joined again when nothing tells its parts apart
any more. Every chain begins at the root: what is handed in is a prompt from its first block on, or as many of its first
blocks as are meant.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableSequence, Sequence
from typing import TypeAlias

Names: TypeAlias = MutableSequence[int]
"""Of a run: an array where they outlive their request (8 bytes each), else a list of what the request has anyway."""

_NO_CHILDREN: dict[int, Run] = {}
"""Of every run that ends a chain, which is most of them; never changed."""


class Run:
    """Consecutive blocks of one chain. `uses`: running requests that use them all. `kept`: cached by what we know
    (`policy.guessed`). `told`: how many of the first ones the replica has told of itself (`policy.told`)."""

    __slots__ = ("children", "kept", "names", "parent", "told", "uses")

    def __init__(self, names: Names, parent: Run | None, *, uses: int = 0, kept: bool = False, told: int = 0) -> None:
        self.names = names
        self.parent = parent
        self.children = _NO_CHILDREN
        self.uses = uses
        self.kept = kept
        self.told = told

    def cut(self, at: int) -> Run:
        """Cut it in two: its first `at` blocks become a new run, which is returned; it keeps the rest."""
        assert self.parent is not None
        upper = Run(self.names[:at], self.parent, uses=self.uses, kept=self.kept, told=min(self.told, at))
        self.parent.children[self.names[0]] = upper
        self.names = self.names[at:]  # a copy has no room to spare, and what is cut rarely grows
        self.told = max(0, self.told - at)
        self.parent, upper.children = upper, {self.names[0]: self}
        return upper

    def absorb(self, child: Run) -> None:
        """Become one with the only child; the opposite of `cut`."""
        self.names.extend(child.names)
        self.told += child.told
        self.children = child.children
        for grandchild in self.children.values():
            grandchild.parent = self

    def grow(self, names: Names) -> Run:
        """A new run that continues it."""
        child = Run(names, self)
        if self.children is _NO_CHILDREN:
            self.children = {}
        self.children[names[0]] = child
        return child

    def leave(self) -> None:
        """Take it, and all that continues it, out of the tree."""
        assert self.parent is not None
        del self.parent.children[self.names[0]]


def along(root: Run, blocks: Sequence[int]) -> tuple[Run, int, int]:
    """As far as the tree has a chain: the run where that ends (the root where nothing is known), how many blocks of
    that run belong to it, and how many of `blocks` in all."""
    run, shared, depth, end = root, 0, 0, len(blocks)
    while depth < end:
        child = run.children.get(blocks[depth])
        if child is None:
            break
        run, shared = child, shared_blocks(child.names, 0, blocks, depth)
        depth += shared
        if shared < len(run.names):
            break
    return run, shared, depth


def shared_blocks(names: Sequence[int], start: int, blocks: Sequence[int], depth: int) -> int:
    """How many names from `start` on are those of `blocks` from `depth` on, where the first ones are equal."""
    most = min(len(names) - start, len(blocks) - depth)
    if names[start + most - 1] == blocks[depth + most - 1]:
        return most
    low, high = 1, most
    while low < high - 1:
        middle = (low + high) // 2
        if names[start + middle - 1] == blocks[depth + middle - 1]:
            low = middle
        else:
            high = middle
    return low


def path_up(run: Run) -> Iterator[Run]:
    """A run, and those before it, the first of its chain last; the root is left out."""
    while run.parent is not None:
        parent = run.parent
        yield run
        run = parent


def all_below(root: Run) -> Iterator[Run]:
    """Every run, those before others first. What is taken out of the tree while this goes on may come all the same."""
    runs = list(root.children.values())
    while runs:
        run = runs.pop()
        yield run
        runs += run.children.values()
